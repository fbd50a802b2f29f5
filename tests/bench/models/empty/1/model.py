"""A model without an NPU, which shows the cost of Triton, its python backend and the client alone.

The model reads every byte of its input once, and always gives the same answer.

With the parameter `wait_ms`, the model waits as long as an NPU would compute, in the same way as the stand-in SDK. Then the client,
the server and this process sleep meanwhile and have to be woken, as they have to be with an NPU.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from rebel._device import wait_until


class TritonPythonModel:
    """A model without an NPU and without a network."""

    def initialize(self, args):
        """Read the time to wait, in ns, and create the buffer for the input, which a model with a device also needs."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self.wait = int(float(parameters.get("wait_ms", {"string_value": "0"})["string_value"]) * 1e6)
        self.read = np.zeros((4, 3, 224, 224), np.float32)

    def execute(self, requests):
        """Return scores [rows, 1000] of zeros for each request."""
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy()
            self.read[: len(tensor)] = tensor
            scores = np.zeros((len(tensor), 1000), np.float32)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT__0", scores)]))
        if self.wait:
            wait_until(time.monotonic_ns() + self.wait)
        return responses
