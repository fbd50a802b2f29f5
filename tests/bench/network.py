"""A network with the shapes of ResNet-50 that needs almost no computation.

The bench measures the server and its backend, so only the emulated device should take time for the network. Still, an answer
depends on values from the whole picture, including the first and the last value. So the bench notices a batch that was truncated,
shifted or mixed up.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PICTURE = (3, 224, 224)
SCORES = 1000
LARGEST = 4
LOOKED_AT = 48
SEED = 20240101


def as_onnx() -> bytes:
    """Return the network: INPUT__0 float32 [batch, 3, 224, 224] -> OUTPUT__0 float32 [batch, 1000]."""
    size = int(np.prod(PICTURE))
    random = np.random.RandomState(SEED)
    constants = {
        "places": np.linspace(0, size - 1, LOOKED_AT).astype(np.int64),
        "weights": np.round(random.normal(size=(LOOKED_AT, SCORES)), 4).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["INPUT__0"], ["flat"], axis=1),
            helper.make_node("Gather", ["flat", "places"], ["values"], axis=1),
            helper.make_node("MatMul", ["values", "weights"], ["OUTPUT__0"]),
        ],
        "bench",
        [helper.make_tensor_value_info("INPUT__0", TensorProto.FLOAT, ["batch", *PICTURE])],
        [helper.make_tensor_value_info("OUTPUT__0", TensorProto.FLOAT, ["batch", SCORES])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="npufleet")
    onnx.checker.check_model(model)
    return model.SerializeToString()
