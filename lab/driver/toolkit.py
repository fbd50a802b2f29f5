#!/usr/bin/env python3
"""Build the lab's container toolkit: toolkit.py DIRECTORY.

The package `rbln-container-toolkit` is in a signed apt repository with the layout of the vendor's public repository: apt-public/
and raw-public/rebellions.asc below the directory. If the package has not changed, an existing repository is kept.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from build import EPOCH, BuildError, build

HERE = Path(__file__).resolve().parent
NAME, VERSION = "rbln-container-toolkit", "0.2.0"
# Units and scripts are like those of the vendor's package (deployments/systemd, deployments/scripts). Scripts ignore failures, so
# that the package can be installed before the cards are ready. Therefore a host can have a stale CDI spec, or no spec.
REFRESH_PATH = """\
[Unit]
Description=Trigger CDI refresh on RBLN driver or toolkit install / upgrade events

[Path]
PathChanged=/usr/lib64/librbln-ml.so
PathChanged=/usr/lib/x86_64-linux-gnu/librbln-ml.so
PathChanged=/usr/lib/librbln-ml.so
PathChanged=/usr/bin/rbln-ctk

[Install]
WantedBy=multi-user.target
"""
REFRESH_SERVICE = """\
[Unit]
Description=Refresh RBLN CDI specification file
ConditionPathExists=/dev/rbln0
ConditionPathExists=/usr/bin/rbln-ctk

[Service]
Type=oneshot
ExecStartPre=/bin/mkdir -p /var/run/cdi
ExecStart=/usr/bin/rbln-ctk cdi generate --output /var/run/cdi/rbln.yaml
"""
POSTINST = """\
#!/bin/sh
set -e
systemctl daemon-reload || true
systemctl enable --quiet rbln-cdi-refresh.path || true
systemctl start rbln-cdi-refresh.path || true
/usr/bin/rbln-ctk cdi generate --output /etc/cdi/rbln.yaml || true
"""
PRERM = """\
#!/bin/sh
set -e
systemctl disable --quiet --now rbln-cdi-refresh.path || true
systemctl stop rbln-cdi-refresh.service || true
rm -f /etc/cdi/rbln.yaml /var/run/cdi/rbln.yaml
"""
KEY = """\
%no-protection
Key-Type: RSA
Key-Length: 3072
Name-Real: The npufleet lab
Name-Email: npufleet@localhost
Expire-Date: 0
%commit
"""


def build_toolkit(directory: Path) -> Path:
    """Build the package into `directory` and return its path."""
    control = {
        "Package": NAME,
        "Version": VERSION,
        "Section": "utils",
        "Depends": "libc6, librbln-ml, python3",
        "Description": "emulated container toolkit for the npufleet lab\n"
        " This is NOT the vendor's toolkit. It writes a spec of the emulated NPUs of a lab host.",
    }
    files: dict[str, tuple[str | bytes, int]] = {
        "usr/bin/rbln-ctk": ((HERE / "rbln-ctk").read_text().replace("{version}", VERSION), 0o755),
        "usr/local/bin/rbln-cdi-hook": ((HERE / "rbln-cdi-hook").read_text(), 0o755),
        "lib/systemd/system/rbln-cdi-refresh.path": (REFRESH_PATH, 0o644),
        "lib/systemd/system/rbln-cdi-refresh.service": (REFRESH_SERVICE, 0o644),
    }
    return build(control, files, {}, {"postinst": POSTINST, "prerm": PRERM}, directory / f"{NAME}_{VERSION}_amd64.deb")


def build_repository(directory: Path) -> None:
    """Write an apt repository (suite `stable`, component `main`) with the package, and the signing key of the repository."""
    repository, key = directory / "apt-public", directory / "raw-public/rebellions.asc"
    package = build_toolkit(repository / "pool/main")
    control = _run("dpkg-deb", "--field", str(package))
    content = package.read_bytes()
    listing = (
        f"{control.strip()}\nFilename: pool/main/{package.name}\nSize: {len(content)}\n"
        f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
    ).encode()
    list_path = "main/binary-amd64/Packages"
    release = (
        "Origin: npufleet lab\nSuite: stable\nCodename: stable\nArchitectures: amd64\nComponents: main\n"
        f"Date: {_run('date', '--utc', '--rfc-email', f'--date=@{EPOCH}').strip()}\n"
        f"SHA256:\n {hashlib.sha256(listing).hexdigest()} {len(listing)} {list_path}\n"
    )
    suite = repository / "dists/stable"
    if key.exists() and (suite / "Release").exists() and (suite / "Release").read_text() == release:
        return
    (suite / list_path).parent.mkdir(parents=True, exist_ok=True)
    key.parent.mkdir(parents=True, exist_ok=True)
    (suite / list_path).write_bytes(listing)
    with tempfile.TemporaryDirectory(prefix="npufleet-gpg-") as home:
        gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--yes")
        try:
            _run(*gpg, "--generate-key", stdin=KEY)
            _run(*gpg, "--clearsign", "--output", str(suite / "InRelease"), stdin=release)
            _run(*gpg, "--armor", "--export", "--output", str(key))
            # This file is written last. Its existence shows the next call that all files are complete.
            (suite / "Release").write_text(release)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def _run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def main() -> int:
    try:
        build_repository(Path(sys.argv[1]))
    except BuildError as error:
        print(f"toolkit.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
