"""Stand-ins for vendor downloads: driver packages, the index with the SDK, compiled models."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import slim_wheel
from settings import ARTEFACTS, BUILD, ROOT, LabError, run, say

# Versions and card types for which the artefacts of each release row are made
RELEASE_ROWS = {
    "lab-24.01": {"triton": "24.01", "sdk": "0.6.2+lab", "sdk_line": "0.6", "cards": ("RBLN-CA12",), "driver": "1.1.67"},
    "lab-24.10": {"triton": "24.10", "sdk": "0.9.4+lab", "sdk_line": "0.9", "cards": ("RBLN-CA22",), "driver": "2.0.1"},
    # This row has the driver and the SDK of release row 26.05. Its Triton is older, because no newer Triton has a wheel.
    "lab-26.05": {
        "triton": "24.10",
        "sdk": "0.11.2+lab",
        "sdk_line": "0.11",
        "driver": "3.2.2",
        # This row and lab-24.01 both support RBLN-CA12, so a host can be upgraded from lab-24.01 to this row, and back.
        "cards": ("RBLN-CA25", "RBLN-CA12"),
    },
}
# {card type: NPUs of a card}, for the types with more than one NPU
NPUS_OF_CARD = {"RBLN-CA25": 4}
# Models of the lab. lab/models/<name>.py makes and compiles each of them.
MODELS = ("digits", "resnet50")
DRIVERS = ("1.1.67", "1.2.92", "2.0.1", "3.2.2")
IMAGE_PYTHON = "3.11"


def ensure_drivers() -> dict[str, dict[str, str]]:
    """Build the drivers. Return {version: {"path": path below the artefact server's root, "sha256": digest}}."""
    directory = ARTEFACTS / "drivers"
    _script("lab/driver/build.py", str(directory), *DRIVERS, "--kernel", os.uname().release)
    found = {}
    for version in DRIVERS:
        (path,) = [*directory.glob(f"rebel_driver_lab_{version}_*.deb"), *directory.glob(f"rebellions-x86_64-{version}.run")]
        found[version] = {"path": f"drivers/{path.name}", "sha256": sha256_of(path)}
    return found


def ensure_toolkit() -> str:
    """Create the apt repository with the stand-in container toolkit, and return its path below the artefact server's root."""
    _script("lab/driver/toolkit.py", str(ARTEFACTS / "public"))
    return "public"


def card_of(row: str, following: str | None = None) -> str:
    """Return the card type of a lab: the first type of `row` that the row `following`, if any, also supports."""
    fitting = [card for card in RELEASE_ROWS[row]["cards"] if card in RELEASE_ROWS[following or row]["cards"]]
    if not fitting:
        raise LabError(f"LAB_NEXT is {following}, expected a row with a card of {row}: {' or '.join(RELEASE_ROWS[row]['cards'])}")
    return fitting[0]


def npus_of(card: str, count: str | None) -> tuple[int, int]:
    """Return the number of NPUs and the number of cards of a host. The default is one card with several NPUs, or else 2 NPUs."""
    each = NPUS_OF_CARD.get(card, 1)
    npus = int(count) if count else max(2, each)
    if npus % each:
        raise LabError(f"NPUS is {npus}, expected a multiple of {each}, the NPUs of a {card}")
    return npus, npus // each


def kernel_package() -> Path:
    """Return the path of the stub package of the running kernel. On a host, apt holds this package together with the driver."""
    return next((ARTEFACTS / "drivers").glob(f"linux-image-{os.uname().release}_*.deb"))


def sdk_version(row: str) -> str:
    """Return the version of a row's stand-in SDK, with a digest of its source. So a changed SDK causes new images and models."""
    return f"{RELEASE_ROWS[row]['sdk']}.s{source_digest(ROOT / 'lab/sdk')[:8]}"


def ensure_index(row: str) -> None:
    """Create the package index with the stand-in SDK and the other packages of the image."""
    simple = ARTEFACTS / "simple"
    _script("lab/sdk/build.py", sdk_version(row), str(simple / "rebel-compiler"))
    for wheel in wheels_of_image():
        package = simple / wheel.name.split("-")[0].lower().replace("_", "-").replace(".", "-")
        package.mkdir(parents=True, exist_ok=True)
        link = package / wheel.name
        if link.exists():
            continue
        if package.name == "onnxruntime":
            slim_wheel.slimmed(wheel, package)
        else:
            link.hardlink_to(wheel)


def wheels_of_image() -> list[Path]:
    """Download the other packages of the image from the machine's package index, and return their paths."""
    listing = ROOT / "lab/sdk/requirements_image.txt"
    return download("--no-deps", "--requirement", str(listing), into=BUILD / "wheels" / "image")


def ensure_models(row: str, card: str | None = None) -> dict[str, dict[str, str]]:
    """Compile the models of a row for `card`, or for the first card type of the row. Return three facts of each model.

    key     <card>/<line of the SDK>
    path    path of the compiled file below the artefact server's root. The record of the compilation is <path>.json
    sha256  digest of the compiled file
    """
    card = card or card_of(row)
    key = f"{card.removeprefix('RBLN-')}/{RELEASE_ROWS[row]['sdk_line']}"
    directory = ARTEFACTS / "models"
    listing = directory / f"{key.replace('/', '-')}.json"
    inputs = source_digest(ROOT / "lab/models", ROOT / "lab/sdk", ROOT / "files/compile")
    known = json.loads(listing.read_text()) if listing.exists() else {}
    if known.get("inputs") != inputs or set(known["models"]) != set(MODELS):
        models = {}
        for name in MODELS:
            say(f"making and compiling {name} for {key}")
            made = json.loads(_script(f"lab/models/{name}.py", card, sdk_version(row), str(directory)))
            path = Path(made["path"]).resolve().relative_to(ARTEFACTS.resolve())
            models[name] = {"key": key, "path": str(path), "sha256": made["sha256"]}
        known = {"inputs": inputs, "models": models}
        listing.write_text(json.dumps(known))
    return known["models"]


def source_digest(*directories: Path) -> str:
    """Return the SHA-256 of the paths and the contents of all Python files in these directories."""
    digest = hashlib.sha256()
    for path in sorted(path for directory in directories for path in directory.rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()


def wheels_of_triton(version: str) -> list[Path]:
    """Download the wheel that contains Triton, and return its path in a list."""
    return download("--no-deps", f"nvidia-pytriton=={version}", into=BUILD / "wheels" / f"triton-{version}")


def download(*what: str, into: Path) -> list[Path]:
    """Run `pip download` for the Python of the image, unless its result exists. Return the paths of the wheels."""
    done = into / ".done"
    inputs = json.dumps([Path(word).read_text() if word.endswith(".txt") else word for word in what])
    if not done.exists() or done.read_text() != inputs:
        say(f"downloading the wheels of {into.name}")
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (35, 34, 28, 27, 17)]
        run(
            sys.executable,
            *("-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={IMAGE_PYTHON}"),
            *platforms,
            "--platform=manylinux2014_x86_64",
            f"--dest={into}",
            *what,
        )
        done.write_text(inputs)
    return sorted(into.glob("*.whl"))


def _script(path: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, str(ROOT / path), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{path} ended with {done.returncode}:\n{(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
