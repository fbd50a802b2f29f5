"""The first step of `image_classifier`: turns encoded images into normalised pictures."""

import json
import math
from typing import Any, Dict, List, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

try:
    from preprocess import ImageError, Settings, pixels
except ImportError as error:
    # Triton's base image lacks Pillow. The image of npufleet contains it.
    raise pb_utils.TritonModelException(f"model image_decode needs Pillow in the image: {error}") from None


class TritonPythonModel:
    """An instance of the model. The `parameters` and the `dims` of the output in config.pbtxt configure it."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Read the parameters. Raises TritonModelException with all errors."""
        self.name = args["model_name"]
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in (config.get("parameters") or {}).items()}
        default, reasons = Settings(), []
        dims = [int(size) for size in config["output"][0]["dims"]]
        if len(dims) != 3 or dims[0] != 3 or min(dims) < 1:
            reasons.append(f"output {config['output'][0]['name']} has dims {dims}, expected 3, height, width")
            dims = [3, *default.crop]
        resize = _numbers("resize", parameters, [default.resize], reasons)
        limits = {name: _numbers(name, parameters, [getattr(default, name)], reasons)[0] for name in ("max_pixels", "max_bytes")}
        mean = _numbers("mean", parameters, default.mean, reasons)
        std = _numbers("std", parameters, default.std, reasons)
        if resize[0] < max(dims[1:]) or resize[0] % 1:
            reasons.append(
                f"resize is {resize[0]:g}, expected a whole number of at least {max(dims[1:])}, the side that is cut out"
            )
        reasons += [f"{name} is {limit:g}, expected at least 1" for name, limit in limits.items() if limit < 1]
        if min(std) <= 0:
            reasons.append(f"std is {parameters['std']!r}, expected numbers above 0")
        if reasons:
            raise pb_utils.TritonModelException(f"model {self.name}: " + "; ".join(reasons))
        self.settings = Settings(int(resize[0]), (dims[1], dims[2]), mean, std, *map(int, limits.values()))

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return a response for each request in its order. A broken image does not affect other requests."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        images = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)
        pictures = np.empty((len(images), 3, *self.settings.crop), np.float32)
        for number, encoded in enumerate(images):
            try:
                pictures[number] = pixels(encoded, self.settings)
            except ImageError as error:
                which = f"image {number + 1} of {len(images)}" if len(images) > 1 else "the image"
                refusal = pb_utils.TritonError(f"{self.name}: {which} {error}", pb_utils.TritonError.INVALID_ARG)
                return pb_utils.InferenceResponse(error=refusal)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("PIXELS", pictures)])


def _numbers(name: str, parameters: Dict[str, str], default: Any, reasons: List[str]) -> Tuple[float, ...]:
    """Return the numbers of a parameter such as "0.485,0.456,0.406", or `default`.

    Add a reason if the parameter has not as many finite numbers as `default`.
    """
    try:
        values = tuple(float(number) for number in parameters[name].split(",")) if name in parameters else tuple(default)
    except ValueError:
        values = ()
    if len(values) != len(default) or not all(math.isfinite(number) for number in values):
        reasons.append(f"{name} is {parameters[name]!r}, expected {'a number' if len(default) == 1 else f'{len(default)} numbers'}")
        return tuple(default)
    return values
