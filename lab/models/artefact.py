"""Compilation of the lab's models with files/compile/rbln_compile.py, the program that sites also use, and the stand-in SDK."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "files/compile/rbln_compile.py"


def compile_onnx(
    name: str, onnx: bytes, inputs: list[dict[str, Any]], batches: tuple[int, ...], card: str, version: str, directory: Path
) -> dict[str, str]:
    """Compile an ONNX model into `directory`: <name>-<card>-<line>.rbln and its record. Return {"path", "sha256"} of the file.

    `inputs` are {"name", "shape" (without the batch dimension), "dtype"}. `version` is that of the SDK; <line> is its minor line.
    """
    line = ".".join(version.split(".")[:2])
    directory.mkdir(parents=True, exist_ok=True)
    path = directory.resolve() / f"{name}-{card.removeprefix('RBLN-')}-{line}.rbln"
    spec = {
        "name": name,
        "npu": card,
        "sdk": version,
        "devices": 1,
        "batches": list(batches),
        "source": {"kind": "onnx", "path": "model.onnx"},
        "inputs": inputs,
        "outputs": None,
        "digests": {"sha256": hashlib.sha256(onnx).hexdigest()},
        "output": str(path),
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lab/sdk"), "RBLN_LAB_VERSION": version}
    with tempfile.TemporaryDirectory() as work:
        Path(work, "model.onnx").write_bytes(onnx)
        Path(work, "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, str(PROGRAM), str(Path(work, "spec.json"))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()[-800:]}")
    return {"path": str(path), "sha256": json.loads(done.stdout)["sha256"]}
