#!/usr/bin/python3
"""Asks the Triton server of this host what its checks ask, and leaves the answers for node exporter and as JSON.

npufleet_probe.py CONFIG: a JSON file, see `Config`. Runs as root from a systemd timer, on Python 3.9 and the standard library.
It ends with 0 where it left a result, whatever the result says.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

LOCK = "/run/npufleet-probe.lock"
# What docker ends with when the engine itself refuses
ENGINE_FAILED = 125
# Why there is nobody to ask with
UNAVAILABLE = ("checks", "client", "engine", "image", "nothing", "time")
PAUSED = ("deployment", "maintenance")
SHOWN = 20
# Bytes that the client may print
OUTPUT = 1 << 26
# Seconds for one answer of the vendor's tool
TOOL = 20
# What is kept of a result: pictures and golden texts are not
KEPT = ("name", "model", "check", "protocol", "ok", "why", "ms", "latency")

HELP = {
    "npufleet_check_ok": "Whether a check by inference passed (1) or not (0).",
    "npufleet_check_duration_seconds": "Time that the slowest request of a check took.",
    "npufleet_driver_stale": "Whether the driver has lost its cards, and has to be loaded anew (1).",
    "npufleet_checks": "Checks that were asked, each over one protocol.",
    "npufleet_checks_failed": "Checks that did not pass.",
    "npufleet_models_unasked": "Models that no check asks anything.",
    "npufleet_probe_duration_seconds": "Time that the last probe took, its container included.",
    "npufleet_probe_interval_seconds": "Time between two probes.",
    "npufleet_probe_last_attempt_timestamp_seconds": "When the probe last ran, whether it could ask or not.",
    "npufleet_probe_last_run_timestamp_seconds": "When the probe last asked every check.",
    "npufleet_probe_paused": "Whether the probe asked nothing for this reason (1).",
    "npufleet_probe_unavailable": "Whether the probe had nothing to ask with for this reason (1).",
}


class Config(NamedTuple):
    """The configuration: times in seconds."""

    host: str
    # A line with digests, then what the client takes on standard input
    document: str
    # Runs the client; takes away a container of it that was left behind
    command: List[str]
    remove: List[str]
    limit: float
    interval: float
    state: str
    textfile: str
    maintenance: str
    # Of whoever changes the host: while it is there and has not run out, nothing is asked
    lease: str
    # Of restricted APIs that the checks ask: name of the header, and the file that holds the key
    key: Optional[Dict[str, str]]
    # Where the vendor's tool may be, and the directory of the device nodes
    vendor_tools: List[str]
    nodes: str


class Unavailable(Exception):
    """Why nothing could be asked."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason, self.why = reason, why


@contextlib.contextmanager
def alone(path: str) -> Iterator[bool]:
    """Whether no other probe runs; none begins before this one has ended."""
    # Root's alone, whatever the umask is, and whoever made it: whoever can open it can lock it
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+", encoding="utf-8") as lock:
        os.fchmod(handle, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def uptime() -> float:
    """Seconds since boot, by a clock that does not step: the time of day is for people and for Prometheus."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot() -> str:
    """This boot, as leases have it (change/lease.py): of the kernel, and of the first process of a container that is a host."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as kernel, open("/proc/1/stat", encoding="utf-8") as first:
        return f"{kernel.read().strip()}/{first.read().rpartition(')')[2].split()[19]}"


def paused(config: Config) -> Optional[str]:
    """Why nothing is to be asked now, None where something is."""
    if os.path.lexists(config.maintenance):
        return "maintenance"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        with open(config.lease, encoding="utf-8") as source:
            lease = json.load(source)
        return "deployment" if held(lease) else None
    return None


def held(lease: Mapping[str, Any]) -> bool:
    """Return True if a lease has not run out, as change/lease.py tells it; a version before wrote the time of day alone."""
    patience = lease["patience"]
    if "uptime" in lease:
        return bool(lease["boot"] == boot() and 0 <= uptime() - lease["uptime"] < patience)
    return bool(-patience <= time.time() - lease["renewed"] < patience)


def document(path: str) -> Tuple[str, bytes]:
    """(digest of what the checks follow from, what the client is given). Raises Unavailable for a file that is not as written."""
    try:
        with open(path, "rb") as source:
            head, body = json.loads(source.readline()), source.read()
        if head["document"] != hashlib.sha256(body).hexdigest():
            raise ValueError("its content is not what was written there")
        return str(head["checks"]), body
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable("checks", f"{path}: {error}: run playbooks/site.yml") from None


def with_key(config: Config, given: bytes) -> bytes:
    """The same with the key that the server has now, unless the checks bring one of their own."""
    if not config.key:
        return given
    whole = json.loads(given)
    with contextlib.suppress(OSError, ValueError), open(config.key["path"], encoding="ascii") as source:
        server = whole["document"]["server"]
        server["headers"] = {config.key["name"]: source.read().strip(), **(server.get("headers") or {})}
    return json.dumps(whole).encode()


def untranslated() -> Dict[str, str]:
    """Return the environment of a command whose output is parsed: its messages are in English, whatever the host's language."""
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}


def ask(config: Config, given: bytes) -> Tuple[List[Dict[str, Any]], List[str]]:
    """(the results of every check, models that none asks). Raises Unavailable where there is nothing to ask, or to ask with."""
    given = with_key(config, given)
    done = _run(config, given)
    if done.returncode == ENGINE_FAILED and b"is already in use" in done.stderr:
        # Nobody but this program has one of that name, and it holds the lock: a probe that was killed left it behind.
        subprocess.run(config.remove, capture_output=True, timeout=60, check=False, env=untranslated())
        done = _run(config, given)
    words = " ".join(done.stderr.decode("utf-8", "replace").split())[-600:]
    if done.returncode == ENGINE_FAILED:
        raise Unavailable("image" if "no such image" in words.lower() else "engine", words)
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
        if "error" in answer:
            raise Unavailable("client", f"the image lacks it: {answer['error']}")
        found = [{key: check[key] for key in KEPT if key in check} for check in answer["checks"]]
        unasked = [str(entry) for entry in answer.get("unasked", [])]
    except (ValueError, KeyError, TypeError):
        raise Unavailable("client", f"it ended with {done.returncode} and without a result: {words}") from None
    if unasked and not found:
        raise Unavailable("nothing", f"no check asks {', '.join(unasked)} anything: write check files, or take the probe away")
    return found, unasked


def _run(config: Config, given: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run the client, whose output ends in files of a size that has a limit: nobody knows what the image says."""
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            done = subprocess.run(
                config.command,
                input=given,
                stdout=out,
                stderr=err,
                timeout=config.limit,
                check=False,
                env=untranslated(),
                preexec_fn=_limit_files,
            )
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(config.command, done.returncode, out.read(), err.read())
    except OSError as error:
        raise Unavailable("engine", str(error)) from None
    except subprocess.TimeoutExpired:
        # Only docker's own process is gone by now.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(config.remove, capture_output=True, timeout=60, check=False, env=untranslated())
        raise Unavailable("time", f"it did not end within {config.limit:g} s") from None


def _limit_files() -> None:
    """A process that writes more gets an error, or its end."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT, OUTPUT))


def lost_cards(config: Config) -> Optional[str]:
    """Return how the driver has lost its cards, empty where it has them, None where the vendor's tool does not say.

    The concern `driver` judges the same way: cards of a group that are all number 0, or none beside device nodes that are there.
    """
    tool = next((path for path in config.vendor_tools if os.path.isfile(path) and os.access(path, os.X_OK)), None)
    if tool is None:
        return None
    try:
        names = os.listdir(config.nodes)
        numbers = _numbers(tool, sum(re.fullmatch(r"rsd\d+", name) is not None for name in names))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    nodes = [name for name in names if re.fullmatch(r"rbln\d+", name)]
    if nodes and not numbers:
        return f"the vendor's tool lists no card beside {', '.join(sorted(nodes))}"
    for group, mine in numbers.items():
        if len(mine) > 1 and set(mine) == {0}:
            where = "" if len(numbers) == 1 else f" of group {group}"
            return f"the vendor's tool numbers each of {len(mine)} cards{where} 0"
    return ""


def _numbers(tool: str, group_nodes: int) -> Dict[Optional[int], List[int]]:
    """The numbers of the cards by group, of which there is one where the tool reports none.

    Raises ValueError where groups are needed and not known: a host with several group nodes whose numbers repeat.
    """

    def listed(*options: str) -> List[Tuple[Optional[int], int]]:
        done = subprocess.run([tool, *options], capture_output=True, timeout=TOOL, check=True, env=untranslated())
        devices = json.loads(done.stdout)["devices"]
        return [(int(device["group_id"]) if "group_id" in device else None, int(device["npu"])) for device in devices]

    found = listed("-j")
    if len({npu for _group, npu in found}) < len(found) and any(group is None for group, _npu in found):
        try:
            found = listed("-g", "-j")
        except (subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError):
            if group_nodes > 1:
                raise
        if group_nodes > 1 and any(group is None for group, _npu in found):
            raise ValueError("the tool reports no groups")
    numbers: Dict[Optional[int], List[int]] = {}
    for group, npu in found:
        numbers.setdefault(group, []).append(npu)
    return numbers


def probe(config: Config, before: Mapping[str, Any]) -> Dict[str, Any]:
    """The state that one probe leaves; `before` is that of the probe before it."""
    began, moment = time.time(), uptime()
    state: Dict[str, Any] = {
        "host": config.host,
        "when": datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "at": began,
        "boot": boot(),
        "uptime": moment,
        "last_run": before.get("last_run", 0),
        "interval": config.interval,
        "seconds": 0,
        "paused": paused(config),
        "unavailable": None,
        "document": None,
        "lost_cards": None,
        "unasked": [],
        "checks": [],
    }
    if state["paused"]:
        return state
    state["lost_cards"] = lost_cards(config)
    try:
        state["document"], given = document(config.document)
        state["checks"], state["unasked"] = ask(config, given)
        state["last_run"] = began
    except Unavailable as unavailable:
        state["unavailable"] = {"reason": unavailable.reason, "why": unavailable.why}
    state["seconds"] = round(uptime() - moment, 2)
    # A server that somebody took away meanwhile has not failed.
    wrong = state["unavailable"] or not all(check["ok"] for check in state["checks"])
    state["paused"] = paused(config) if wrong else None
    if state["paused"]:
        state.update(unavailable=None, lost_cards=None, unasked=[], checks=[], last_run=before.get("last_run", 0))
    return state


def page(state: Mapping[str, Any]) -> str:
    """The state as node exporter reads it. Requests of one check and protocol are one line: the worst of them."""
    checks: Dict[Tuple[str, str, str], Tuple[bool, float]] = {}
    for check in state["checks"]:
        key = (check["model"], check.get("check", ""), check.get("protocol") or "")
        good, seconds = checks.get(key, (True, 0.0))
        checks[key] = (good and check["ok"], max(seconds, (check.get("ms") or 0) / 1000))
    names = [dict(zip(("model", "check", "protocol"), key)) for key in checks]
    unavailable = (state["unavailable"] or {}).get("reason")
    found: Dict[str, Sequence[Tuple[Mapping[str, str], float]]] = {
        "npufleet_check_ok": list(zip(names, [float(good) for good, _seconds in checks.values()])),
        "npufleet_check_duration_seconds": list(zip(names, [seconds for _good, seconds in checks.values()])),
        "npufleet_probe_interval_seconds": [({}, state["interval"])],
        "npufleet_probe_last_attempt_timestamp_seconds": [({}, state["at"])],
        "npufleet_probe_last_run_timestamp_seconds": [({}, state["last_run"])],
        "npufleet_probe_paused": [({"reason": reason}, reason == state["paused"]) for reason in PAUSED],
        "npufleet_probe_unavailable": [({"reason": reason}, reason == unavailable) for reason in UNAVAILABLE],
    }
    if state["lost_cards"] is not None:
        found["npufleet_driver_stale"] = [({}, bool(state["lost_cards"]))]
    if state["last_run"] == state["at"]:
        found["npufleet_checks"] = [({}, len(checks))]
        found["npufleet_models_unasked"] = [({}, len(state["unasked"]))]
        found["npufleet_checks_failed"] = [({}, sum(not good for good, _seconds in checks.values()))]
        found["npufleet_probe_duration_seconds"] = [({}, state["seconds"])]
    lines = []
    for name in sorted(found):
        if found[name]:
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge"]
            lines += [f"{name}{_labels(labels)} {float(value):.15g}" for labels, value in found[name]]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if labels else ""


def write(path: str, content: str, mode: int) -> None:
    """Write a file as a whole: a reader sees all of it or what was there before."""
    # Node exporter reads what ends with .prom, and nothing else.
    draft = path + ".draft"
    with contextlib.suppress(FileNotFoundError):
        os.remove(draft)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as target:
        os.fchmod(target.fileno(), mode)
        target.write(content)
    os.replace(draft, path)


def last(path: str) -> Dict[str, Any]:
    """The state that was left last, empty where there is none to be read."""
    try:
        with open(path, encoding="utf-8") as source:
            state = json.load(source)
        return state if isinstance(state, dict) and isinstance(state.get("last_run", 0), (int, float)) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def summary(state: Mapping[str, Any]) -> str:
    """The state for the journal."""
    if state["paused"]:
        return f"nothing was asked: {state['paused']}"
    lost = f"the driver is stale, run playbooks/recover.yml: {state['lost_cards']}\n" if state["lost_cards"] else ""
    if state["unavailable"]:
        return lost + "nothing could be asked, {reason}: {why}".format(**state["unavailable"])
    failed = [f"  {check['name']}: {check['why']}" for check in state["checks"] if not check["ok"]]
    count = len(state["checks"])
    lines = [f"{lost}{count - len(failed)} of {count} checks passed in {state['seconds']:g} s", *failed[:SHOWN]]
    lines += ["  no check asks anything of " + ", ".join(state["unasked"])] if state["unasked"] else []
    return "\n".join(lines + ([f"  and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []))


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    with open(arguments[0], encoding="utf-8") as source:
        config = Config(**json.load(source))
    with alone(LOCK) as free:
        if not free:
            print("another probe runs: nothing was asked")
            return 0
        state = probe(config, last(config.state))
        print(summary(state), flush=True)
        try:
            write(config.textfile, page(state), 0o644)
            write(config.state, json.dumps(state), 0o600)
        except OSError as error:
            print(f"the result cannot be left: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
