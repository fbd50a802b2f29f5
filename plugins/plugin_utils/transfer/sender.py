# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The controller's side of a transfer of blobs to a host: the source of each blob, rsync and progress.

ansible.posix.synchronize copies files into `incoming/` of the host as the connecting user. During the copy, rsync on the host holds
a lock on that directory. The module model_blobs verifies the files and moves them into the store.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import fcntl
import getpass
import os
import re
import shlex
import shutil
import socket
import tempfile
import threading
import time
from concurrent.futures import Future, wait
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from ansible.errors import AnsibleError
from ansible.utils.display import Display
from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, blobs
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import preflight_inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# Seconds between two lines of progress
PROGRESS_SECONDS = 10.0
# Seconds between two attempts while another controller transfers to the host
RETRY_SECONDS = 2.0
# Seconds that rsync on the host waits for the lock
LOCK_WAIT_SECONDS = 20
# Seconds without traffic after which rsync ends
RSYNC_TIMEOUT = 120


class Pace:
    """The progress of a transfer: transferred bytes, rate since the start, and time left."""

    def __init__(self, host: str, total: Optional[int], arrived: int, now: float) -> None:
        self.host, self.total, self.start_bytes, self.start = host, total, arrived, now

    def line(self, done: int, now: float) -> str:
        """Return the line of progress."""
        rate = (done - self.start_bytes) / max(now - self.start, 0.001)
        total_text = f" of {self.total // blobs.MIB}" if self.total else ""
        time_left = f", {max(self.total - done, 0) / rate:.0f} s left" if self.total and rate >= 1 else ""
        mib = rate / blobs.MIB
        return f"{self.host}: models: {done // blobs.MIB}{total_text} MiB, {mib:.{0 if mib >= 10 else 1}f} MiB/s{time_left}"


class Sender:
    """A transfer of blobs to one host, including the fetch of blobs that the controller does not have yet."""

    def __init__(self, action: Any, host: str, variables: Mapping[str, Any], task_vars: Mapping[str, Any]) -> None:
        self.action, self.host, self.variables, self.task_vars = action, host, variables, task_vars
        self.root = str(action._task.args.get("root") or variables["npufleet_root"])
        self.incoming = str(action._task.args.get("incoming") or variables["npufleet_incoming"])
        self.cache = os.path.join(variables["npufleet_cache"], "blobs")
        self.from_controller = variables["model_repository_fetch"] == "controller"
        # Paths in the cache of the blobs that this process fetches
        self.fetching: List[str] = []
        # {digest: bytes} that were on the host before this run
        self.arrived: Dict[str, int] = {}
        # Total size of the blobs that the host itself fetches, as reported by the host
        self.pull_total: Optional[int] = None

    def send(self, missing: List[str], origins: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
        """Copy the missing blobs to the host and return the result of the task. Raises StoreError."""
        if not missing:
            return {"changed": False, "transferred": {}, "bytes_moved": 0}
        # The host reports these digests, and the controller uses them as file names. So unknown digests are refused.
        unknown = sorted(host_text.line(digest)[:80] for digest in missing if digest not in origins)
        if unknown:
            todo = "nothing was sent; find out who changed that host"
            raise StoreError(f"it requests the blobs {', '.join(unknown[:5])}, which no model of the inventory has: {todo}")
        with _store_errors():
            return self._send(self._routes(missing, origins))

    def local_files(self, missing: List[str], origins: Mapping[str, Mapping[str, Any]]) -> Dict[str, str]:
        """Return {digest: file} of the missing blobs. Raises StoreError.

        The host must be the controller itself, which reads these files in place. So nothing is sent.
        """
        self.from_controller = True
        with _store_errors():
            return self._local_files(self._routes(missing, origins)) if missing else {}

    def _routes(self, missing: List[str], origins: Mapping[str, Mapping[str, Any]]) -> Dict[str, Dict[str, Any]]:
        """Return {digest: origin} with `pull` (True if the host fetches the blob), `source` (a text), and `size` if it is known."""
        options, secrets = preflight_inputs.fetch_options(self.variables, self.from_controller)
        bundle = self.variables["model_repository_bundle"]
        in_bundle = download.blobs_in_bundle(bundle) if self.from_controller else {}
        routes: Dict[str, Dict[str, Any]] = {}
        reasons = []
        for digest in missing:
            entry = dict(origins.get(digest) or {})
            if digest in in_bundle:
                entry = {"bundle": bundle}
            entry["pull"] = not self.from_controller and not entry.get("file")
            entry["source"] = download.display_name(entry)
            routes[digest] = entry
            if entry["pull"]:
                continue
            try:
                cached_size = 0 if entry.get("file") else _size_of(os.path.join(self.cache, digest))
                entry["size"] = in_bundle.get(digest) or cached_size or download.size(entry, digest, options, secrets)
            except download.SourceError as error:
                reasons.append(f"blob {digest[:12]} from {entry['source']}: {error}")
        if reasons:
            raise StoreError("; ".join(reasons))
        return routes

    def _send(self, routes: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
        limit = self.variables["model_repository_lock_timeout"]
        reported = time.monotonic()
        deadline = reported + int(limit)
        while True:
            answer = self._step("prepare", routes)
            if "busy" not in answer:
                needed = {digest: routes[digest] for digest in answer["needed"]}
                self.arrived = answer["arrived"]
                stored = self._store(routes, needed) if self._push(needed) else None
                if stored is None:
                    continue
                sizes = {digest: stored[digest] for digest in needed}
                moved = sum(sizes.values()) - self._arrived(needed)
                return {"changed": True, "transferred": sizes, "bytes_moved": max(moved, 0)}
            if time.monotonic() > deadline:
                todo = "run again after the end, or raise model_repository_lock_timeout"
                raise StoreError(f"{answer['busy']} is transferring to this host, expected the end within {limit} s: {todo}")
            if time.monotonic() - reported >= PROGRESS_SECONDS:
                reported = time.monotonic()
                Display().display(f"{self.host}: models: waits for the transfer of {answer['busy']} to this host")
            time.sleep(RETRY_SECONDS)

    def _step(self, name: str, routes: Mapping[str, Any], pull: bool = False) -> Dict[str, Any]:
        """Call a step of the module on the host. Secrets are sent only if the host itself fetches the blobs. Raises StoreError."""
        options, secrets = preflight_inputs.fetch_options(self.variables, self.from_controller) if pull else ({}, {})
        step = {
            "do": name,
            # The connecting user owns `incoming/`.
            "user": str(self.variables.get("ansible_user") or self.action.play_context.remote_user or getpass.getuser()),
            "by": f"{getpass.getuser()}@{socket.gethostname()}",
            "blobs": routes,
            "bundle": "" if self.from_controller else self.variables["model_repository_bundle"],
            "fetch_options": options,
        }
        request = {"step": step, "secrets": {**secrets, "addresses": secret.address_secrets(step)}}
        arguments = {"root": self.root, "incoming": self.incoming, "sha256": sorted(routes)}
        answer: Dict[str, Any] = self.action.call_module("model_blobs", arguments, self.task_vars, request)
        if answer.get("failed"):
            raise StoreError(str(answer.get("msg") or answer))
        return answer

    def _store(self, routes: Mapping[str, Any], needed: Mapping[str, Any]) -> Optional[Dict[str, int]]:
        """Let the host download its part of the needed blobs, verify all blobs, and move them into its store.

        Return {digest: size}, or None if another controller is transferring to the host now.
        """
        pulls = {digest: entry for digest, entry in needed.items() if entry["pull"]}
        try:
            if pulls:
                sizes = [pull.get("size") for pull in pulls.values()]
                total = sum(filter(None, sizes)) if all(sizes) else None
                read, arrived = self._progress_of(pulls), self._arrived(pulls)
                answer = self._watch(lambda: self._step("take", routes, True), read, total, arrived)
            else:
                answer = self._step("take", routes)
        except StoreError:
            # Remove damaged files from the cache of the controller. Otherwise every later run would send them again.
            for digest in needed:
                path = os.path.join(self.cache, digest)
                if os.path.isfile(path) and blobs.file_digest(path) != digest:
                    os.unlink(path)
            raise
        return answer.get("taken")

    def _push(self, needed: Mapping[str, Mapping[str, Any]]) -> bool:
        """Push the blobs that the host does not fetch. Return False if another controller is transferring to the host now."""
        pushes = {digest: entry for digest, entry in needed.items() if not entry["pull"]}
        if not pushes:
            return True
        files = self._local_files(pushes)
        with tempfile.TemporaryDirectory() as staging:
            for digest, path in files.items():
                os.symlink(os.path.abspath(path), os.path.join(staging, digest))
            total = sum(map(os.path.getsize, files.values()))
            result = self._watch(lambda: self._rsync(staging), self._progress_of(pushes), total, self._arrived(pushes))
        if not result.get("failed"):
            return True
        message = " ".join(str(result.get("msg") or result).split())
        if "No space left on device" in message or "Disk quota exceeded" in message:
            dropped = self._step("drop", pushes).get("dropped", {})
            removed = f"{sum(dropped.values())} bytes of partial files were removed"
            message = f"{self.incoming} is full (No space left on device) during a transfer of {total} bytes"
            raise StoreError(f"{message}; {removed}: free space there")
        if "busy" in self._step("prepare", pushes):
            return False
        raise StoreError(f"the transfer broke off ({message[-400:]}): run again to continue it")

    def _rsync(self, staging: str) -> Dict[str, Any]:
        """Call ansible.posix.synchronize without become, because rsync cannot answer the password prompt of sudo."""
        task = self.action._task.copy()
        task.args = {
            "src": staging + "/",
            "dest": self.incoming + "/",
            "archive": False,
            "compress": False,
            "copy_links": True,
            "delay_updates": False,
            "recursive": True,
            "times": True,
            "verify_host": True,
            "use_ssh_args": True,
            "ssh_connection_multiplexing": True,
            "rsync_timeout": RSYNC_TIMEOUT,
            "rsync_opts": list(self.variables["model_repository_rsync_options"]),
            # The rsync process on the host holds the lock.
            "rsync_path": f"flock --timeout {LOCK_WAIT_SECONDS} {shlex.quote(self.incoming)} rsync",
        }
        context = self.action.play_context.copy()
        context.become = False
        synchronize = self.action._shared_loader_obj.action_loader.get(
            "ansible.posix.synchronize",
            task=task,
            connection=self.action._connection,
            play_context=context,
            loader=self.action._loader,
            templar=self.action._templar,
            shared_loader_obj=self.action._shared_loader_obj,
        )
        return dict(synchronize.run(task_vars=dict(self.task_vars)))

    def _local_files(self, pushes: Mapping[str, Mapping[str, Any]]) -> Dict[str, str]:
        """Return {digest: file}. Missing files are fetched once for all hosts, into the cache of the controller."""
        files: Dict[str, str] = {}
        absent: Dict[str, Mapping[str, Any]] = {}
        for digest, push in pushes.items():
            cached = os.path.join(self.cache, digest)
            if push.get("file"):
                files[digest] = push["file"]
            elif push.get("bundle") and os.path.isdir(push["bundle"]):
                files[digest] = os.path.join(push["bundle"], "blobs", "sha256", digest)
            else:
                files[digest] = cached
                if not os.path.isfile(cached):
                    absent[digest] = push
        if absent:
            os.makedirs(self.cache, mode=0o700, exist_ok=True)
            partial = {digest: _size_of(os.path.join(self.cache, digest + ".partial")) for digest in absent}
            sizes = {digest: entry.get("size") for digest, entry in absent.items()}
            reason = blobs.shortage(f"{self.cache} on the controller", shutil.disk_usage(self.cache).free, partial, sizes)
            if reason:
                raise StoreError(reason)
            total = sum(filter(None, sizes.values())) if all(sizes.values()) else None
            self._watch(lambda: self._fetch(absent), self._fetched, total, sum(partial.values()))
        return files

    def _fetch(self, absent: Mapping[str, Mapping[str, Any]]) -> None:
        """Fetch blobs into the cache. Raises StoreError."""
        options, secrets = preflight_inputs.fetch_options(self.variables, self.from_controller)
        for digest, entry in sorted(absent.items()):
            path = os.path.join(self.cache, digest)
            partial, lock = path + ".partial", path + ".lock"
            with open(lock, "w", encoding="utf-8") as lock_file:
                fcntl.flock(lock_file, fcntl.LOCK_EX)
                if os.path.isfile(path):
                    if os.path.exists(lock):
                        os.unlink(lock)
                    continue
                self.fetching.append(path)
                try:
                    download.fetch(entry, digest, partial, options, secrets)
                except (download.SourceError, OSError) as error:
                    raise StoreError(f"blob {digest[:12]} from {entry['source']}: {error}") from None
                actual = blobs.file_digest(partial)
                if actual != digest:
                    os.unlink(partial)
                    todo = "it was removed; compare the source with `sha256` in the inventory"
                    blob = f"blob {digest[:12]} arrived from {entry['source']}"
                    raise StoreError(f"{blob} with SHA-256 {actual}, expected {digest}: {todo}")
                os.chmod(partial, 0o644)
                os.replace(partial, path)
                os.unlink(lock)

    def _fetched(self) -> Optional[int]:
        """Return the bytes that this process has fetched, or None before the first fetch."""
        return sum(_size_of(path) or _size_of(path + ".partial") for path in self.fetching) if self.fetching else None

    def _arrived(self, digests: Mapping[str, Any]) -> int:
        """Return the bytes of these blobs that were on the host before this run."""
        return sum(size for digest, size in self.arrived.items() if digest in digests)

    def _progress_of(self, digests: Mapping[str, Any]) -> Callable[[], Optional[int]]:
        """Return a function that returns the bytes of these blobs on the host, or None if the connection to the host fails.

        The function also renews the time stamp of a file on the host. The stamp shows that a controller is transferring.
        """
        # rsync uses the connection of the task, so this function needs a second connection. Only private names of Ansible offer a
        # second connection.
        watcher = copy.copy(self.action)
        watcher._connection = copy.copy(self.action._connection)
        watcher._connection._shell = copy.copy(watcher._connection._shell)
        directory = shlex.quote(self.incoming)
        command = f"cd {directory} && touch -c {blobs.CONTROLLER}; cat {blobs.TOTAL}; find . -maxdepth 1 -type f -printf '%f %s\\n'"

        def read() -> Optional[int]:
            try:
                output = watcher._low_level_execute_command(command, sudoable=watcher._connection.transport == "local")
            except AnsibleError:
                # The transfer itself reports a lost connection.
                return None
            text = output.get("stdout", "")
            total = re.search(r"^total (\d+)$", text, re.MULTILINE)
            self.pull_total = int(total.group(1)) if total else None
            done: Dict[str, int] = {}
            for name, size in re.findall(r"^\.?([0-9a-f]{64})\S* (\d+)$", text, re.MULTILINE):
                done[name] = max(done.get(name, 0), int(size))
            return sum(size for name, size in done.items() if name in digests)

        return read

    def _watch(self, work: Callable[[], Any], read: Callable[[], Optional[int]], total: Optional[int], arrived: int = 0) -> Any:
        """Run the work in a thread and print its progress. Return the result of the work, or raise its error."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                future.set_result(context.run(work))
            except BaseException as error:
                future.set_exception(error)

        pace = Pace(self.host, total, arrived, time.monotonic())
        # A daemon thread does not delay the end of an interrupted run, unlike the threads of an executor.
        threading.Thread(target=body, daemon=True).start()
        while not wait([future], PROGRESS_SECONDS).done:
            done = read()
            if done is not None and not future.done():
                pace.total = pace.total or self.pull_total
                Display().display(pace.line(done, time.monotonic()))
        return future.result()


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Convert errors of downloads and files in this context into StoreError."""
    try:
        yield
    except (download.SourceError, OSError) as error:
        raise StoreError(str(error)) from None


def _size_of(path: str) -> int:
    return os.path.getsize(path) if os.path.isfile(path) else 0
