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

LAB = Path(__file__).resolve().parents[3] / "lab"
BUILD = LAB / "sdk/build.py"
sys.path.insert(0, str(LAB))

import slim_wheel  # noqa: E402


def build(version: str, directory: Path) -> Path:
    done = subprocess.run([sys.executable, str(BUILD), version, str(directory)], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def recorded(archive: zipfile.ZipFile, info: str) -> dict[str, list[str]]:
    """What RECORD says of each file, after it was found to be true."""
    names = archive.namelist()
    said = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
    assert sorted(said) == sorted(names)
    for name in set(names) - {f"{info}/RECORD"}:
        content = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert said[name] == [f"sha256={digest}", str(len(content))], name
    return said


@pytest.mark.parametrize("version", ["0.6.2+lab", "0.9.4+lab"])
def test_wheel(tmp_path: Path, version: str) -> None:
    wheel = build(version, tmp_path / "one")
    assert wheel.name == f"rebel_compiler-{version}-py3-none-any.whl"
    assert build(version, tmp_path / "two").read_bytes() == wheel.read_bytes()
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]
    info = f"rebel_compiler-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2024, 1, 1, 0, 0, 0)}, "bytes of another day differ"
        names = sorted(recorded(archive, info))
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


def test_the_runtime_of_the_index_is_what_is_imported(tmp_path: Path) -> None:
    info, kept = "onnxruntime-1.22.1.dist-info", ["onnxruntime/__init__.py", "onnxruntime/capi/_state.so", "onnxruntime/LICENSE"]
    whole = tmp_path / "onnxruntime-1.22.1-cp311-cp311-linux_x86_64.whl"
    dropped = ["onnxruntime/capi/libonnxruntime.so.1.22.1", "onnxruntime/tools/shapes.py", "onnxruntime/transformers/__init__.py"]
    requires = ["numpy>=1.21.6", "sympy", "coloredlogs"]
    with zipfile.ZipFile(whole, "w") as archive:
        for name in [*kept, *dropped, f"{info}/WHEEL", f"{info}/RECORD"]:
            archive.writestr(name, f"of {name}")
        lines = [f"Requires-Dist: {name}\n" for name in requires]
        archive.writestr(f"{info}/METADATA", "Name: onnxruntime\n" + "".join(lines) + "\nRequires: nothing")
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made.append(slim_wheel.slimmed(whole, tmp_path / name))
    assert made[0].name == whole.name and made[0].read_bytes() == made[1].read_bytes()
    assert [path.name for path in made[0].parent.iterdir()] == [whole.name]
    with zipfile.ZipFile(made[0]) as archive:
        assert set(recorded(archive, info)) == {*kept, f"{info}/WHEEL", f"{info}/RECORD", f"{info}/METADATA"}
        assert archive.read(kept[1]).decode() == f"of {kept[1]}"
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
    assert metadata.get_all("Requires-Dist") == ["numpy>=1.21.6"]
