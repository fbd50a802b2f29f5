"""A real tritonserver without a container, from the wheel nvidia-pytriton. Its python backend uses the stub for this Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path


def tritonserver(build: Path, version: str) -> Path:
    """Return the directory of the server of this version of the wheel. If the wheel is missing below `build`, download it."""
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


def environment(server: Path) -> dict[str, str]:
    """Return the environment variables with which this server finds its libraries, and its stubs find this Python."""
    return {
        "LD_LIBRARY_PATH": f"{server.parent.parent / 'nvidia_pytriton.libs'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
