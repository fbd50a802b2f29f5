"""What an image is made of: pip's calls on real indexes, of which one is hostile, and the supply that the lock file keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply as subject

VENDOR = ["Rebel_Compiler"]
REQUIREMENTS = ["rebel-compiler==0.6.2", "numpy<2"]
A, B = "a" * 64, "b" * 64
LOCKED = {
    "base": {"reference": "triton:base", "id": "sha256:" + A},
    "requirements": REQUIREMENTS,
    "wheels": {"rebel_compiler-0.6.2-py3-none-any.whl": A, "numpy-1.26.4-py3-none-any.whl": B},
}


def wheel(index: Path, name: str, version: str, needs: str = "", says: str = "", build: str = "") -> None:
    """A wheel on the page of its package, as pip's simple index has it."""
    file = f"{name}-{version}{build}-py3-none-any.whl"
    page = index / name.replace("_", "-")
    page.mkdir(parents=True, exist_ok=True)
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (f"Requires-Dist: {needs}\n" if needs else "")
    with zipfile.ZipFile(page / file, "w") as made:
        made.writestr(f"{name}.py", says)
        made.writestr(f"{name}-{version}.dist-info/METADATA", about)
        made.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{name}-{version}.dist-info/RECORD", "")
    (page / "index.html").write_text("".join(f'<a href="{path.name}">{path.name}</a>' for path in sorted(page.glob("*.whl"))))


@pytest.fixture
def indexes(tmp_path: Path) -> tuple[str, str]:
    """The vendor's index, and a public one on which somebody has put packages of the vendor's name."""
    vendor, public = tmp_path / "vendor-index", tmp_path / "public-index"
    wheel(vendor, "rebel_compiler", "0.6.2", needs="numpy", says="vendor")
    for version in ("0.6.2", "0.6.2+newer", "0.9.9"):
        wheel(public, "rebel_compiler", version, says="hostile")
    wheel(public, "rebel_compiler", "0.6.2", says="hostile", build="-9")
    for version in ("1.26.3", "1.26.4", "2.0.0"):
        wheel(public, "numpy", version)
    return vendor.as_uri(), public.as_uri()


def pip(tmp_path: Path, arguments: list[str], dest: str) -> None:
    """A call as the container makes it, whose mounts are directories here."""
    (tmp_path / "vendor").mkdir(exist_ok=True)
    constraints = tmp_path / "vendor/constraints.txt"
    constraints.touch()
    here = [
        argument.replace("--dest=/wheels", f"--dest={tmp_path / dest}").replace("/vendor/", f"{tmp_path}/vendor/")
        for argument in arguments
    ]
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *here], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def gathered(tmp_path: Path, indexes: tuple[str, str], constraints: str = "") -> dict[str, str]:
    """Both calls; {file: what its module says}."""
    vendor, public = indexes
    pip(tmp_path, subject.wheel_call(REQUIREMENTS, VENDOR, vendor, [public]), "vendor")
    (tmp_path / "vendor/constraints.txt").write_text(constraints)
    files = [f"/vendor/{path.name}" for path in (tmp_path / "vendor").glob("*.whl")]
    pip(tmp_path, subject.wheel_call(REQUIREMENTS, VENDOR, vendor, [public], (), files), "wheels")
    found = {}
    for path in (tmp_path / "wheels").iterdir():
        with zipfile.ZipFile(path) as made:
            found[path.name] = made.read(path.name.partition("-")[0] + ".py").decode()
    return found


def test_the_vendors_packages_come_from_its_index_alone(tmp_path: Path, indexes: tuple[str, str]) -> None:
    found = gathered(tmp_path, indexes)
    assert found == {"rebel_compiler-0.6.2-py3-none-any.whl": "vendor", "numpy-1.26.4-py3-none-any.whl": ""}


def test_a_later_build_downloads_the_locked_versions(tmp_path: Path, indexes: tuple[str, str]) -> None:
    locked = {**LOCKED, "wheels": {"rebel_compiler-0.6.2-py3-none-any.whl": A, "numpy-1.26.3-py3-none-any.whl": B}}
    constraints = subject.constraints(REQUIREMENTS, locked)
    assert constraints == "numpy==1.26.3\nrebel_compiler==0.6.2\n"
    assert set(gathered(tmp_path, indexes, constraints)) == set(locked["wheels"])
    assert subject.constraints([*REQUIREMENTS, "pillow"], locked) == subject.constraints(REQUIREMENTS, {}) == ""


def test_without_other_indexes_there_is_one(tmp_path: Path) -> None:
    call = subject.wheel_call(REQUIREMENTS, VENDOR, "https://vendor.example.com/simple/", [], ["--retries=1"])
    assert [entry for entry in call if "index" in entry] == ["--index-url=https://vendor.example.com/simple/"]
    assert call[-3:] == ["--retries=1", *REQUIREMENTS]


@pytest.mark.parametrize(
    "option", ["--extra-index-url=https://a", "--extra=https://a", "--index-url", "-i", "-ihttps://a", "--find-links=/x", "-f"]
)
def test_an_option_that_names_another_index_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match="Use triton_image_extra_index_urls"):
        subject.wheel_call(REQUIREMENTS, VENDOR, "https://vendor.example.com/simple/", [], [option])


def test_packages_of_the_vendor_that_nobody_asks_for_are_refused() -> None:
    with pytest.raises(ValueError, match="triton_image_vendor_packages is rebel-compilr, expected packages of"):
        subject.wheel_call(REQUIREMENTS, ["rebel-compilr"], "https://vendor.example.com/simple/", ["https://a.example.com/"])


# What the lock file keeps


def flaws(**changes: Any) -> list[str]:
    return subject.differences({**LOCKED, **changes}, LOCKED, "lock.json", "24.01")


def test_the_same_supply_and_a_first_one_pass() -> None:
    assert flaws() == []
    assert subject.differences(LOCKED, {}, "lock.json", "24.01") == []


def test_every_difference_is_told_at_once() -> None:
    numpy, rebel, other = "numpy-1.26.4-py3-none-any.whl", "rebel_compiler-0.6.2-py3-none-any.whl", "evil-1-py3-none-any.whl"
    assert flaws(base={"reference": "triton:base", "id": "sha256:" + B}, wheels={rebel: B, other: A}) == [
        f"base image triton:base is sha256:{B}, expected sha256:{A}",
        f"{other} has SHA-256 {A}, expected no such file",
        f"{numpy} is missing, expected SHA-256 {B}",
        f"{rebel} has SHA-256 {B}, expected {A}",
        "Compare with their source. If the change is right, remove `supply` of release 24.01 from lock.json, "
        "and the next build records it again",
    ]


def test_other_requirements_may_bring_other_files_but_never_other_content() -> None:
    requirements = [*REQUIREMENTS, "pillow==12.3.0"]
    wheels = {**LOCKED["wheels"], "pillow-12.3.0-py3-none-any.whl": A}  # type: ignore[dict-item]
    assert flaws(requirements=requirements, wheels=wheels) == []
    changed = {**wheels, "numpy-1.26.4-py3-none-any.whl": A}
    assert flaws(requirements=requirements, wheels=changed)[0].startswith("numpy-1.26.4-py3-none-any.whl has SHA-256")


def test_another_base_by_another_name_is_a_new_one() -> None:
    assert flaws(base={"reference": "triton:newer", "id": "sha256:" + B}) == []


def test_names_of_packages_are_compared_as_pip_does() -> None:
    assert {subject.package(entry) for entry in ("Rebel_Compiler==1", "rebel.compiler [x]>2", " rebel-compiler")} == {
        "rebel-compiler"
    }
    assert subject.package("tritonclient[http,grpc]==2.41.1") == "tritonclient"


@pytest.mark.parametrize(
    "supply", [[], "text", {"base": {"reference": "triton:base"}}, {**LOCKED, "wheels": [A]}, {**LOCKED, "requirements": "numpy"}]
)
def test_a_lock_of_another_shape_is_refused_by_name(supply: Any) -> None:
    reasons = subject.differences(LOCKED, supply or ["nothing"], ".npufleet.lock.json", "24.01")
    assert len(reasons) == 1
    assert reasons[0].startswith(".npufleet.lock.json: `supply` of release 24.01: ")
    assert subject.constraints(REQUIREMENTS, supply) == ""


def test_without_a_container_the_places_lie_where_they_are_made() -> None:
    call = subject.wheel_call(REQUIREMENTS, VENDOR, "https://vendor.example/simple/", directory="/srv/build")
    assert "--dest=/srv/build/wheels" in call
    assert "--constraint=/srv/build/vendor/constraints.txt" in call
    second = subject.wheel_call(REQUIREMENTS, VENDOR, "https://v/", ["https://o/"], wheels=["/a.whl"], directory="/srv/build")
    assert "--constraint=/srv/build/vendor/constraints.txt" in second
