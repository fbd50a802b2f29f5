"""ResNet-50 in Triton's python backend, with one instance on each NPU and dynamic batching, as in the vendor's guide."""

import json
import os
from typing import Any, Dict, List

import numpy as np
import rebel
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An instance of the model. The index of the instance selects its NPU."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the compiled file. The name of the instance ends with its index.

        From SDK 0.11 on, one runtime serves all batch sizes. In older SDKs, each batch size needs its own runtime.
        """
        config = json.loads(args["model_config"])
        self.name, largest = args["model_name"], int(config["max_batch_size"])
        batches = _numbers(config, "batches")
        if max(batches) < largest:
            raise pb_utils.TritonModelException(
                f"model {self.name}: max_batch_size is {largest}, expected at most {max(batches)}, the largest of `batches`"
            )
        npus = _numbers(config, "npus") or list(range(rebel.device_count())) or [0]
        device = npus[int(args["model_instance_name"].rsplit("_", 1)[-1]) % len(npus)]
        compiled = rebel.RBLNCompiledModel(os.path.join(args["model_repository"], args["model_version"], "model.rbln"))
        if [int(part) for part in rebel.__version__.split(".")[:2]] >= [0, 11]:
            self.runtimes = dict.fromkeys(batches, compiled.create_runtime(tensor_type="np", device=device))
        else:
            self.runtimes = {
                size: compiled.create_runtime(input_info_index=index, tensor_type="np", device=device)
                for index, size in enumerate(batches)
            }

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return a response for each request in its order. Triton joins requests of at most max_batch_size rows."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy() for request in requests]
        ends = np.cumsum([len(rows) for rows in inputs])
        try:
            scores = self.run(np.concatenate(inputs) if len(inputs) > 1 else inputs[0])
        except RuntimeError as error:
            text = f"{self.name}: {error}"
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text)) for _request in requests]
        parts = np.split(scores, ends[:-1])
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT__0", part)]) for part in parts]

    def run(self, rows: np.ndarray) -> np.ndarray:
        """Return scores [n, 1000] for rows [n, 3, 224, 224]. The rows are padded to the next compiled batch size."""
        size = min(size for size in self.runtimes if size >= len(rows))
        padding = np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)
        return self.runtimes[size].run(np.concatenate([rows, padding]) if len(padding) else np.ascontiguousarray(rows))[: len(rows)]

    def finalize(self) -> None:
        """Release the NPU."""
        self.runtimes.clear()


def _numbers(config: Dict[str, Any], name: str) -> List[int]:
    """Return the numbers of a parameter such as "1,2,3,4". Without the parameter, the list is empty."""
    text = config["parameters"].get(name, {}).get("string_value", "")
    return [int(number) for number in text.split(",") if number]
