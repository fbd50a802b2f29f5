"""How the tests' own ansible-playbook sends modules (tests/forked)."""

from __future__ import annotations

import importlib.util
import zipimport
from pathlib import Path

import pytest
from forked_modules import Compiled


@pytest.mark.parametrize(("magic", "taken"), [(importlib.util.MAGIC_NUMBER, "sample.pyc"), (b"\x00\x00\r\n", "sample.py")])
def test_a_host_of_this_python_takes_the_bytecode_and_any_other_the_source(
    magic: bytes, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiled, "HEADER", magic + Compiled.HEADER[len(magic) :])
    with Compiled(tmp_path / "sent.zip", "w") as sent:
        sent.writestr("sample.py", "ANSWER = 42\n")
        sent.writestr("notes.txt", "no code")
    assert sent.namelist() == ["sample.py", "sample.pyc", "notes.txt"]
    importer = zipimport.zipimporter(str(tmp_path / "sent.zip"))
    spec = importlib.util.spec_from_loader("sample", importer)
    assert spec
    sample = importlib.util.module_from_spec(spec)
    importer.exec_module(sample)
    assert (sample.ANSWER, Path(str(sample.__file__)).name) == (42, taken)
