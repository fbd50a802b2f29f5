"""Tests of the linter against real Triton servers, 24.01 and 24.10: a model loads if, and only if, the linter reports no error."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import test_lint
import test_lint_ensemble as ensembles
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from conftest import ROOT
from linting import GOOD, write
from pytriton_wheel import tritonserver

# {release of Triton: (version of Triton, version of the wheel nvidia-pytriton that contains it)}
RELEASES = {"24.01": ("2.42.0", "0.5.1"), "24.10": ("2.51.0", "0.7.0")}
BUILD = ROOT / "build/heavy"
MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "A").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", one)]) for one in inputs]
"""
# The linter's error for an ensemble that loads, but whose requests never end, because a step overwrites its own input
ENDLESS = "A, which is the ensemble's input already"


def parameters(test: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a parametrized test."""
    return [tuple(row) for mark in test.pytestmark if mark.name == "parametrize" for row in mark.args[1]]


def configs() -> Iterator[str]:
    """Yield texts of config.pbtxt for a model with a model.py."""
    yield from (row[0] for row in parameters(test_lint.test_what_is_refused))
    yield from (row[0] for row in parameters(test_lint.test_field_that_this_release_does_not_know))
    yield from (
        GOOD + more
        for more in (
            "",
            "version_policy { latest { } }",
            "instance_group { kind: KIND_GPU }",
            "instance_group { gpus: 0 }",
            "response_cache { enable: true }",
            'cc_model_filenames { key: "8.0" value: "x.py" }',
            'model_warmup { name: "w" inputs { key: "C" value { zero_data: true } } }',
        )
    )
    yield GOOD.replace("max_batch_size: 4", "max_batch_size: 0") + "dynamic_batching { }"
    yield GOOD.replace("input [ ", f"input [ {test_lint.A}, ")


def chains() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (config.pbtxt of an ensemble, {step: its config.pbtxt, if it is not GOOD})."""
    chain, ensemble = ensembles.CHAIN, ensembles.ensemble
    yield ensemble(*chain), {}
    yield ensemble(*chain, largest=8), {}
    yield ensemble(*chain).replace('platform: "ensemble"', ""), {}
    yield ensemble(ensembles.step("first", "X", "middle"), ensembles.step("second", "middle", "X")), {}
    yield ensemble(chain[0], chain[1].replace("model_version: -1", "")), {}
    yield from ((ensemble(*chain, more=row[0]), {}) for row in parameters(ensembles.test_what_an_ensemble_may_not_have))
    yield from ((ensemble(*row[0]), {}) for row in parameters(ensembles.test_a_step_that_is_wrong) if row[3] != ENDLESS)
    for dims, dtype, largest, _fits in parameters(ensembles.test_both_ends_of_a_tensor):
        yield ensemble(*chain), {"second": ensembles.second_step(dims, dtype, largest)}


def repository(directory: Path) -> Path:
    """Write every case as a separate model, and return the repository."""
    for number, text in enumerate(configs()):
        write(directory / f"config{number}", {"config.pbtxt": text, "1/model.py": MODEL})
    for number, (text, steps) in enumerate(chains()):
        named = re.sub(r'model_name: "(first|second|third)"', rf'model_name: "\g<1>{number}"', text)
        write(directory / f"ensemble{number}", {"config.pbtxt": named, "1/README": "A version for Triton\n"})
        for name in ("first", "second"):
            write(directory / f"{name}{number}", {"config.pbtxt": steps.get(name, GOOD), "1/model.py": MODEL})
    write(directory / "zero", {"config.pbtxt": GOOD + "version_policy { all { } }", "0/model.py": MODEL, "01/model.py": MODEL})
    return directory


@contextmanager
def serving(wheel: str, models: Path, log: Path) -> Iterator[str]:
    """Yield the URL of a server that has tried to load all models."""
    server = tritonserver(BUILD, wheel)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--model-repository={models}", f"--backend-directory={server / 'backends'}", f"--http-port={port}"]
    options += ["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false", "--exit-on-error=false"]
    options += ["--cache-config=local,size=1048576", f"--cache-directory={server / 'caches'}"]
    libraries = f"{server.parent.parent / 'nvidia_pytriton.libs'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with log.open("w") as sink:
        process = subprocess.Popen([server / "bin/tritonserver", *options], stdout=sink, stderr=sink, env=environment)
    try:
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=2).close()
                break
            except OSError:
                time.sleep(0.2)
        else:
            raise AssertionError(f"Triton did not start: {log.read_text()[-2000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("release", RELEASES)
def test_errors_are_what_triton_does_not_load(release: str, tmp_path: Path) -> None:
    version, wheel = RELEASES[release]
    models = repository(tmp_path / "models")
    findings = lint([str(models)], row=Row(release, version)).findings
    errors = {finding.model for finding in findings if finding.severity == ERROR}
    with serving(wheel, models, tmp_path / "log") as url:
        request = urllib.request.Request(f"{url}/v2/repository/index", method="POST")
        index = json.load(urllib.request.urlopen(request, timeout=10))
    states: dict[str, set[str]] = {}
    for model in index:
        states.setdefault(model["name"], set()).add(model.get("state", "not polled"))
    ready = {name for name, found in states.items() if found == {"READY"}}
    names = {path.name for path in models.iterdir()}
    # Both accept a step without its ensemble. Both refuse an ensemble if one of its steps could not be read.
    assert names - ready == errors, [finding.sentence() for finding in findings if finding.model in errors & ready]
    assert len(errors) > 50
    assert {"config0", "zero"} - errors == {"zero"}
