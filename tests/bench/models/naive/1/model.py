"""The baseline: a simple model.py, as a first version would be.

It joins the tensors one by one, waits for the run, and splits and copies the answers.
"""

import os

import numpy as np
import rebel
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An instance on NPU 0. The compiled file has the batch sizes 1 to 4."""

    def initialize(self, args):
        """Create a runtime for each batch size."""
        compiled = rebel.RBLNCompiledModel(os.path.join(args["model_repository"], args["model_version"], "model.rbln"))
        self.runtimes = [compiled.create_runtime(input_info_index=index) for index in range(4)]

    def execute(self, requests):
        """Join the requests, run the batch, and split the answer."""
        rows = []
        batch = None
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy()
            rows.append(len(tensor))
            batch = tensor if batch is None else np.concatenate((batch, tensor))
        scores = self.runtimes[len(batch) - 1](batch)
        parts = np.split(scores, np.cumsum(rows)[:-1])
        return [
            pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT__0", part.astype(np.float32))]) for part in parts
        ]
