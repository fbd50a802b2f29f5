"""A registry of a site on the operations host: docker-registry, with a login and a certificate of the site's own authority."""

from __future__ import annotations

import subprocess
from pathlib import Path

from conftest import LAB, NPU_HOSTS, connect

OPS = LAB["_meta"]["hostvars"]["ops1"]["ansible_host"] if "_meta" in LAB and NPU_HOSTS else ""
REGISTRY = f"{OPS}:5000"
LOGIN = ("fleet", "r3gistry-secret")
# Where an engine looks for the authority of this registry, without being started anew
TRUST = f"/etc/docker/certs.d/{REGISTRY}"
SERVICE = r"""
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends docker-registry apache2-utils >/dev/null
htpasswd -nbB "$1" "$2" > /etc/docker/registry/htpasswd
cat > /etc/docker/registry/config.yml <<END
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/docker-registry}}
http: {addr: ":5000", tls: {certificate: /etc/docker/registry/site.crt, key: /etc/docker/registry/site.key}}
auth: {htpasswd: {realm: site, path: /etc/docker/registry/htpasswd}}
END
chown docker-registry /etc/docker/registry/site.key
systemctl restart docker-registry
for _ in $(seq 50); do
  python3 -c 'import socket; socket.create_connection(("127.0.0.1", 5000))' 2>/dev/null && exit
  sleep 0.1
done
exit 1
"""
# What a person does at a registry: an image of one file, with a login in a place that is removed again
PUSH = r"""
set -e
mkdir -p "$1"
cat > "$1/ca.crt"
printf '%s' "$4" | docker --config /root/pushing login --username "$3" --password-stdin "${2%%/*}" >/dev/null 2>&1
tar --create --file - -C / etc/hostname | docker import - "$2" >/dev/null
docker --config /root/pushing push --quiet "$2" >/dev/null
docker image inspect --format '{{index .RepoDigests 0}}' "$2"
docker image rm "$2" >/dev/null
rm -r /root/pushing "$1"
"""


def make_authority(place: Path) -> None:
    """An authority, and a certificate of the operations host's address by it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, capture_output=True, check=True)

    new = ["req", "-newkey", "rsa:2048", "-noenc", "-batch"]
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=site authority", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(*new, "-subj", f"/CN={OPS}", "-keyout", "site.key", "-out", "site.csr")
    (place / "names").write_text(f"subjectAltName=IP:{OPS}\n")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
    openssl("x509", "-req", "-in", "site.csr", *signed, "-out", "site.crt")


def start(place: Path) -> None:
    """Make the authority in this directory of the controller (ca.crt), and run the registry."""
    make_authority(place)
    ops = connect("ops1")
    for name in ("site.crt", "site.key"):
        ops.check_output(
            "mkdir -p /etc/docker/registry; printf %%s %s > %s", (place / name).read_text(), f"/etc/docker/registry/{name}"
        )
    ops.check_output("sh -c %s - %s %s", SERVICE, *LOGIN)


def push(host: str, place: Path, name: str) -> str:
    """An image of one file pushed by hand from a host, under this name; what it is called by its digest."""
    image = f"{REGISTRY}/{name}"
    return connect(host).check_output(
        "printf %%s %s | sh -c %s - %s %s %s %s", (place / "ca.crt").read_text(), PUSH, TRUST, image, *LOGIN
    )
