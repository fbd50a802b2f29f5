"""The last step of `image_classifier`: turns scores into probabilities and labels."""

import json
import os
from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An instance of the model. The label file of the output PROBABILITIES in config.pbtxt has one label on each line."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Read the labels. Raises TritonModelException if the number of labels is not the number of classes."""
        config = json.loads(args["model_config"])
        outputs = {output["name"]: output for output in config["output"]}
        classes, self.top = (int(outputs[name]["dims"][0]) for name in ("PROBABILITIES", "LABELS"))
        file = outputs["PROBABILITIES"]["label_filename"]
        with open(os.path.join(args["model_repository"], file), encoding="utf-8") as source:
            self.labels = np.array(source.read().splitlines(), np.object_)
        if len(self.labels) != classes or self.top > classes:
            raise pb_utils.TritonModelException(
                f"model {args['model_name']}: {file} has {len(self.labels)} lines and LABELS {self.top}, "
                f"expected {classes} lines and at most as many LABELS"
            )

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return a response for each request in its order."""
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()) for request in requests]

    def _answer(self, scores: np.ndarray) -> Any:
        """Return the softmax and the best labels of scores [n, classes]."""
        # Without the subtraction, `exp` could overflow.
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.top]
        outputs = {"PROBABILITIES": powers / powers.sum(axis=1, keepdims=True), "LABELS": self.labels[best]}
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, array) for name, array in outputs.items()])
