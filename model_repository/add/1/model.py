"""An example of the python backend that needs no compiled file: OUTPUT0 = (INPUT0 + INPUT1 + bias) * scale."""

import json
import math
import os
from typing import Any, Dict, List

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An instance of the model. The `parameters` in config.pbtxt configure it."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Read the parameters. Raises TritonModelException with all errors, so that a model with errors is not loaded."""
        self.name = args["model_name"]
        config = json.loads(args["model_config"])
        parameters = {key: value.get("string_value", "") for key, value in (config.get("parameters") or {}).items()}
        reasons: List[str] = []
        self.scale = self._number("scale", parameters.get("scale", "1"), reasons)
        self.bias = 0.0
        path = parameters.get("model_path", "")
        if path:
            self.bias = self._bias(os.path.join(args["model_repository"], args["model_version"]), path, reasons)
        if reasons:
            raise pb_utils.TritonModelException(f"model {self.name}: " + "; ".join(reasons))
        kind = next(output["data_type"] for output in config["output"] if output["name"] == "OUTPUT0")
        self.dtype = pb_utils.triton_string_to_numpy(kind)
        pb_utils.Logger.log_info(f"model {self.name}: bias {self.bias}, scale {self.scale}")

    @staticmethod
    def _number(name: str, value: Any, reasons: List[str]) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            reasons.append(f"{name} is {value!r}, expected a number")
        return number

    def _bias(self, directory: str, path: str, reasons: List[str]) -> float:
        """Return the bias from a file of the version directory, or NaN. Add a reason for a wrong path or content."""
        full = os.path.normpath(os.path.join(directory, path))
        if not full.startswith(os.path.normpath(directory) + os.sep):
            reasons.append(f"model_path is {path!r}, expected a file of the version directory")
            return math.nan
        try:
            with open(full, encoding="utf-8") as source:
                value = json.load(source)["bias"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"model_path {path!r} cannot be read ({type(error).__name__}), expected JSON with a `bias`")
            return math.nan
        return self._number("bias", value, reasons)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return a response for each request in its order. An invalid request does not affect the others."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        first, second = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
        if first.shape != second.shape:
            message = f"{self.name}: INPUT0 has shape {list(first.shape)} and INPUT1 {list(second.shape)}, expected equal ones"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
        result = ((first + second + self.bias) * self.scale).astype(self.dtype)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", result)])

    def finalize(self) -> None:
        """Log the unload."""
        pb_utils.Logger.log_info(f"model {self.name}: unloaded")
