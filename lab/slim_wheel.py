"""The part of onnxruntime's wheel that the stand-in SDK computes with: no tools, no C library, and nothing that only those need."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

EPOCH = (2024, 1, 1, 0, 0, 0)
NEEDED = ("numpy",)
# Below the package: what `import onnxruntime` reads
PARTS = ("__init__.py", "LICENSE", "Privacy.md", "ThirdPartyNotices.txt", "capi/")
C_LIBRARY = "capi/libonnxruntime.so"


def slimmed(wheel: Path, directory: Path) -> Path:
    """Write the wheel again, of the same name, into `directory`. Equal input gives equal bytes."""
    made = directory / wheel.name
    partial = made.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as slim:
        lines, record = [], next(name for name in whole.namelist() if name.endswith(".dist-info/RECORD"))
        for entry in whole.infolist():
            if not wanted(entry.filename) or entry.filename == record:
                continue
            content = whole.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                content = b"".join(line for line in content.splitlines(keepends=True) if needed(line.decode()))
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{entry.filename},sha256={digest},{len(content)}\n")
            slim.writestr(written(entry), content)
        slim.writestr(zipfile.ZipInfo(record, EPOCH), "".join(lines) + f"{record},,\n")
    partial.rename(made)
    return made


def wanted(name: str) -> bool:
    """Whether a file of the wheel is among what is imported."""
    top, _slash, below = name.partition("/")
    return top.endswith(".dist-info") or (below.startswith(PARTS) and not below.startswith(C_LIBRARY))


def needed(line: str) -> bool:
    """Whether a line of its metadata stays: every other package is for the tools."""
    return not line.startswith("Requires-Dist:") or line.split(":", 1)[1].strip().startswith(NEEDED)


def written(entry: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Of no particular day; the mode stays."""
    made = zipfile.ZipInfo(entry.filename, EPOCH)
    made.external_attr, made.compress_type = entry.external_attr, zipfile.ZIP_DEFLATED
    return made
