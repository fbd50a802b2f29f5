"""The lab's images: a base system, the host with systemd and sshd, and Triton from its wheel."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from engine import docker
from settings import ARTEFACTS, BUILD, FIRST_SYSTEM, ROOT, SYSTEMS, LabError, base_image, host_image, run, say
from standins import sha256_of, wheels_of_triton

PULLED_BASE = "docker.io/library/debian:{}-slim"
INPUTS = "npufleet.lab.inputs"  # Label of an image that contains the digest of its inputs
# Directories below usr/share that Debian's slim images lack
NOT_SLIM = ("doc", "groff", "info", "lintian", "locale", "man")
# Triton release -> version of the PyPI wheel nvidia-pytriton that contains it
TRITON_WHEELS = {"24.01": "0.5.1", "24.10": "0.7.0"}


def ensure_base(system: str) -> str:
    """Return the name of a Debian base image. If it does not exist, pull it, or make it with debootstrap if no registry answers."""
    image, pulled = base_image(system), PULLED_BASE.format(SYSTEMS[system])
    if recorded_inputs(image) is None:
        if os.environ.get("LAB_PULL", "1") == "1" and _pull(pulled):
            run_build(image, f"FROM {pulled}\n", {}, "pulled", pulled)
        else:
            _debootstrap(image, SYSTEMS[system])
    return image


def _pull(image: str) -> bool:
    try:
        docker("pull", "--quiet", image)
    except LabError:
        return False
    return True


def _debootstrap(image: str, suite: str) -> None:
    say(f"no registry answers: making the base image of {suite} with debootstrap")
    with tempfile.TemporaryDirectory(prefix="rootfs-", dir=BUILD) as rootfs:
        run("debootstrap", "--variant=minbase", "--include=ca-certificates", suite, rootfs, debian_mirror())
        for cache in ("var/cache/apt/archives", "var/lib/apt/lists"):
            for path in Path(rootfs, cache).iterdir():
                if path.is_file():
                    path.unlink()
        slim(Path(rootfs))
        archive = Path(rootfs).with_suffix(".tar")
        try:
            run("tar", "--create", "--file", str(archive), "--directory", rootfs, ".")
            docker("import", "--change", f"LABEL {INPUTS}=debootstrap", str(archive), image)
        finally:
            archive.unlink(missing_ok=True)


def slim(rootfs: Path) -> None:
    """Remove documentation and translations, as Debian's slim images do, and exclude them from later installations of packages."""
    for name in NOT_SLIM:
        for path in (rootfs / "usr/share" / name).rglob("*"):
            if not path.is_dir() or path.is_symlink():
                path.unlink()
    excluded = "".join(f"path-exclude /usr/share/{name}/*\n" for name in NOT_SLIM)
    (rootfs / "etc/dpkg/dpkg.cfg.d/npufleet-lab-slim").write_text(excluded)
    (rootfs / "etc/apt/apt.conf.d/npufleet-lab-slim").write_text('Acquire::Languages "none";\n')


def debian_mirror() -> str:
    """Return the Debian mirror of the machine's apt configuration."""
    for listing in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if listing.suffix not in (".list", ".sources") or not listing.is_file():
            continue
        for line in listing.read_text().splitlines():
            found = re.match(r"(?:URIs:|deb(?:\s+\[[^]]*\])?)\s*(\S+)", line)
            if found and found[1].rstrip("/").endswith("/debian"):
                return found[1]
    raise LabError("the machine's apt configuration has no Debian mirror, expected one whose address ends in /debian")


def ensure_host(system: str) -> str:
    """Return the image name of lab hosts with this system. Build the image again if its build files have changed."""
    base, image = ensure_base(system), host_image(system)
    files = {
        "Dockerfile": ROOT / "lab/host/Dockerfile",
        "sshd.conf": ROOT / "lab/host/sshd.conf",
        "artefact-server.py": ROOT / "lab/index/server.py",
        "npufleet-lab-artefacts.service": ROOT / "lab/index/npufleet-lab-artefacts.service",
        "cards.py": ROOT / "lab/driver/cards.py",
        "npufleet-lab-cards.service": ROOT / "lab/driver/npufleet-lab-cards.service",
        "npufleet-lab-runc": ROOT / "lab/runtime/npufleet-lab-runc",
    }
    _build_if_changed(image, base, files, f"lab host of {system}")
    return image


def ensure_triton(release: str) -> dict[str, str]:
    """Save the Triton image of this release as an archive for the artefact server.

    Return {"path": path of the archive below the server's root, "sha256": digest of the archive, "image": name of the image}.
    """
    base = ensure_base(FIRST_SYSTEM)
    image = f"npufleet-lab/tritonserver:{release}-py3"
    archive = ARTEFACTS / "images" / f"tritonserver-{release}-py3.tar"
    files = {"Dockerfile": ROOT / "lab/triton/Dockerfile"}
    files.update({path.name: path for path in wheels_of_triton(TRITON_WHEELS[release])})
    rebuilt = _build_if_changed(image, base, files, f"Triton {release}")
    listing = archive.with_suffix(".json")
    if rebuilt or not listing.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(".partial")
        docker("save", "--output", str(partial), image)
        digest = sha256_of(partial)
        partial.rename(archive)
        listing.write_text(json.dumps({"path": f"images/{archive.name}", "sha256": digest, "image": image}))
    return json.loads(listing.read_text())


def _build_if_changed(image: str, base: str, files: dict[str, Path], what: str) -> bool:
    """Build `image` from `base`, unless it exists and its inputs have not changed. Return True if it was built."""
    digest = hashlib.sha256(docker("image", "inspect", "--format", "{{.Id}}", base).encode())
    for name, path in sorted(files.items()):
        digest.update(name.encode() + path.read_bytes())
    inputs = digest.hexdigest()
    if recorded_inputs(image) == inputs:
        return False
    say(f"building the {what} image")
    text = files["Dockerfile"].read_text()
    run_build(image, text, {name: path for name, path in files.items() if name != "Dockerfile"}, inputs, base)
    return True


def run_build(image: str, dockerfile: str, files: dict[str, Path], inputs: str, base: str) -> None:
    """Run `docker build` with a context of these files."""
    with tempfile.TemporaryDirectory(prefix="context-", dir=BUILD) as context:
        Path(context, "Dockerfile").write_text(dockerfile)
        for name, path in files.items():
            shutil.copy2(path, Path(context, name))
        docker(
            "build",
            "--quiet",
            "--build-arg",
            f"BASE={base}",
            "--label",
            f"{INPUTS}={inputs}",
            "--tag",
            image,
            context,
        )


def recorded_inputs(image: str) -> str | None:
    """Return the inputs that the label of an image records. Return None if the image does not exist or lacks the label."""
    found = docker("image", "inspect", "--format", f'{{{{index .Config.Labels "{INPUTS}"}}}}', image, check=False)
    return found or None
