#!/usr/bin/env python3
"""Train `digits` from scikit-learn's real handwritten digits and compile it: digits.py CARD SDK_VERSION DIRECTORY.

The network is one layer of fixed random features with ReLU, and one linear layer. The linear layer is solved in closed form and not
trained by gradient descent, so that every machine makes the same model. Prints {"path", "sha256", "accuracy"} as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from artefact import compile_onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCHES = (1, 2, 4)
HIDDEN = 600  # Number of random features
RIDGE = 1.0  # Regularization of the linear layer
SEED = 20240101
LEAST_ACCURACY = 0.95  # Required share of held-out images with the right label


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (train images, held-out images, train labels, held-out labels); images are float32 [n, 64], 0 to 16.

    The data set is sorted by writer, so the digits are shuffled and stratified.
    """
    digits = load_digits()
    return train_test_split(
        digits.data.astype(np.float32), digits.target, test_size=0.25, random_state=SEED, shuffle=True, stratify=digits.target
    )


def fit(images: np.ndarray, labels: np.ndarray, seed: int = SEED) -> dict[str, np.ndarray]:
    """Return weights {"w1" [64, HIDDEN], "b1", "w2" [HIDDEN, 10], "b2"}, float32, rounded to be equal on all machines."""
    random = np.random.RandomState(seed)
    w1 = np.round(random.normal(size=(64, HIDDEN)) / 64, 4)
    b1 = np.round(random.normal(size=HIDDEN) / 4, 4)
    hidden = np.maximum(images.astype(np.float64) @ w1 + b1, 0)
    hidden = np.hstack([hidden, np.ones((len(hidden), 1))])
    target = np.eye(10)[labels]
    solved = np.linalg.solve(hidden.T @ hidden + RIDGE * np.eye(HIDDEN + 1), hidden.T @ target)
    solved = np.round(solved, 4)
    weights = {"w1": w1, "b1": b1, "w2": solved[:-1], "b2": solved[-1]}
    return {name: array.astype(np.float32) for name, array in weights.items()}


def predict(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Return the scores [n, 10] of images [n, 64]."""
    return np.maximum(images @ weights["w1"] + weights["b1"], 0) @ weights["w2"] + weights["b2"]


def as_onnx(weights: dict[str, np.ndarray]) -> bytes:
    """Return the network as ONNX: INPUT__0 float32 [batch, 64] -> OUTPUT__0 float32 [batch, 10]."""
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["INPUT__0", "w1", "b1"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "w2", "b2"], ["OUTPUT__0"]),
        ],
        "digits",
        [helper.make_tensor_value_info("INPUT__0", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("OUTPUT__0", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="npufleet")
    onnx.checker.check_model(model)
    return model.SerializeToString()


def main(card: str, version: str, directory: Path) -> None:
    """Train the network, compile it, and print the result as JSON."""
    train, held_out, train_labels, held_out_labels = split()
    weights = fit(train, train_labels)
    accuracy = float((predict(weights, held_out).argmax(1) == held_out_labels).mean())
    if accuracy < LEAST_ACCURACY:
        sys.exit(f"digits: accuracy on the held-out images is {accuracy:.3f}, expected {LEAST_ACCURACY}")
    inputs = [{"name": "INPUT__0", "shape": [64], "dtype": "float32"}]
    made = compile_onnx("digits", as_onnx(weights), inputs, BATCHES, card, version, directory)
    print(json.dumps({**made, "accuracy": round(accuracy, 4)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
