"""Every example repository of the documents that this project starts from, in our own words: what is right is clean, what is
wrong on an NPU host, or as it was written, is found. And our own models are clean for every release."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from helpers import ROOT
from linting import PYTHON, findings, short

ROWS = yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"]
OURS = ("model_repository", "tests/bench/models", "molecule/serving/models")


def tensor(name: str, dtype: str, *dims: int, more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{dtype} dims: [ {", ".join(map(str, dims))} ] {more} }}'


def config(name: str, backend: str, largest: int, inputs: list[str], outputs: list[str], more: str = "") -> str:
    kind, value = backend.split("=")
    return (
        f'name: "{name}"\n{kind}: "{value}"\nmax_batch_size: {largest}\n'
        f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n{more}\n"
    )


def guide(count: int, largest: int) -> dict[str, str]:
    """The vendor's ResNet-50: one NPU, several of them, or a file compiled for batches up to `largest`."""
    picture, scores = tensor("INPUT__0", "FP32", 3, 224, 224), tensor("OUTPUT__0", "FP32", 1000)
    group = f"instance_group [ {{ count: {count} # of instances\n kind: KIND_MODEL }} ]"
    return {
        "resnet50/config.pbtxt": config("resnet50", "backend=python", largest, [picture], [scores], group),
        "resnet50/1/model.py": PYTHON,
        "resnet50/1/resnet50.rbln": "compiled",
    }


def texts(count: int, more: str = "") -> str:
    """Texts in and out, without batches."""
    names = [""] if count == 1 else [f"_{number + 1}" for number in range(count)]
    return config(
        "texts",
        "backend=python",
        0,
        [tensor("TEXT" + name, "STRING", -1) for name in names],
        [tensor("RESULT" + name, "STRING", -1) for name in names[:2]],
        more,
    )


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [("input_map", inputs), ("output_map", outputs)]
    lines = [f'{kind} {{ key: "{key}" value: "{value}" }}' for kind, tensors in maps for key, value in tensors.items()]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(lines)} }}'


CPU = "instance_group [{ kind: KIND_CPU }]"
PLACES = {
    "preprocess/config.pbtxt": config(
        "preprocess",
        "backend=python",
        100,
        [tensor("pre_input", "FP32", -1, -1, -1)],
        [tensor("pre_output", "FP32", 3, 256, 256)],
        CPU,
    ),
    "preprocess/1/model.py": PYTHON,
    "classification_places/config.pbtxt": config(
        "classification_places",
        "platform=tensorrt_plan",
        100,
        [tensor("input_0", "FP32", 3, 256, 256, more="format: FORMAT_NCHW")],
        [tensor("output_0", "FP32", 365)],
        "dynamic_batching { }",
    ),
    "classification_places/1/model.plan": "engine",
    "postprocess/config.pbtxt": config(
        "postprocess", "backend=python", 100, [tensor("post_input", "FP32", 365)], [tensor("post_output", "FP32", -1)], CPU
    ),
    "postprocess/1/model.py": PYTHON,
    "places_ensemble/config.pbtxt": config(
        "places_ensemble",
        "platform=ensemble",
        100,
        [tensor("INPUT", "FP32", -1, -1, -1)],
        [tensor("postprocess_result", "FP32", -1)],
        "ensemble_scheduling { step [ "
        + ", ".join(
            [
                step("preprocess", {"pre_input": "INPUT"}, {"pre_output": "preprocessed_image"}),
                step("classification_places", {"input_0": "preprocessed_image"}, {"output_0": "classification_result"}),
                step("postprocess", {"post_input": "classification_result"}, {"post_output": "postprocess_result"}),
            ]
        )
        + " ] }",
    ),
    "places_ensemble/1/README": "A version for Triton\n",
}
DALI = {
    "dali/config.pbtxt": config(
        "dali", "backend=dali", 256, [tensor("DALI_INPUT_0", "UINT8", -1)], [tensor("DALI_OUTPUT_0", "FP32", 3, 224, 224)]
    ),
    "dali/1/model.dali": "pipeline",
    "resnet50_trt/config.pbtxt": config(
        "resnet50_trt",
        "platform=tensorrt_plan",
        256,
        [tensor("input", "FP32", 3, -1, -1)],
        [tensor("output", "FP32", 1000, more='label_filename: "labels.txt"')],
    ),
    "resnet50_trt/1/model.plan": "engine",
    "resnet50_trt/labels.txt": "label\n" * 1000,
    "ensemble_dali_resnet50/config.pbtxt": config(
        "ensemble_dali_resnet50",
        "platform=ensemble",
        256,
        [tensor("INPUT", "UINT8", -1)],
        [tensor("OUTPUT", "FP32", 1000)],
        "ensemble_scheduling { step [ "
        + ", ".join(
            [
                step("dali", {"DALI_INPUT_0": "INPUT"}, {"DALI_OUTPUT_0": "preprocessed_image"}),
                step("resnet50_trt", {"input": "preprocessed_image"}, {"output": "OUTPUT"}),
            ]
        )
        + " ] }",
    ),
    "ensemble_dali_resnet50/1/": "",
}
NETWORK = ([tensor("x", "FP32", 4)], [tensor("y", "FP32", 4)])
SEEDS: dict[str, tuple[dict[str, str], list[str]]] = {
    "the guide, one NPU": (guide(1, 1), []),
    "the guide, two NPUs": (guide(2, 1), []),
    "the guide, batches": (guide(1, 4), []),
    "a model of two versions, and one that says little": (
        {
            "one/config.pbtxt": 'backend:"python"',
            "one/1/model.py": PYTHON,
            "two/config.pbtxt": 'backend:"python"',
            "two/1/model.py": PYTHON,
            "two/2/model.py": PYTHON,
        },
        [],
    ),
    "texts": ({"texts/config.pbtxt": texts(1), "texts/1/model.py": PYTHON}, []),
    "three texts": ({"texts/config.pbtxt": texts(3), "texts/1/model.py": PYTHON}, []),
    "texts with parameters and pinned memory": (
        {
            "texts/config.pbtxt": texts(
                1,
                'instance_group [ { count: 1 kind: KIND_CPU } ] parameters { key: "infer_timeout" value: { string_value: "5000" } }'
                " optimization { input_pinned_memory: { enable: true } }",
            ),
            "texts/1/model.py": PYTHON,
        },
        [],
    ),
    "a layout with labels and variants": (
        {
            "m/config.pbtxt": config(
                "m", "backend=python", 0, [tensor("x", "FP32", 4)], [tensor("y", "FP32", 2, more='label_filename: "l"')]
            ),
            "m/l": "yes\nno\n",
            "m/configs/small.pbtxt": config("m", "backend=python", 0, *NETWORK),
            "m/1/model.py": PYTHON,
        },
        [],
    ),
    "TensorRT": (
        {"m/config.pbtxt": config("m", "platform=tensorrt_plan", 8, *NETWORK), "m/1/model.plan": "engine"},
        ["error npu host: m/config.pbtxt platform"],
    ),
    "ONNX": ({"m/config.pbtxt": config("m", "platform=onnxruntime_onnx", 8, *NETWORK), "m/1/model.onnx": "graph"}, []),
    "ONNX of several files": (
        {
            "m/config.pbtxt": config("m", "platform=onnxruntime_onnx", 8, *NETWORK),
            "m/1/model.onnx/model.onnx": "graph",
            "m/1/model.onnx/weights": "numbers",
        },
        [],
    ),
    "TorchScript": ({"m/config.pbtxt": config("m", "platform=pytorch_libtorch", 8, *NETWORK), "m/1/model.pt": "script"}, []),
    "places: preprocess, model, postprocess": (
        PLACES,
        [
            "error npu host: classification_places/config.pbtxt platform",
            "error ensemble: places_ensemble/config.pbtxt ensemble_scheduling.step[1].model_name",
        ],
    ),
    "two inputs and a model_path": (
        {
            "m/config.pbtxt": config(
                "m",
                "backend=python",
                0,
                [tensor("INPUT0", "FP32", -1), tensor("INPUT1", "FP32", -1)],
                [tensor("OUTPUT0", "FP32", -1)],
                'parameters { key: "model_path" value { string_value: "/models/m" } }',
            ),
            "m/1/model.py": PYTHON,
        },
        [],
    ),
    "DALI and a classifier, whose ensemble's version git drops": (
        DALI,
        [
            "warning files: ensemble_dali_resnet50/1",
            "error npu host: resnet50_trt/config.pbtxt platform",
            "error ensemble: ensemble_dali_resnet50/config.pbtxt ensemble_scheduling.step[1].model_name",
        ],
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_an_example(name: str, tmp_path: Path) -> None:
    files, expected = SEEDS[name]
    assert short(findings(tmp_path, files), tmp_path) == expected


@pytest.mark.parametrize("release", [None, *ROWS])
def test_our_own_models_are_clean(release: str | None, tmp_path: Path) -> None:
    repositories = []
    for place in OURS:
        # Other tests may have left bytecode in the checkout.
        repositories.append(str(tmp_path / place))
        shutil.copytree(ROOT / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    row = Row(release, ROWS[release]["triton"]["version"]) if release else None
    linted = lint(repositories, row=row)
    assert linted.findings == []
    assert {"digits", "image_classifier", "naive", "types"} <= set(linted.models)
