"""The floor: what Triton, its python backend and the client cost by themselves.

Reads every byte of its input once, answers always the same.

With the parameter `wait_ms` it waits as long as an NPU would, in the way of the stand-in SDK: then the client, the server and this
process sleep in the meantime, and have to be woken, as they do when there is an NPU.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from rebel._device import wait_until


class TritonPythonModel:
    """No NPU, no network."""

    def initialize(self, args):
        """What to wait, in ns, and where to read the input into, as a model must that hands it to a device."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self.wait = int(float(parameters.get("wait_ms", {"string_value": "0"})["string_value"]) * 1e6)
        self.read = np.zeros((4, 3, 224, 224), np.float32)

    def execute(self, requests):
        """Scores [rows, 1000] of zeros for each request."""
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy()
            self.read[: len(tensor)] = tensor
            scores = np.zeros((len(tensor), 1000), np.float32)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT__0", scores)]))
        if self.wait:
            wait_until(time.monotonic_ns() + self.wait)
        return responses
