#!/usr/bin/env python3
"""Make the lab's `resnet50` and compile it: resnet50.py CARD SDK_VERSION DIRECTORY.

The network has the inputs and outputs of ResNet-50, but only a few layers, with fixed random weights. It needs two million
multiplications for a picture, so that a CPU can stand in for an NPU. It distinguishes pictures, but its labels have no meaning.
Prints {"path", "sha256"} as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from artefact import compile_onnx
from onnx import TensorProto, helper, numpy_helper

BATCHES = (1, 2, 3, 4)
CLASSES = 1000
# With this seed each photograph of the golden data has five classes with clearly different scores.
SEED = 20240176
# Factor that spreads the scores, so that the likeliest class of a picture has about half of the probability
SPREAD = 4


def weights(seed: int = SEED) -> dict[str, np.ndarray]:
    """Return weights {"w1" [16, 3, 7, 7], "w2" [64, 16, 3, 3], "w3" [256, CLASSES]}, float32, rounded to agree on all machines."""
    random = np.random.RandomState(seed)
    shapes = {"w1": (16, 3, 7, 7), "w2": (64, 16, 3, 3), "w3": (256, CLASSES)}
    made = {}
    for name, shape in shapes.items():
        fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        made[name] = random.normal(size=shape) * (2 / fan_in) ** 0.5
    # Features are never negative, so all pictures share a large part of their scores. This part is removed here.
    made["w3"] = SPREAD * (made["w3"] - made["w3"].mean(axis=0))
    return {name: np.round(array, 4).astype(np.float32) for name, array in made.items()}


def as_onnx(seed: int = SEED) -> bytes:
    """Return the network as ONNX: INPUT__0 float32 [batch, 3, 224, 224] -> OUTPUT__0 float32 [batch, 1000]."""
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["INPUT__0", "w1"], ["stem"], kernel_shape=[7, 7], strides=[8, 8], pads=[3, 3, 3, 3]),
            helper.make_node("Relu", ["stem"], ["positive"]),
            helper.make_node("MaxPool", ["positive"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Conv", ["pooled", "w2"], ["deep"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["deep"], ["features"]),
            helper.make_node("AveragePool", ["features"], ["quarters"], kernel_shape=[4, 4], strides=[3, 3]),
            helper.make_node("Flatten", ["quarters"], ["row"]),
            helper.make_node("Gemm", ["row", "w3"], ["OUTPUT__0"]),
        ],
        "resnet50",
        [helper.make_tensor_value_info("INPUT__0", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("OUTPUT__0", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights(seed).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="npufleet")
    onnx.checker.check_model(model)
    return model.SerializeToString()


def main(card: str, version: str, directory: Path) -> None:
    """Compile the network, and print the result as JSON."""
    inputs = [{"name": "INPUT__0", "shape": [3, 224, 224], "dtype": "float32"}]
    print(json.dumps(compile_onnx("resnet50", as_onnx(), inputs, BATCHES, card, version, directory)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
