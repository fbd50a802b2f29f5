#!/usr/bin/env python3
"""Make the stand-in wheel: build.py VERSION DIRECTORY. Equal input gives equal bytes. Nothing is downloaded."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPOCH = (2024, 1, 1, 0, 0, 0)  # Time stamp of all files in the wheel
METADATA = """Metadata-Version: 2.1
Name: rebel-compiler
Version: {version}
Summary: Emulation of the Rebellions SDK for the npufleet lab; no NPU is behind it
Requires-Python: >=3.10
Requires-Dist: numpy<2
Requires-Dist: onnxruntime==1.22.1
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: npufleet-lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build(version: str, directory: Path) -> Path:
    """Write rebel_compiler-VERSION-py3-none-any.whl into `directory`."""
    info = f"rebel_compiler-{version}.dist-info"
    files = {str(path.relative_to(HERE)): path.read_bytes() for path in sorted((HERE / "rebel").rglob("*.py"))}
    files["rebel/_version.py"] = f"VERSION = {version!r}\n".encode()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    record = f"{info}/RECORD"
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[record] = ("".join(lines) + f"{record},,\n").encode()
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"rebel_compiler-{version}-py3-none-any.whl"
    partial = wheel.with_suffix(".partial")
    # The files are stored without compression, because compressed bytes depend on the machine's zlib.
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content)
    partial.rename(wheel)
    return wheel


if __name__ == "__main__":
    print(build(sys.argv[1], Path(sys.argv[2])))
