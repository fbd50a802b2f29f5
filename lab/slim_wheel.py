"""A reduced wheel of onnxruntime: the part that the stand-in SDK needs, without tools, C library and their dependencies."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

EPOCH = (2024, 1, 1, 0, 0, 0)  # Time stamp of all files in the wheel
NEEDED = ("numpy",)  # Requirements that stay in the metadata
# Paths in the package that `import onnxruntime` reads
PARTS = ("__init__.py", "LICENSE", "Privacy.md", "ThirdPartyNotices.txt", "capi/")
C_LIBRARY = "capi/libonnxruntime.so"


def slimmed(wheel: Path, directory: Path) -> Path:
    """Write the reduced wheel with the same name into `directory`. Equal input gives equal bytes."""
    made = directory / wheel.name
    partial = made.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as slim:
        lines, record = [], next(name for name in whole.namelist() if name.endswith(".dist-info/RECORD"))
        for entry in whole.infolist():
            if not is_imported(entry.filename) or entry.filename == record:
                continue
            content = whole.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                content = b"".join(line for line in content.splitlines(keepends=True) if stays(line.decode()))
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{entry.filename},sha256={digest},{len(content)}\n")
            slim.writestr(with_fixed_time(entry), content)
        slim.writestr(zipfile.ZipInfo(record, EPOCH), "".join(lines) + f"{record},,\n")
    partial.rename(made)
    return made


def is_imported(name: str) -> bool:
    """Return True if `import onnxruntime` reads the file `name` of the wheel."""
    top, _slash, below = name.partition("/")
    return top.endswith(".dist-info") or (below.startswith(PARTS) and not below.startswith(C_LIBRARY))


def stays(line: str) -> bool:
    """Return True if the reduced wheel keeps this line of the metadata. Only the removed tools need packages outside of NEEDED."""
    return not line.startswith("Requires-Dist:") or line.split(":", 1)[1].strip().startswith(NEEDED)


def with_fixed_time(entry: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return the entry with a fixed time and its mode."""
    made = zipfile.ZipInfo(entry.filename, EPOCH)
    made.external_attr, made.compress_type = entry.external_attr, zipfile.ZIP_DEFLATED
    return made
