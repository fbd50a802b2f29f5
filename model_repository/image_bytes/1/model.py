"""The first step of `image_classifier_uint8`: turns each row of bytes into one element of BYTES."""

import json
from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An instance of the model. The `parameters` in config.pbtxt configure it."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Read the parameter `max_bytes`. Raises TritonModelException if it is not a number."""
        self.name = args["model_name"]
        limit = json.loads(args["model_config"])["parameters"]["max_bytes"].get("string_value", "")
        if not (limit.isascii() and limit.isdigit() and int(limit)):
            raise pb_utils.TritonModelException(f"model {self.name}: max_bytes is {limit!r}, expected a whole number above 0")
        self.max_bytes = int(limit)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return a response for each request in its order."""
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()) for request in requests]

    def _answer(self, rows: np.ndarray) -> Any:
        """Return the rows, uint8 [n, length], as BYTES [n, 1]."""
        if rows.shape[1] > self.max_bytes:
            message = f"{self.name}: the image has {rows.shape[1]} bytes, expected at most {self.max_bytes}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
        encoded = np.empty((len(rows), 1), np.object_)
        for number, row in enumerate(rows):
            encoded[number, 0] = row.tobytes()
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("ENCODED", encoded)])
