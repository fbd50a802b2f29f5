#!/usr/bin/env python3
"""Write the arrays for the checks of the image models, which onnxruntime computes from the photographs without a server.

files/golden gets the arrays for the shipped checks, lab/golden those for the checks of the lab's network. The photographs are not
changed. The README.md in their directory names their sources.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
from resnet50 import as_onnx

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "files/golden"
LAB = ROOT / "lab/golden"
PHOTOGRAPHS = ("coffee.png", "chelsea.jpg")
# The generated pictures of the check `largest batch`. These values have to equal those in the check file.
NOISE = {"shape": (4, 3, 224, 224), "seed": 1, "low": -2, "high": 2}


def preprocess() -> ModuleType:
    """Return the module with which `image_decode` prepares pictures."""
    path = ROOT / "model_repository/image_decode/1/preprocess.py"
    spec = importlib.util.spec_from_file_location("preprocess", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pictures() -> np.ndarray:
    """Return the photographs as float32 [photographs, 3, 224, 224]."""
    pixels = preprocess().pixels
    return np.stack([pixels((GOLDEN / "resnet50" / name).read_bytes()) for name in PHOTOGRAPHS])


def noise() -> np.ndarray:
    """Return pictures float32 [4, 3, 224, 224], generated like the inputs of a check."""
    low, high = NOISE["low"], NOISE["high"]
    return (low + (high - low) * np.random.RandomState(NOISE["seed"]).random_sample(NOISE["shape"])).astype(np.float32)


def scores(images: np.ndarray) -> np.ndarray:
    """Return the scores float32 [n, 1000] that onnxruntime computes for images [n, 3, 224, 224]."""
    session = onnxruntime.InferenceSession(as_onnx(), providers=["CPUExecutionProvider"])
    return session.run(None, {"INPUT__0": images})[0]


def probabilities(found: np.ndarray) -> np.ndarray:
    """Return the softmax of scores [n, 1000], computed in float64."""
    powers = np.exp(found.astype(np.float64) - found.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    """Compute and write the arrays."""
    images = pictures()
    found = scores(images)
    likely = probabilities(found)
    made = {
        GOLDEN / "resnet50/pixels.npy": images[:1],
        GOLDEN / "image_labels/scores.npy": found,
        GOLDEN / "image_labels/probabilities.npy": likely,
        LAB / "resnet50/scores.npy": found,
        LAB / "resnet50/probabilities.npy": likely,
        LAB / "resnet50/noise_scores.npy": scores(noise()),
    }
    for path, array in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    print(f"classes {found.argmax(axis=1).tolist()}")


if __name__ == "__main__":
    main()
