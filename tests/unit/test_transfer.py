"""Transfers by ansible-playbook, from end to end: ssh is a program that runs its command here; rsync, flock, servers are real."""

from __future__ import annotations

import base64
import fcntl
import getpass
import hashlib
import os
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import stores
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import receive
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs
from ansible_collections.npufleet.triton.plugins.plugin_utils.transfer import sender
from test_action_host_state import play, variables
from test_download import needs_rclone

CONTENT, OTHER = os.urandom(3_000_000), os.urandom(2_000_000)
PLAYBOOK = """
- name: Transfer
  hosts: all
  gather_facts: false
  tasks:
    - name: Transfer
      npufleet.triton.model_blobs:
        sha256: "{{ origins | list }}"
        origins: "{{ origins }}"
"""
# Options first, then the host, then what to run there; `CUT` bytes of what rsync says get through
SSH = """#!/bin/sh
while true; do case "$1" in -[olpiSFEO]) shift 2;; -*) shift;; *) break;; esac; done
shift
echo "$*" >> "$(dirname "$0")/../asked"
case "$CUT:$*" in
  :*) exec sh -c "$*";;
  *rsync*--server*) python3 -c "$RELAY" "$CUT" | sh -c "$*"; exit 255;;
  *) exec sh -c "$*";;
esac
"""
RELAY = """
import os, sys
left = int(sys.argv[1])
while left:
    block = os.read(0, min(left, 65536))
    if not block:
        break
    left -= os.write(1, block)
"""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with an ssh of its own, and a compiled file on the controller."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    (tmp_path / "bin/sudo").write_text(
        '#!/bin/sh\nwhile true; do case $1 in -u) shift 2;; -*) shift;; *) break;; esac; done\nexec "$@"\n'
    )
    (tmp_path / "bin/sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("ANSIBLE_SSH_RETRIES", "0")
    (tmp_path / "model.rbln").write_bytes(CONTENT)
    return tmp_path


def transfer(site: Path, origins: dict[str, Any], hosts: dict[str, dict[str, Any]] | None = None, **given: Any) -> dict[str, Any]:
    """Result of the transfer to each host; without `hosts` that of one."""
    of_host = {
        name: variables(
            site,
            npufleet_root=str(site / name),
            npufleet_cache=str(site / "cache"),
            **{"ansible_connection": "ssh", "ansible_user": getpass.getuser(), "origins": origins, **given, **own},
        )
        for name, own in (hosts or {"npu1": {}}).items()
    }
    results = play(site, of_host, PLAYBOOK)["Transfer"]
    return results if hosts else dict(results["npu1"])


def kept(site: Path, host: str = "npu1") -> dict[str, bytes]:
    home = site / host / "blobs/sha256"
    return {path.name: path.read_bytes() for path in home.iterdir()} if home.is_dir() else {}


def left(site: Path, place: str) -> list[str]:
    return sorted(path.name for path in (site / place).iterdir() if path.name != blobs.CONTROLLER)


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="blobs are given to root")


# Pushed


def test_files_of_the_controller_and_of_the_web_to_two_hosts(site: Path) -> None:
    with stores.serving({"x.rbln": OTHER}) as server:
        server.login = "fleet:secret-of-ours"
        login = {"npufleet_artefact_user": "fleet", "npufleet_artefact_password": "secret-of-ours"}
        origins = {digest(CONTENT): {"file": str(site / "model.rbln")}, digest(OTHER): {"url": server.url + "/x.rbln"}}
        # One of them becomes root as a site does, where sudo could ask for a password
        sudo = {"ansible_become": True, "ansible_become_exe": str(site / "bin/sudo"), "ansible_user": "nobody"}
        found = transfer(site, origins, {"npu1": {}, "npu2": sudo}, **login)
        asked = (site / "asked").read_text().splitlines()
        assert any("bin/sudo" in request for request in asked)
        assert not any("bin/sudo" in request for request in asked if "rsync --server" in request)
        for host in ("npu1", "npu2"):
            assert found[host]["changed"] is True, found[host]
            assert found[host]["transferred"] == {digest(CONTENT): len(CONTENT), digest(OTHER): len(OTHER)}
            assert found[host]["bytes_moved"] == len(CONTENT) + len(OTHER)
            assert kept(site, host) == {digest(CONTENT): CONTENT, digest(OTHER): OTHER}
            assert left(site, host + "/incoming") == left(site, host + "/tmp") == []
        # One download for both, and what is there already moves nothing
        assert len(server.ranges_asked) == 1
        again = transfer(site, origins, **login)
        assert (again["bytes_moved"], again["transferred"], again.get("failed")) == (0, {}, None)
    assert left(site, "cache/blobs") == [digest(OTHER)]


def test_a_cut_connection_frees_the_lock_and_the_next_run_goes_on(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origins = {digest(CONTENT): {"file": str(site / "model.rbln")}}
    monkeypatch.setenv("CUT", "1500000")
    monkeypatch.setenv("RELAY", RELAY)
    broken = transfer(site, origins)
    assert broken["failed"] is True
    assert "npu1: the transfer broke off (" in broken["msg"] and "run again to continue it" in broken["msg"]
    lock = f"flock --timeout {sender.LOCK_WAIT_SECONDS} {site}/npu1/incoming rsync --server"
    assert [line.startswith(lock) for line in (site / "asked").read_text().splitlines() if "rsync" in line] == [True]
    with blobs.locked(str(site / "npu1/incoming"), wait=False):
        partial = (site / "npu1/incoming" / digest(CONTENT)).stat().st_size
    assert 0 < partial < len(CONTENT)
    assert kept(site) == {}
    monkeypatch.delenv("CUT")
    whole = transfer(site, origins)
    assert whole["bytes_moved"] == len(CONTENT) - partial
    assert kept(site) == {digest(CONTENT): CONTENT}


def test_another_controller_is_waited_for_and_named(site: Path) -> None:
    incoming = site / "npu1/incoming"
    incoming.mkdir(parents=True)
    (incoming / blobs.CONTROLLER).write_text("jane@desk")
    origins = {digest(CONTENT): {"file": str(site / "model.rbln")}}
    handle = os.open(incoming, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    refused = transfer(site, origins, model_repository_lock_timeout=0)
    assert refused["failed"] is True
    assert "npu1: jane@desk is transferring to this host, expected the end within 0 s: run again after the end" in refused["msg"]
    threading.Timer(2, os.close, [handle]).start()
    assert transfer(site, origins)["bytes_moved"] == len(CONTENT)


def test_wrong_content_names_source_found_and_wanted(site: Path) -> None:
    origins = {digest(OTHER): {"file": str(site / "model.rbln")}}
    with stores.serving({"x.rbln": CONTENT}) as server:
        found = transfer(site, origins, {"npu1": {}, "npu2": {"origins": {digest(OTHER): {"url": server.url + "/x.rbln"}}}})
    for host, source in (("npu1", f"{site}/model.rbln"), ("npu2", f"{server.url}/x.rbln")):
        for words in (f"{host}: ", f"from {source}", f"SHA-256 {digest(CONTENT)}", digest(OTHER)):
            assert words in found[host]["msg"]
        assert kept(site, host) == {}
        assert left(site, host + "/incoming") == []
    assert left(site, "npu1/tmp") == []
    assert left(site, "cache/blobs") == [digest(OTHER) + ".lock"]


def test_a_bundle_instead_of_what_cannot_be_reached(site: Path) -> None:
    home = site / "bundle/blobs/sha256"
    home.mkdir(parents=True)
    (home / digest(OTHER)).write_bytes(OTHER)
    with tarfile.open(site / "bundle.tar", "w") as archive:
        archive.add(site / "bundle", arcname=".")
    origins = {digest(OTHER): {"url": "https://nowhere.invalid/x"}, digest(CONTENT): {"file": str(site / "model.rbln")}}
    both = {digest(CONTENT): CONTENT, digest(OTHER): OTHER}
    hosts: dict[str, dict[str, Any]] = {
        "npu1": {"model_repository_bundle": str(site / "bundle"), "ansible_connection": "local"},
        "npu2": {"model_repository_bundle": str(site / "bundle.tar")},
        "npu3": {"model_repository_bundle": str(site / "bundle.tar"), "model_repository_fetch": "host"},
    }
    found = transfer(site, origins, hosts)
    assert [kept(site, host) for host in hosts] == [both] * 3, found


def test_a_disk_that_fills_up_is_told_and_its_partial_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, list[str]]] = []
    mine = sender.Sender.__new__(sender.Sender)
    mine.host, mine.incoming, mine.arrived = "npu1", "/var/lib/npufleet/incoming", {}

    def step(name: str, routes: dict[str, Any]) -> dict[str, Any]:
        steps.append((name, list(routes)))
        return {"dropped": dict.fromkeys(routes, 1_000_000)}

    said = {"failed": True, "msg": "rsync: [receiver] write failed on x: No space left on device (28)\nrsync error: code 11"}
    for name, stub in (("_step", step), ("_rsync", lambda _staging: said), ("_progress_of", lambda _digests: lambda: None)):
        monkeypatch.setattr(mine, name, stub)
    (tmp_path / "model.rbln").write_bytes(CONTENT)
    mine.cache = str(tmp_path)
    with pytest.raises(store.StoreError) as error:
        mine._push({digest(CONTENT): {"file": str(tmp_path / "model.rbln"), "pull": False}})
    assert str(error.value) == (
        "/var/lib/npufleet/incoming is full (No space left on device) during a transfer of 3000000 bytes; 1000000 bytes of partial "
        "files were removed: free space there"
    )
    assert steps == [("drop", [digest(CONTENT)])]


# Pulled by the host


@pytest.mark.parametrize("asked", ["../../.ssh/id_rsa", "/etc/shadow", "0" * 64, ""])
def test_a_host_gets_nothing_that_no_model_has(asked: str) -> None:
    """What it lacks is what it says: each name would be a path on the controller, to send or to remove."""
    mine = sender.Sender.__new__(sender.Sender)
    with pytest.raises(store.StoreError, match="which no model of the inventory has: nothing was sent"):
        mine.send([digest(CONTENT), asked], {digest(CONTENT): {"file": "/nowhere"}})


def test_a_host_that_fetches_itself_goes_on_where_it_stopped(site: Path) -> None:
    with stores.serving({"x.rbln": OTHER}) as server:
        server.login = "fleet:secret-of-ours"
        login = {"npufleet_artefact_user": "fleet", "npufleet_artefact_password": "secret-of-ours"}
        origins = {digest(OTHER): {"url": server.url + "/x.rbln"}}
        server.cuts = [700_000, 0, 0, 0]
        broken = transfer(site, origins, model_repository_fetch="host", **login)
        assert "broke off after 700000 bytes" in broken["msg"]
        whole = transfer(site, origins, model_repository_fetch="host", **login)
        assert whole["bytes_moved"] == len(OTHER) - 700_000, whole
        assert server.ranges_asked[-1] == "bytes=700000-"
    assert kept(site) == {digest(OTHER): OTHER}
    assert not (site / "cache").exists()
    assert "secret-of-ours" not in str(broken) + str(whole)


@needs_rclone
def test_object_store(site: Path) -> None:
    with stores.serving({"models/x.rbln": OTHER}, stores.S3) as server:
        given = {
            "model_repository_s3_endpoint": server.url,
            "model_repository_s3_region": "lab-1",
            "model_repository_s3_access_key": stores.ACCESS,
            "model_repository_s3_secret_key": stores.SECRET,
        }
        hosts = {fetch: {"model_repository_fetch": fetch} for fetch in ("controller", "host")}
        found = transfer(site, {digest(OTHER): {"url": "s3://models/x.rbln"}}, hosts, **given)
    assert [entry.get("bytes_moved") for entry in found.values()] == [len(OTHER)] * 2, found
    assert [kept(site, host) for host in hosts] == [{digest(OTHER): OTHER}] * 2
    assert stores.SECRET not in str(found)


# Steps on the host


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    store.prepare(str(tmp_path))
    (tmp_path / "incoming").mkdir()
    return tmp_path / "incoming"


def order(name: str, **files: Any) -> dict[str, Any]:
    return {"do": name, "user": getpass.getuser(), "by": "jane@desk", "blobs": files, "fetch_options": {}, "bundle": ""}


def test_no_room_is_told_before_anything_is_written(incoming: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "free_space", lambda _path: (1, 1000))
    root = str(incoming.parent)
    with pytest.raises(store.StoreError, match=f"{root} has 1000 bytes .* free, expected 1001"):
        receive.serve(root, str(incoming), order("prepare", **{digest(OTHER): {"size": 1001}}), {})
    with stores.serving({"x": OTHER}) as server:
        pulled = order("take", **{digest(OTHER): {"url": server.url + "/x", "pull": True, "source": "x"}})
        with pytest.raises(store.StoreError, match=f"has 1000 bytes .* expected {len(OTHER)}"):
            receive.serve(root, str(incoming), pulled, {})
        assert server.ranges_asked == []
    assert blobs.arrived(str(incoming)) == {}


def test_a_pull_ends_when_its_controller_is_silent(incoming: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = incoming / blobs.CONTROLLER
    mark.write_text("jane@desk")
    alive = receive.cancellation(str(incoming))
    alive()
    later = time.monotonic() + receive.MAX_SILENCE + 5
    monkeypatch.setattr(receive.time, "monotonic", lambda: later)
    with pytest.raises(store.StoreError, match="the controller was silent for 60 s"):
        alive()
    # Its time stamp is by a clock that may be set at any time, also back
    for moment in (time.time(), 1.0):
        later += receive.MAX_SILENCE + 5
        os.utime(mark, (moment, moment))
        alive()
    monkeypatch.setattr(receive.time, "time", lambda: 4e9)
    alive()


def test_partial_files_become_the_connecting_users_and_links_do_not(incoming: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(receive.os, "fchown", lambda handle, *_who: given.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(receive.os, "chown", lambda *_arguments: None)
    me = receive.pwd.getpwnam(getpass.getuser())
    other = me.__class__((*me[:2], me.pw_uid + 1, *me[3:]))
    monkeypatch.setattr(receive.pwd, "getpwnam", lambda _name: other)
    (incoming / digest(CONTENT)).write_bytes(b"part")
    (incoming.parent / "secret").write_text("not ours")
    os.link(incoming.parent / "secret", incoming / digest(OTHER))
    receive.serve(str(incoming.parent), str(incoming), order("prepare"), {})
    mine = {os.stat(incoming / name).st_ino for name in (digest(CONTENT), blobs.CONTROLLER)}
    assert set(given) == mine


# Lines


def test_a_long_transfer_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    enough = threading.Event()
    monkeypatch.setattr(sender, "PROGRESS_SECONDS", 0.01)

    class Screen:
        def display(self, line: str) -> None:
            said.append(line)
            enough.set()

    monkeypatch.setattr(sender, "Display", Screen)
    mine = sender.Sender.__new__(sender.Sender)
    mine.host, mine.pull_total = "npu1", None
    sizes = iter([None, *range(100 * blobs.MIB, 10**12, blobs.MIB)])
    result = mine._watch(lambda: enough.wait(10), lambda: next(sizes), 2048 * blobs.MIB)
    assert result is True
    assert said[0].startswith("npu1: models: 100 of 2048 MiB, ")
    quick: list[str] = said[:]
    monkeypatch.setattr(sender, "PROGRESS_SECONDS", 10)
    with pytest.raises(ZeroDivisionError):
        mine._watch(lambda: 1 // 0, lambda: 0, None)
    assert said == quick


def test_a_line() -> None:
    pace = sender.Pace("npu1", 2048 * blobs.MIB, 62 * blobs.MIB, 100.0)
    assert pace.line(412 * blobs.MIB, 110.0) == "npu1: models: 412 of 2048 MiB, 35 MiB/s, 47 s left"
    assert pace.line(62 * blobs.MIB, 110.0) == "npu1: models: 62 of 2048 MiB, 0.0 MiB/s"
    assert sender.Pace("npu1", None, 0, 0.0).line(25 * blobs.MIB, 10.0) == "npu1: models: 25 MiB, 2.5 MiB/s"


def test_a_transfer_leaves_what_another_run_is_making(tmp_path: Path) -> None:
    """A release half made in tmp/ under the store's lock is not the transfer's to clear away."""
    root, incoming = tmp_path / "store", tmp_path / "store/incoming"
    store.prepare(str(root))
    incoming.mkdir()
    (incoming / digest(CONTENT)).write_bytes(CONTENT)
    making = root / "tmp/release-digits-abc"
    making.mkdir()
    (making / "config.pbtxt").write_text("half made")
    for name in ("link-digits", "json-abc"):
        (root / "tmp" / name).write_text("")
    order = {"do": "take", "blobs": {digest(CONTENT): {"source": "here"}}}
    with store.locked(str(root), time.monotonic()):
        assert receive.serve(str(root), str(incoming), order, {}) == {"taken": {digest(CONTENT): len(CONTENT)}}
        assert sorted(os.listdir(root / "tmp")) == ["json-abc", "link-digits", "release-digits-abc"]
        assert (making / "config.pbtxt").exists()
    # Whoever holds the lock and is about to make releases clears what a dead run left
    store.prepare(str(root))
    assert os.listdir(root / "tmp") == []


def test_transfers_beside_a_run_that_makes_releases(tmp_path: Path) -> None:
    root, incoming = str(tmp_path / "store"), str(tmp_path / "store/incoming")
    store.prepare(root)
    os.mkdir(incoming)
    files = {f"1/{number}.txt": b"%d" % number for number in range(100)}
    release = {"release": "a" * 64, "source": "f" * 64, "files": {}}
    release["files"] = {
        path: {"sha256": digest(content), "blob": False, "content": base64.b64encode(content).decode()}
        for path, content in files.items()
    }
    ended = threading.Event()

    def transfer_again_and_again() -> None:
        while not ended.is_set():
            receive.serve(root, incoming, {"do": "take", "blobs": {}}, {})

    other = threading.Thread(target=transfer_again_and_again)
    other.start()
    try:
        for _ in range(30):
            with store.locked(root, time.monotonic()):
                made = store.release_path(root, "digits", store.make_release(root, "digits", release))
            assert {path: Path(made, path).read_bytes() for path in files} == files
    finally:
        ended.set()
        other.join()


SIGNED = """
- name: Transfer
  hosts: all
  gather_facts: false
  tasks:
    - name: Ask what is missing
      npufleet.triton.host_state:
        concerns: [models]
      register: state

    - name: Bring it
      npufleet.triton.model_blobs:
        sha256: "{{ state.actual.models.missing }}"
"""


def test_signature_of_an_address_fetches_the_file_and_is_not_told(site: Path) -> None:
    (site / "models/digits").mkdir(parents=True)
    (site / "models/digits/config.pbtxt").write_text('backend: "rbln"\n')
    with stores.serving({"m.rbln": CONTENT}) as server:
        address = f"{server.url}/m.rbln?sp=r&sig=s1gnature"
        artefact = {"CA12/0.6": {"url": address, "sha256": digest(CONTENT)}}
        given = variables(
            site,
            npufleet_root=str(site / "npu1"),
            npufleet_cache=str(site / "cache"),
            triton_models=[{"name": "digits", "artefacts": artefact}],
            ansible_connection="ssh",
            ansible_user=getpass.getuser(),
        )
        results = play(site, {"npu1": given}, SIGNED)
        assert results["Ask what is missing"]["npu1"]["origins"][digest(CONTENT)]["url"] == f"{server.url}/m.rbln"
    assert kept(site, "npu1") == {digest(CONTENT): CONTENT}, results["Bring it"]
    assert {path for _how, path, _range in server.asked} == {"/m.rbln?sp=r&sig=s1gnature"}
    assert "s1gnature" not in str(results)
