"""Tests of faults on three bare servers, one in each mode of model control, with clients during each fault and its repair."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clients import Clients, doubling
from host import MODELS, Failed, Host, forget_shared_memory, shared_memory
from pytriton_wheel import tritonserver
from stories import MODES, cells, judge, tells

HERE = Path(__file__).parent
# nvidia-pytriton with Triton 24.10
WHEEL = "0.7.0"
# Seconds after which an answer counts as missing, even on a slow machine
ANSWERED = 600
PUT_BACK = "the previous releases serve again: "
Messages = dict[str, str]


class Place:
    """Three simulated hosts, their clients, and the repository without faults."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        program = tritonserver(HERE.parents[1] / "build/faults", WHEEL)
        self.hosts = {mode: Host(mode, directory / mode, program) for mode in MODES}
        # All requests to the model `cached` are equal, because the response cache answers only an earlier request.
        requests = {model: (lambda _number: doubling(7)) if model == "cached" else doubling for model in MODELS}
        self.clients = Clients({mode: f"127.0.0.1:{host.grpc_port}" for mode, host in self.hosts.items()}, requests)
        self.repository = directory / "models"
        shutil.copytree(HERE / "models", self.repository)
        # A large file, which is a blob on the host
        (self.repository / "alpha/1/weights.bin").write_bytes(os.urandom(2 << 20))

    def everywhere(self, act: Callable[[Host], Any]) -> dict[str, Any]:
        """Call a function for all hosts at once, and return {mode: result}."""
        with ThreadPoolExecutor() as pool:
            return dict(zip(self.hosts, pool.map(act, self.hosts.values())))

    def edited(self, edition: int = 2, **changes: list[tuple[str, str, str]]) -> Path:
        """Return a copy of the repository with another edition of these models. Each (file, old text, new text) is replaced."""
        repository = self.directory / f"models-{time.monotonic_ns()}"
        shutil.copytree(self.repository, repository)
        for name, edits in changes.items():
            for path, old, new in [("1/model.py", "EDITION = 1", f"EDITION = {edition}"), *edits]:
                file = repository / name / path
                assert file.read_text().count(old) == 1, (name, path, old)
                file.write_text(file.read_text().replace(old, new))
        return repository

    def refused(self, repository: Path, **options: Any) -> Messages:
        """Do a run that has to fail on every host, and return its messages by mode."""

        def failure(host: Host) -> str:
            with pytest.raises(Failed) as why:
                host.run(repository, **options)
            return str(why.value)

        return self.everywhere(failure)

    def repair(self) -> None:
        """Do an ordinary run with the right repository. A second run must have nothing to do."""
        self.everywhere(lambda host: host.run(self.repository))
        assert not any(self.everywhere(lambda host: host.run(self.repository)).values()), "one run was not enough"

    def lives(self) -> dict[str, int]:
        """Return {mode: how often its server was started}. After a restart, the number is different."""
        return {mode: host.starts for mode, host in self.hosts.items()}

    def drift(self) -> Messages:
        """Return the drift of each host by mode, as status.yml reports it."""
        return self.everywhere(lambda host: host.drift(self.repository))

    def wait_until_answered(self, edition: int | None = None, model: str | None = None) -> None:
        """Wait until each model has answered a request that was sent after this call."""
        since, deadline = time.monotonic(), time.monotonic() + ANSWERED
        waiting = {(mode, entry) for mode in MODES for entry in ([model] if model else MODELS)}
        while waiting:
            waiting = {question for question in waiting if not self.clients.answered(*question, since, edition)}
            assert time.monotonic() < deadline, waiting
            for host in self.hosts.values():
                host.revive()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("each store is on a separate file system, which only root can mount")
    found = Place(tmp_path_factory.mktemp("faults"))
    before = shared_memory()
    for host in found.hosts.values():
        for directory in (host.root, host.seen):
            os.makedirs(directory)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=755", "tmpfs", host.root], check=True)
        subprocess.run(["mount", "--bind", host.root, host.seen], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", host.seen], check=True)
    try:
        found.everywhere(lambda host: host.begin(found.repository))
        with found.clients:
            found.wait_until_answered(edition=1)
            yield found
    finally:
        found.everywhere(lambda host: host.stop(drain=False))
        for host in found.hosts.values():
            subprocess.run(["umount", host.seen, host.root], check=True)
        forget_shared_memory(before)


PYTHON = 'backend: "python"\n'
INITIALIZE = '        """There is nothing to load."""\n'
DOUBLE = "            y = x * 2\n"


@tells(wrong_digest=("alpha", r"arrived .*with SHA-256 \w+, expected"))
def a_source_with_another_digest(place: Place) -> Messages:
    repository = place.edited(alpha=[])
    (repository / "alpha/1/weights.bin").write_bytes(os.urandom(2 << 20))
    return place.refused(repository, changed=b"another file")


@tells(disk_full_switch=("alpha", "No space left on device"))
def a_disk_that_is_full_in_a_switch(place: Place) -> Messages:
    def size(host: Host, more: int) -> None:
        found = os.statvfs(host.root)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        subprocess.run(["mount", "-o", f"remount,size={used + more}", host.root], check=True)

    place.everywhere(lambda host: size(host, 0))
    try:
        return place.refused(place.edited(alpha=[]))
    finally:
        place.everywhere(lambda host: size(host, 200 << 20))


@tells(config_unreadable=("alpha", "alpha/config.pbtxt.*max_batch_sise"), no_model_file=("beta", "beta/2.*model.py"))
def a_repository_with_mistakes(place: Place) -> Messages:
    repository = place.edited(alpha=[("config.pbtxt", "max_batch_size", "max_batch_sise")])
    # The directory has a file, because git and the store drop empty directories.
    (repository / "beta/2").mkdir()
    (repository / "beta/2/labels.txt").write_text("zero\n")
    return place.refused(repository)


@tells(editions={1, 2}, old_cache=("cached", ""))
def a_cache_that_knows_old_answers(place: Place) -> Messages:
    repository = place.edited(cached=[])
    place.everywhere(lambda host: host.run(repository))
    since = time.monotonic()
    place.wait_until_answered(model="cached")
    for mode in MODES:
        assert place.clients.heard(mode, "cached", since, time.monotonic()).editions == {2}, f"{mode}: an old answer"
    return dict.fromkeys(MODES, "")


@tells(editions={1, 2}, server_restarted=("alpha", ""))
def a_server_that_is_restarted_in_mid_switch(place: Place) -> Messages:
    repository = place.edited(alpha=[])

    def outcome(host: Host) -> str:
        # If the server is not up yet at the time of the load, the run fails after a restore.
        try:
            host.run(repository, between=lambda: host.restart(drain=False))
        except Failed as why:
            assert PUT_BACK in str(why)
            return str(why)
        return "proven"

    return place.everywhere(outcome)


@tells(warmup_fails=("beta", PUT_BACK))
def a_warm_up_that_fails(place: Place) -> Messages:
    zero = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }'
    warm = f'model_warmup [ {{ name: "zero" batch_size: 1 {zero} }} ]\n'
    test = '            if not x.any():\n                raise ValueError("nothing to double")\n'
    return place.refused(place.edited(beta=[("config.pbtxt", PYTHON, PYTHON + warm), ("1/model.py", DOUBLE, test + DOUBLE)]))


@tells(load_hangs=("gamma", PUT_BACK))
def a_load_that_hangs(place: Place) -> Messages:
    hang = INITIALIZE + "        threading.Event().wait()\n"
    messages = place.refused(place.edited(gamma=[("1/model.py", INITIALIZE, hang)]))
    # The next run restarts a server in which a load hangs (concerns/server.py).
    place.everywhere(lambda host: host.restart() if host.mode != "none" else None)
    return messages


@tells(bytecode=("alpha", ""))
def bytecode_and_a_readme_in_the_repository(place: Place) -> Messages:
    repository = place.edited()
    (repository / "alpha/1/__pycache__").mkdir()
    (repository / "alpha/1/__pycache__/model.cpython-311.pyc").write_bytes(b"bytecode")
    (repository / "README.md").write_text("Models of the site\n")
    assert not any(place.everywhere(lambda host: host.run(repository)).values())
    return dict.fromkeys(MODES, "")


@tells(added_on_host=("alpha", "README.md was added.*__pycache__/model.cpython-311.pyc was added"))
def files_that_are_added_on_the_host(place: Place) -> Messages:
    for host in place.hosts.values():
        alpha = Path(host.root, "served/alpha")
        (alpha / "README.md").touch()
        (alpha / "1/__pycache__").mkdir()
        (alpha / "1/__pycache__/model.cpython-311.pyc").touch()
    return place.drift()


def blobs(place: Place) -> list[Path]:
    return [Path(host.root, "served/alpha/1/weights.bin").resolve() for host in place.hosts.values()]


@tells(blob_truncated=("alpha", "1/weights.bin: its blob"))
def a_blob_that_is_truncated_on_the_host(place: Place) -> Messages:
    for blob in blobs(place):
        os.truncate(blob, 1000)
    return place.drift()


@tells(blob_changed=("alpha", "1/weights.bin: its blob"))
def a_blob_that_is_changed_on_the_host(place: Place) -> Messages:
    for blob in blobs(place):
        with blob.open("r+b") as sink:
            sink.write(b"changed")
    return place.drift()


@pytest.mark.parametrize(("fault", "mode"), cells("servers"))
def test_cell(fault: str, mode: str, place: Place) -> None:
    judge(fault, mode, place)
