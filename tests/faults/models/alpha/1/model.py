"""A model that doubles its input and returns its edition. The tests put faults into copies of this file."""

import threading
from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils

EDITION = 1
# A request with this number is never answered.
HANGS = -1000


class TritonPythonModel:
    """Y = 2 X."""

    def initialize(self, args: Dict[str, str]) -> None:
        """There is nothing to load."""

    def execute(self, requests: List[Any]) -> List[Any]:
        """Answer each request separately."""
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if (x == HANGS).any():
                threading.Event().wait()
            y = x * 2
            edition = np.full(x.shape, EDITION, np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y), pb_utils.Tensor("EDITION", edition)]))
        return responses
