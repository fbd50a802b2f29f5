"""Backends, by release: what NVIDIA's images have, and how Triton finds out the backend of a model.

From triton-inference-server/core (constants.h and AutoCompleteBackendFields of model_config_utils.cc) and from `all_backends` in
build.py of triton-inference-server/server, both of branches r24.01 to r26.07.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, NamedTuple, Tuple

ENSEMBLE = "ensemble"
PROGRAM = "model.py"
# Triton's version at which a change came: (2, 56) is 25.03, (2, 67) is 26.03, (2, 68) is 26.04
NO_TENSORFLOW, TORCH_AOTI, LIBTORCH = (2, 56), (2, 67), (2, 68)
NEWEST = (999, 0)


class Backend(NamedTuple):
    """One backend: the file that it reads where the config names none, and what it is.

    `runtimes` are the files that can be the backend; the first one is taken where the config names none. `completes` tells whether
    it adds to the config what its model file says.
    """

    file: str = ""
    runtimes: Tuple[str, ...] = ()
    completes: bool = False


def _library(name: str, file: str = "", completes: bool = False, *more: str) -> Tuple[str, Backend]:
    return name, Backend(file, (f"libtriton_{name}.so", *more), completes)


# Of NVIDIA's images and ours. A Python program completes the config if it has auto_complete_config, of which python_model.py knows.
ALL: Dict[str, Backend] = dict(
    (
        _library("python", PROGRAM),
        _library("onnxruntime", "model.onnx", True),
        _library("pytorch", "model.pt", False, PROGRAM),
        _library("tensorrt", "model.plan", True),
        _library("tensorflow", "model.savedmodel", True),
        _library("openvino", "model.xml", True),
        _library("dali", "model.dali", True),
        _library("fil"),
        _library("tensorrtllm", "", False, PROGRAM),
        _library("identity"),
        _library("repeat"),
        _library("square"),
        ("rbln", Backend("model.rbln", (PROGRAM,))),
        ("vllm", Backend("model.json", (PROGRAM,), True)),
    )
)


class Identity(NamedTuple):
    """What Triton makes of a model's backend, platform and file name; each may be ""."""

    backend: str
    platform: str
    file: str


def version_of(triton: str) -> Tuple[int, ...]:
    """Return a Triton's version as one that can be compared; NEWEST for ""."""
    return tuple(int(part) for part in triton.split(".")[:2]) if triton else NEWEST


def known(triton: str) -> Tuple[str, ...]:
    """Return the names of the backends that an image of this Triton may have; "" is any Triton."""
    gone = ("tensorflow",) if triton and version_of(triton) >= NO_TENSORFLOW else ()
    return tuple(name for name in ALL if name not in gone)


def platforms(triton: str) -> Dict[str, str]:
    """Return {platform: backend} of the platforms that this Triton knows."""
    found = {
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "tensorrt_plan": "tensorrt",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
    }
    for platform, since in (("torch_aoti", TORCH_AOTI), ("libtorch", LIBTORCH)):
        if version_of(triton) >= since:
            found[platform] = "pytorch"
    return found


def identify(config: Any, name: str, names: Collection[str], is_directory: Callable[[str], bool], triton: str) -> Identity:
    """Return what Triton completes of a config.

    `names` are those in the first directory of the model by name, which need not be a version. `name` is the model's.
    """
    backend, platform, file = config.backend, config.platform, config.default_model_filename
    blank = not (backend or platform or file)
    there = {entry: is_directory(entry) for entry in names}
    if not platform and backend in ("", "tensorflow"):
        if file in ("model.savedmodel", "model.graphdef"):
            platform = "tensorflow_" + file.partition(".")[2]
        elif not file:
            platform = "tensorflow_savedmodel" if there.get("model.savedmodel") else platform
            platform = "tensorflow_graphdef" if there.get("model.graphdef") is False else platform
    if platform in ("tensorflow_savedmodel", "tensorflow_graphdef"):
        return Identity(backend or "tensorflow", platform, file or "model." + platform.partition("_")[2])
    aoti = version_of(triton) >= TORCH_AOTI
    # (file, backend, whether it may be a directory), in the order in which Triton looks
    order = [("model.plan", "tensorrt", False), ("model.onnx", "onnxruntime", True), ("model.xml", "openvino", True)]
    order += [("model.pt", "pytorch", False)] + [("model.pt2", "pytorch", False)] * aoti + [(PROGRAM, "python", True)]
    if not backend:
        backend = platforms(triton).get(platform, "")
        for entry, owner, any_kind in order:
            found = entry in there and (any_kind or not there[entry])
            if not backend and (file == entry or (blank and found)):
                backend = owner
                platform = "torch_aoti" if entry == "model.pt2" and blank else platform
    if not backend and blank:
        # Any other backend, by the name of the model
        backend = name.partition(".")[2]
        return Identity(backend, "", f"model.{backend}" if backend else "")
    completed = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
    platform = platform or completed.get(backend, "")
    if not file:
        file = ALL[backend].file if backend in ("tensorrt", "onnxruntime", "openvino", "pytorch", "python") else ""
        if backend == "pytorch":
            file = "model.pt2" if platform == "torch_aoti" else "" if config.runtime == PROGRAM else file
    return Identity(backend, platform, file)
