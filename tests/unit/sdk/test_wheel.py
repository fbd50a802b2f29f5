"""The stand-in SDK's wheel: equal bytes, a true RECORD, and pip takes it without a network."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[3] / "lab/sdk/build.py"


def build(version: str, directory: Path) -> Path:
    done = subprocess.run([sys.executable, str(BUILD), version, str(directory)], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.mark.parametrize("version", ["0.6.2+lab", "0.9.4+lab"])
def test_wheel(tmp_path: Path, version: str) -> None:
    wheel = build(version, tmp_path / "one")
    assert wheel.name == f"rebel_compiler-{version}-py3-none-any.whl"
    assert build(version, tmp_path / "two").read_bytes() == wheel.read_bytes()
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]
    info = f"rebel_compiler-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {entry.date_time for entry in archive.infolist()} == {(2024, 1, 1, 0, 0, 0)}, "bytes of another day differ"
        recorded = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
        assert sorted(recorded) == sorted(names)
        for name in set(names) - {f"{info}/RECORD"}:
            content = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert recorded[name] == [f"sha256={digest}", str(len(content))], name
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
    assert "rebel/core/exception.py" in names
    assert (metadata["Name"], metadata["Version"]) == ("rebel-compiler", version)
    assert metadata.get_all("Requires-Dist") == ["numpy<2", "onnxruntime==1.22.1"]


def test_pip_installs_it_and_it_knows_its_version(tmp_path: Path) -> None:
    wheel = build("0.6.2+lab", tmp_path)
    target = tmp_path / "target"
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([sys.executable, *pip, "--target", str(target), str(wheel)], check=True)
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import rebel; print(rebel.__file__, rebel.__version__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told == [str(target / "rebel/__init__.py"), "0.6.2+lab"]
