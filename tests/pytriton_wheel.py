"""A real tritonserver without a container: out of nvidia-pytriton's wheel, with the stub of this Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path


def tritonserver(build: Path, version: str) -> Path:
    """Directory of the server in this version of the wheel, downloaded below `build` when it is not there yet."""
    home = build / f"pytriton-{version}"
    server = home / "pytriton/tritonserver"
    if not (home / "done").exists():
        shutil.rmtree(home, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={home}", f"nvidia-pytriton=={version}"]
        subprocess.run(pip, check=True)
        (archive,) = home.glob("*.whl")
        with zipfile.ZipFile(archive) as source:
            source.extractall(home)
        stub = server / f"python_backend_stubs/3.{sys.version_info.minor}/triton_python_backend_stub"
        for program in (shutil.copy2(stub, server / "backends/python"), server / "bin/tritonserver"):
            Path(program).chmod(0o755)
        (home / "done").touch()
    return server
