# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Backends of NVIDIA's images by release, and Triton's rules to find the backend of a config that names no backend.

Sources: constants.h and AutoCompleteBackendFields (model_config_utils.cc) of triton-inference-server/core, and `all_backends`
(build.py) of triton-inference-server/server, in branches r24.01 to r26.07.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, NamedTuple, Tuple

ENSEMBLE = "ensemble"
MODEL_PY = "model.py"
# The Triton versions that changed backends or platforms: (2, 56) is 25.03, (2, 67) is 26.03, (2, 68) is 26.04
NO_TENSORFLOW, TORCH_AOTI, LIBTORCH = (2, 56), (2, 67), (2, 68)
NEWEST = (999, 0)  # Newer than every version


class Backend(NamedTuple):
    """A backend: its default model file, and the files that can implement the backend. The first of these files is the default.

    `completes` is True if the backend adds the inputs and outputs of the model file to the config.
    """

    file: str = ""
    runtimes: Tuple[str, ...] = ()
    completes: bool = False


def _library(name: str, file: str = "", completes: bool = False, *more: str) -> Tuple[str, Backend]:
    return name, Backend(file, (f"libtriton_{name}.so", *more), completes)


# The backends of NVIDIA's images and of this project. For `python`, `completes` is False, because each model.py decides this.
ALL_BACKENDS: Dict[str, Backend] = dict(
    (
        _library("python", MODEL_PY),
        _library("onnxruntime", "model.onnx", True),
        _library("pytorch", "model.pt", False, MODEL_PY),
        _library("tensorrt", "model.plan", True),
        _library("tensorflow", "model.savedmodel", True),
        _library("openvino", "model.xml", True),
        _library("dali", "model.dali", True),
        _library("fil"),
        _library("tensorrtllm", "", False, MODEL_PY),
        _library("identity"),
        _library("repeat"),
        _library("square"),
        ("rbln", Backend("model.rbln", (MODEL_PY,))),
        ("vllm", Backend("model.json", (MODEL_PY,), True)),
    )
)


class Identity(NamedTuple):
    """The backend, platform and file name of a model after Triton has completed the config. Each can be ""."""

    backend: str
    platform: str
    file: str


def triton_version(triton: str) -> Tuple[int, ...]:
    """Return a version of Triton as numbers that can be compared, or NEWEST for ""."""
    return tuple(int(part) for part in triton.split(".")[:3]) if triton else NEWEST


def image_backends(triton: str) -> Tuple[str, ...]:
    """Return the names of the backends in images of this Triton version. If it is "", return the names for all versions."""
    removed = ("tensorflow",) if triton and triton_version(triton) >= NO_TENSORFLOW else ()
    return tuple(name for name in ALL_BACKENDS if name not in removed)


def platforms(triton: str) -> Dict[str, str]:
    """Return {platform: backend} for the platforms that this Triton version knows."""
    by_platform = {
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "tensorrt_plan": "tensorrt",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
    }
    for platform, since in (("torch_aoti", TORCH_AOTI), ("libtorch", LIBTORCH)):
        if triton_version(triton) >= since:
            by_platform[platform] = "pytorch"
    return by_platform


def identify(config: Any, name: str, names: Collection[str], subdirectories: Collection[str], triton: str) -> Identity:
    """Return backend, platform and name of the model file. Triton derives those that the config leaves out.

    `name` is the name of the model. `names` are the entries of its first subdirectory by name, which can also be no version.
    `subdirectories` are the directories among these entries.
    """
    backend, platform, file = config.backend, config.platform, config.default_model_filename
    blank = not (backend or platform or file)
    if not platform and backend in ("", "tensorflow"):
        if file in ("model.savedmodel", "model.graphdef"):
            platform = "tensorflow_" + file.partition(".")[2]
        elif not file:
            platform = "tensorflow_savedmodel" if "model.savedmodel" in subdirectories else platform
            platform = "tensorflow_graphdef" if "model.graphdef" in set(names) - set(subdirectories) else platform
    if platform in ("tensorflow_savedmodel", "tensorflow_graphdef"):
        return Identity(backend or "tensorflow", platform, file or "model." + platform.partition("_")[2])
    aoti = triton_version(triton) >= TORCH_AOTI
    # (file, backend, whether the file can be a directory), in the order in which Triton looks for the files
    candidates = [("model.plan", "tensorrt", False), ("model.onnx", "onnxruntime", True), ("model.xml", "openvino", True)]
    candidates += [("model.pt", "pytorch", False)] + [("model.pt2", "pytorch", False)] * aoti + [(MODEL_PY, "python", True)]
    if not backend:
        backend = platforms(triton).get(platform, "")
        for entry, owner, any_kind in candidates:
            exists = entry in names and (any_kind or entry not in subdirectories)
            if not backend and (file == entry or (blank and exists)):
                backend = owner
                platform = "torch_aoti" if entry == "model.pt2" and blank else platform
    if not backend and blank:
        # Triton takes the text after the first dot of the model's name as the name of the backend.
        backend = name.partition(".")[2]
        return Identity(backend, "", f"model.{backend}" if backend else "")
    default_platforms = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
    platform = platform or default_platforms.get(backend, "")
    if not file:
        file = ALL_BACKENDS[backend].file if backend in ("tensorrt", "onnxruntime", "openvino", "pytorch", "python") else ""
        if backend == "pytorch":
            file = "model.pt2" if platform == "torch_aoti" else "" if config.runtime == MODEL_PY else file
    return Identity(backend, platform, file)
