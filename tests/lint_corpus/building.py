"""Builders for the cases: files of several kinds, tensors, configs and their parts as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Union


class Link(NamedTuple):
    """A symbolic link."""

    target: str


class Pipe(NamedTuple):
    """A named pipe without a writer."""

    kind: str = "pipe"


class Library(NamedTuple):
    """The library of a backend. ask.py builds the library."""

    kind: str = "library"


Content = Union[str, bytes, Link, Pipe, Library]
Files = Mapping[str, Content]
PROGRAM = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
# A program with responses, for models with warm-up requests
ANSWERS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for one in requests]
"""


def subject(files: Files) -> str:
    """Return the model whose verdict is recorded for a case: `m`, or the first model if there is no `m`."""
    models = [path.partition("/")[0] for path in files]
    return "m" if "m" in models else models[0]


def tensor(name: str, dims: str = "3", dtype: str = "FP32", more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] {more} }}'


def config(more: str = "", a: str = tensor("A"), b: str = tensor("B"), batch: str = "4", head: str = 'backend: "python"') -> str:
    return f"{head}\nmax_batch_size: {batch}\ninput [ {a} ]\noutput [ {b} ]\n{more}\n"


def model(text: str | bytes, **files: Content) -> Files:
    """Return the files of a Python model `m` with this config."""
    warmed = "model_warmup" in (text if isinstance(text, str) else "")
    return {
        "m/config.pbtxt": text,
        "m/1/model.py": ANSWERS if warmed else PROGRAM,
        **{f"m/{path}": content for path, content in files.items()},
    }


def more(rule: str, *texts: str) -> Iterator[tuple[str, Files]]:
    """Yield a case for each text: a valid config with this text added."""
    yield from ((rule, model(config(text))) for text in texts)


def control(inner: str) -> str:
    return f'sequence_batching {{ control_input {{ name: "S" control {{ kind: {inner} }} }} }}'


def state(inner: str, dims: str = "2", name: str = 'name: "f"', dtype: str = "FP32", of: str = "2") -> str:
    first = f"initial_state {{ {name} data_type: TYPE_{dtype} dims: [ {dims} ] {inner} }}"
    return f'sequence_batching {{ state {{ input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: [ {of} ] {first} }} }}'


def sample(kind: str, dims: str = "3", dtype: str = "FP32", name: str = "A") -> str:
    return f'inputs {{ key: "{name}" value {{ data_type: TYPE_{dtype} dims: [ {dims} ] {kind} }} }}'


def warm(inputs: str, size: int = 1) -> str:
    return f'model_warmup {{ name: "w" batch_size: {size} {inputs or sample("zero_data: true")} }}'
