"""A model of Triton's python backend that runs a compiled file, with one instance on each NPU, as in the vendor's guide."""

import os
from typing import Any, Dict, List

import rebel
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An instance of the model. The index of the instance selects its NPU."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the compiled file. The name of the instance ends with its index."""
        index = int(args["model_instance_name"].rsplit("_", 1)[-1])
        path = os.path.join(args["model_repository"], args["model_version"], "model.rbln")
        self.runtime = rebel.Runtime(path, device=index % max(rebel.device_count(), 1))

    def execute(self, requests: List[Any]) -> List[Any]:
        """Run one request after the other, because the runtime uses the first compiled batch size, which is 1.

        A request that fails does not affect the others.
        """
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy()
            try:
                scores = pb_utils.Tensor("OUTPUT__0", self.runtime.run(image))
                response = pb_utils.InferenceResponse(output_tensors=[scores])
            except RuntimeError as error:
                response = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"digits_guide: {error}"))
            responses.append(response)
        return responses

    def finalize(self) -> None:
        """Release the NPU."""
        self.runtime = None
