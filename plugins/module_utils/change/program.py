"""What a host needs to end a change without a controller: a program of files of this collection, and a unit for the boot."""

from __future__ import annotations

import ast
import functools
import io
import os
import subprocess
import zipfile
from typing import Dict, List, Set

from ansible_collections.npufleet.triton.plugins.module_utils.probe import text

PROGRAM = "/usr/local/lib/npufleet/npufleet_change.pyz"
UNIT = "npufleet-resume.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_TEXT = """# Written by npufleet
[Unit]
Description=Put back a change that broke off
After=docker.service npufleet-cards.service
ConditionPathExists={root}/lease.json

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {program} resume {root}
SuccessExitStatus=75
TimeoutStartSec=infinity
SyslogIdentifier=npufleet-resume

[Install]
WantedBy=multi-user.target
"""
PREFIX = "ansible_collections.npufleet.triton.plugins.module_utils."
HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Every archive of the same files has the same bytes
TIME = (1980, 1, 1, 0, 0, 0)


@functools.cache
def archive() -> bytes:
    """The program, for a Python of a host: `change/__main__.py` and all that it imports. On the controller alone."""
    files: Dict[str, str] = {}
    _collect("change.__main__", files)
    packages = PREFIX.rstrip(".").split(".")
    names = {"/".join(packages[:depth]) + "/__init__.py": "" for depth in range(1, len(packages) + 1)}
    names.update({f"{'/'.join(packages)}/{path}": content for path, content in files.items()})
    names["__main__.py"] = f"import sys\nfrom {PREFIX}change.__main__ import main\n\nsys.exit(main())\n"
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(names):
            target.writestr(zipfile.ZipInfo(name, TIME), names[name], zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _collect(module: str, files: Dict[str, str]) -> None:
    """Add a module of module_utils and what it imports of there."""
    parts = module.split(".")
    for depth in range(1, len(parts)):
        path = "/".join(parts[:depth]) + "/__init__.py"
        files.setdefault(path, _source(path) if os.path.exists(os.path.join(HOME, path)) else "")
    path = "/".join(parts) + ".py"
    if path in files:
        return
    files[path] = _source(path)
    for name in sorted(_imports(files[path])):
        if os.path.exists(os.path.join(HOME, name.replace(".", "/") + ".py")):
            _collect(name, files)


def _source(path: str) -> str:
    with open(os.path.join(HOME, path), encoding="utf-8") as source:
        return source.read()


def _imports(source: str) -> Set[str]:
    found: List[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and (node.module + ".").startswith(PREFIX):
            inside = (node.module + ".")[len(PREFIX) :]
            found += [inside.rstrip("."), *(inside + one.name for one in node.names)]
    return {one for one in found if one}


def install(root: str, program: bytes) -> bool:
    """Bring program and unit to the host that this runs on, where they differ. Returns whether they did."""
    unit = UNIT_TEXT.format(root=root, program=PROGRAM)
    try:
        with open(PROGRAM, "rb") as source:
            same = source.read() == program
    except OSError:
        same = False
    if same and text(UNIT_FILE) == unit:
        return False
    for path, content, mode in ((PROGRAM, program, 0o755), (UNIT_FILE, unit.encode(), 0o644)):
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(path + ".new", "wb") as sink:
            sink.write(content)
        os.chmod(path + ".new", mode)
        os.replace(path + ".new", path)
    for command in (["daemon-reload"], ["enable", UNIT]):
        subprocess.run(["systemctl", *command], capture_output=True, timeout=60, check=True)
    return True
