"""The model store of a host: releases, the links by which Triton reads them, and the transaction in which links move.

Whatever is written is written in tmp/ and renamed, and the transaction is there before the first link moves: at whatever
step a run ends, the next one finds out which releases served before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import history, locks, records, shapes
from ansible_collections.npufleet.triton.plugins.module_utils.records import DIGEST, LABEL, NAME, content, serial
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, NUMBER, TEXT_OR_NULL

TRANSACTION, HISTORY, HOLDS = "transaction.json", "history.jsonl", "holds.json"
# Models whose load hangs in the server, and when that was seen: it holds until the container starts again
HUNG = "hung.json"
HOLD = {"source": DIGEST, "label": LABEL, "release": DIGEST, "versions": [str], "by": str, "when": str, "why": str}
# What each file of the store has to be; a history has it line by line, a record has records.SHAPE
SHAPES = {
    TRANSACTION: {
        "run": str,
        "by": str,
        "since": str,
        "renewed": NUMBER,
        "models": {NAME: {"from": (LABEL, NULL), "to": (LABEL, NULL), "what": str, "failed?": (LABEL, NULL)}},
        "holds": {NAME: (HOLD, NULL)},
        "why?": TEXT_OR_NULL,
    },
    HOLDS: {NAME: HOLD},
    HUNG: {"models": [str], "at": NUMBER},
}
# What a release's record tells beside its files
FACTS = ("release", "source", "versions", "steps", "cached", "shape")


class StoreError(Exception):
    """Why a release was not made; what is served is untouched."""


class Run(NamedTuple):
    """Who changes the store: the run's own id, a person at a controller, the host's name in the inventory."""

    run: str
    by: str
    host: str


def blob_path(root: str, digest: str) -> str:
    """Where a blob lies."""
    return os.path.join(root, "blobs", "sha256", digest)


def release_path(root: str, name: str, label: str) -> str:
    """The directory of a release."""
    return os.path.join(root, "releases", name, label)


def record_path(root: str, name: str, release: str) -> str:
    """Where the sizes and digests of a release are written down: beside it, so that the release holds only Triton's files."""
    return os.path.join(root, "releases", name, release + ".json")


DIRECTORIES = ("", "blobs", "blobs/sha256", "releases", "served", "tmp")


def is_there(root: str) -> bool:
    """Whether the store has all of its directories. Triton does not start without `served`, also when it has nothing to serve."""
    return all(os.path.isdir(os.path.join(root, name)) for name in DIRECTORIES)


def make_directory(path: str, mode: int = 0o755) -> None:
    """A directory of this mode, whatever the umask is, and whatever mode it had."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory(parent)
    os.makedirs(path, exist_ok=True)
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def make_directories(root: str) -> None:
    """The store's directories; what Triton reads is readable by any user of the container."""
    for name in DIRECTORIES:
        make_directory(os.path.join(root, name), 0o700 if name == "tmp" else 0o755)


def prepare(root: str) -> None:
    """Make the store ready for a change; for whoever holds its lock, and is the only one who makes anything in tmp/ then."""
    make_directories(root)
    # Of a run that was killed
    for name in os.listdir(os.path.join(root, "tmp")):
        path = os.path.join(root, "tmp", name)
        if name.startswith(("release-", "retired-")):
            shutil.rmtree(path)
        elif name.startswith(("link-", "json-")):
            os.unlink(path)


@contextmanager
def locked(root: str, deadline: float) -> Iterator[None]:
    """Holds the store for one call. The kernel lets go of it when a process ends, however it ends."""
    make_directory(root)
    with open(os.path.join(root, "lock"), "a", encoding="utf-8") as lock:
        if not locks.take(lock, deadline):
            raise StoreError(f"another process holds {lock.name}: see `fuser {lock.name}`, and run again")
        yield


# Files of the store


def write_json(root: str, path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file in one piece."""
    write_text(root, path, json.dumps(value, indent=1, sort_keys=True))


def write_text(root: str, path: str, text: str) -> None:
    """Write a file in one piece, and on to the disk before it counts."""
    handle, staging = tempfile.mkstemp(prefix="json-", dir=os.path.join(root, "tmp"))
    with os.fdopen(handle, "w", encoding="utf-8") as sink:
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    os.chmod(staging, 0o644)
    os.replace(staging, path)


def now(at: Optional[float] = None) -> str:
    """A time as the store writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def read(root: str, name: str) -> shapes.Found:
    """One of the files in SHAPES."""
    return shapes.read(os.path.join(root, name), SHAPES[name])


def read_transaction(root: str) -> Optional[Dict[str, Any]]:
    """The open switch, None where there is none. One that cannot be used counts, with its `flaw`: somebody was in the midst of it,
    and what served before that the history tells."""
    found = read(root, TRANSACTION)
    if not found.there:
        return None
    if not found.flaw:
        return dict(found.content)
    models = _unproven(root)
    holds = told_holds(root)
    empty = {"run": "?", "by": "unknown", "since": "unknown", "renewed": 0}
    return {**empty, "models": models, "holds": {name: holds.get(name) for name in models}, "flaw": found.flaw}


def _unproven(root: str) -> Dict[str, Dict[str, Any]]:
    """The models that serve another release than the one that was proven last, as moves of a transaction."""
    lines = read_history(root)
    moves = {}
    for name in sorted({one["model"] for one in lines}):
        last = next(iter(history.proven(lines, name)[::-1]), None)
        here = served_label(root, name)
        if last and here != last["to"]:
            moves[name] = {"from": last["to"], "to": here, "what": "deploy" if here else "withdraw"}
    return moves


def read_holds(root: str) -> Dict[str, Any]:
    """{model: why the host keeps an older release of it}; where the file cannot be used, as the history tells it."""
    found = read(root, HOLDS)
    return told_holds(root) if found.flaw else dict(found.content or {})


def told_holds(root: str) -> Dict[str, Any]:
    """The holds as they follow from the history."""
    found = {}
    for name, hold in history.holds(read_history(root)).items():
        facts: Mapping[str, Any] = {}
        with suppress(StoreError):
            facts = read_record(root, name, hold["label"])
        found[name] = {**hold, "release": facts.get("release") or hold["release"], "versions": facts.get("versions") or []}
    return found


def read_history(root: str) -> List[Dict[str, Any]]:
    """Every change that is written down, oldest first. What is no line of it is passed over here, and told as damage."""
    return shapes.lines(os.path.join(root, HISTORY), history.SHAPE)[0]


def append_history(root: str, lines: List[Dict[str, Any]]) -> None:
    """Write changes down; one that a run wrote before it was killed is not written twice."""
    keys = ("run", "model", "what", "from", "to", "result")
    there = {tuple(one.get(key) for key in keys) for one in read_history(root)}
    fresh = [one for one in lines if tuple(one[key] for key in keys) not in there]
    if not fresh:
        return
    path = os.path.join(root, HISTORY)
    with open(path, "a+b") as sink:
        torn = b""
        if sink.tell():
            sink.seek(-1, os.SEEK_END)
            torn = b"" if sink.read(1) == b"\n" else b"\n"
        sink.write(torn + b"".join(json.dumps(one, sort_keys=True).encode() + b"\n" for one in fresh))
        sink.flush()
        os.fsync(sink.fileno())
    os.chmod(path, 0o644)


# Releases


def labels(root: str, name: str) -> List[str]:
    """Labels of the model's releases that are here whole, newest first."""
    directory = os.path.join(root, "releases", name)
    found = [one for one in (os.listdir(directory) if os.path.isdir(directory) else []) if re.fullmatch(r"\d+-[0-9a-f]+", one)]
    return sorted((one for one in found if os.path.isdir(os.path.join(directory, one))), key=serial, reverse=True)


def next_serial(root: str, name: str) -> int:
    """One more than the highest serial that this model ever had here."""
    directory = os.path.join(root, "releases", name)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    numbers = [int(found.group(1)) for found in (re.match(r"(\d+)-", one) for one in names) if found]
    return max(numbers, default=0) + 1


def read_record(root: str, name: str, label: str) -> Dict[str, Any]:
    """What is written down of a release. Raises StoreError where it cannot be read."""
    found = shapes.read(record_path(root, name, label), records.SHAPE)
    if found.flaw or not found.there:
        raise StoreError(f"model {name}: the record of release {label} cannot be used: {found.flaw or 'it is gone'}")
    record = found.content
    base = release_path(root, name, label)
    if not record.get("versions"):
        # Written before records told it: Triton's default is the latest one
        numbers = [int(one) for one in os.listdir(base) if re.fullmatch(r"[1-9]\d*", one)] if os.path.isdir(base) else []
        record["versions"] = [str(max(numbers))] if numbers else []
    for path, one in record["files"].items():
        one.setdefault("blob", os.path.islink(os.path.join(base, path)))
    return {"steps": [], "cached": False, "shape": None, **record}


def wanted_of(record: Mapping[str, Any]) -> Dict[str, Any]:
    """A record as what is wanted of a model: its facts, and its files without their sizes."""
    files = {path: {"sha256": one["sha256"], "blob": one["blob"]} for path, one in record["files"].items()}
    return {**{key: record[key] for key in FACTS}, "files": files}


def make_release(root: str, name: str, release: Mapping[str, Any]) -> str:
    """Write one release in tmp/ and rename it into releases/. Returns its directory's name."""
    label = "{:04d}-{}".format(next_serial(root, name), release["release"][:12])
    home = os.path.join(root, "releases", name)
    make_directory(home)
    staging = tempfile.mkdtemp(prefix=f"release-{name}-", dir=os.path.join(root, "tmp"))
    files = {}
    try:
        for path in sorted(release["files"]):
            one = release["files"][path]
            target = os.path.join(staging, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if one["blob"]:
                blob = blob_path(root, one["sha256"])
                final = os.path.join(home, label, path)
                os.symlink(os.path.relpath(blob, os.path.dirname(final)), target)
                size = os.path.getsize(blob)
            else:
                content = base64.b64decode(one["content"])
                if hashlib.sha256(content).hexdigest() != one["sha256"]:
                    raise StoreError(f"model {name}: {path} arrived changed")
                with open(target, "wb") as sink:
                    sink.write(content)
                os.chmod(target, 0o444)
                size = len(content)
            files[path] = {"sha256": one["sha256"], "size": size, "blob": one["blob"]}
        for directory, _names, _files in os.walk(staging):
            os.chmod(directory, 0o755)
        write_json(root, record_path(root, name, label), {**{key: release.get(key) for key in FACTS}, "files": files})
        lost = [path for path in sorted(files) if not os.path.lexists(os.path.join(staging, path))]
        if lost:
            raise StoreError(f"model {name}: release {label} lost {', '.join(lost)} while it was made: run again")
        os.rename(staging, os.path.join(home, label))
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):
            os.unlink(record_path(root, name, label))
        raise
    return label


def release_again(root: str, name: str, label: str) -> Dict[str, Any]:
    """A release that is here, as make_release takes it. A file that was changed is taken from another release of equal content.

    Raises StoreError with every file that cannot be had.
    """
    record = read_record(root, name, label)
    places = [release_path(root, name, one) for one in dict.fromkeys([label, *labels(root, name)])]
    files: Dict[str, Any] = {}
    lost = []
    for path, one in sorted(record["files"].items()):
        files[path] = {"sha256": one["sha256"], "blob": one["blob"]}
        if one["blob"]:
            blob = blob_path(root, one["sha256"])
            if not os.path.isfile(blob) or os.path.getsize(blob) != one["size"]:
                lost.append(f"{path} (blob {one['sha256'][:12]})")
            continue
        content = next((found for found in (small_file(place, path, one["sha256"]) for place in places) if found is not None), None)
        if content is None:
            lost.append(path)
        else:
            files[path]["content"] = base64.b64encode(content).decode()
    if lost:
        raise StoreError(f"model {name}: release {label} is no longer whole, lost or changed: {', '.join(lost)}")
    return {**{key: record[key] for key in FACTS}, "files": files}


def small_file(base: str, path: str, digest: str) -> Optional[bytes]:
    """Content of a file of a release, None where it is not what its digest says."""
    try:
        with open(os.path.join(base, path), "rb") as source:
            content = source.read()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


# Links


def served_label(root: str, name: str) -> Optional[str]:
    """Label of the release that served/<name> links to, None where it is no link into this model's releases."""
    link = os.path.join(root, "served", name)
    if not os.path.islink(link):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    home = os.path.normpath(os.path.join(root, "releases", name))
    label = os.path.basename(target)
    return label if os.path.dirname(target) == home and LABEL.fullmatch(label) else None


def served_names(root: str) -> List[str]:
    """Every name below served/."""
    directory = os.path.join(root, "served")
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def move_links(root: str, moves: Mapping[str, Optional[str]]) -> List[str]:
    """Point served/<name> at a release, None takes the link away. Returns the names whose link moved.

    All links are made in tmp/ first, so that a full disk is met before the first one is renamed over its old one.
    """
    for name, label in moves.items():
        fresh = os.path.join(root, "tmp", "link-" + name)
        if os.path.lexists(fresh):
            os.unlink(fresh)
        if label is not None:
            os.symlink(os.path.join("..", "releases", name, label), fresh)
    moved: List[str] = []
    for name, label in moves.items():
        link = os.path.join(root, "served", name)
        if label is not None:
            os.replace(os.path.join(root, "tmp", "link-" + name), link)
        elif os.path.lexists(link):
            os.unlink(link)
        else:
            continue
        moved.append(name)
    return moved


# The transaction


def open_transaction(root: str, run: Run, moves: Mapping[str, Mapping[str, Any]], **more: Any) -> Dict[str, Any]:
    """Write down, before any link moves, what will move: where a model already is in it, what it was proven with stays its `from`.

    `moves` is {model: {"from", "to", "what"}}.
    """
    old = read_transaction(root) or {"models": {}, "holds": {}}
    mine = old.get("run") == run.run
    models = {name: {**move, "from": old["models"].get(name, move)["from"]} for name, move in moves.items()}
    holds = read_holds(root)
    value = {
        "run": run.run,
        "by": run.by,
        "since": old["since"] if mine else now(),
        "renewed": time.time(),
        "models": {**old["models"], **models},
        # As they were, for a put back
        "holds": {**{name: holds.get(name) for name in moves}, **old["holds"]},
        **({"why": old["why"]} if mine and "why" in old else {}),
        **more,
    }
    write_json(root, os.path.join(root, TRANSACTION), value)
    return value


def write_holds(root: str, holds: Mapping[str, Any]) -> None:
    """Write holds.json where it differs; no hold at all is no file."""
    kept = {name: one for name, one in holds.items() if one}
    path = os.path.join(root, HOLDS)
    if read(root, HOLDS).flaw:
        # Nobody knows what it said: it stays until somebody decides
        return
    if kept and kept != read_holds(root):
        write_json(root, path, kept)
    elif not kept and os.path.lexists(path):
        os.unlink(path)


def history_lines(root: str, run: Run, models: Mapping[str, Mapping[str, Any]], result: str, why: str) -> List[Dict[str, Any]]:
    """One line of history for each model of a transaction."""
    lines = []
    for name, move in sorted(models.items()):
        facts: Dict[str, Any] = {"source": None, "release": None}
        with suppress(StoreError):
            facts = read_record(root, name, move["to"] or move["from"] or "")
        lines.append(
            {
                "when": now(),
                "who": run.by,
                "run": run.run,
                "host": run.host,
                "model": name,
                "what": move["what"],
                "from": move.get("failed", move["from"]),
                "to": move["to"],
                "source": facts["source"],
                "release": facts["release"],
                "result": result,
                "why": why,
            }
        )
    return lines


def close_transaction(root: str, run: Run, result: str, why: str) -> Dict[str, Any]:
    """Write into the history what became of the open transaction, then end it. Returns its models."""
    found = read_transaction(root)
    if found is None:
        return {}
    moves = {}
    for name, move in found["models"].items():
        # What is proven is what is linked: a run that was killed may not have come to what it had written down
        here = served_label(root, name)
        if here == move["to"]:
            moves[name] = move
        elif here != move["from"]:
            moves[name] = {"from": move["from"], "to": here, "what": "deploy" if here else "withdraw"}
    append_history(root, history_lines(root, run, moves, result, why or found.get("why") or ""))
    os.unlink(os.path.join(root, TRANSACTION))
    return dict(found["models"])


def put_back(root: str, run: Run, why: str) -> Dict[str, Any]:
    """Serve again what served before the open transaction: {model: {"failed": the label that did, "to": what serves, or None}}.

    Old content gets fresh directories, because Triton takes an older one for unchanged. A model whose link has not moved keeps it.
    Raises StoreError after everything that could be put back was.
    """
    found = read_transaction(root)
    if found is None:
        return {}
    moves: Dict[str, Dict[str, Any]] = {}
    lost = []
    for name, move in sorted(found["models"].items()):
        label = served_label(root, name)
        try:
            to = move["from"]
            if to is not None and label != to:
                to = make_release(root, name, release_again(root, name, to))
        except StoreError as error:
            lost.append(str(error))
            continue
        moves[name] = {"from": move["from"], "to": to, "what": history.PUT_BACK, "failed": move["to"]}
    append_history(root, history_lines(root, run, found["models"], "failed", why))
    open_transaction(root, run, moves, why=why)
    write_holds(root, {**read_holds(root), **found["holds"]})
    move_links(root, {name: move["to"] for name, move in moves.items() if served_label(root, name) != move["to"] or not move["to"]})
    if lost:
        raise StoreError("; ".join(lost))
    return moves


# Rollback by hand


def rollback_target(root: str, name: str, to: str) -> str:
    """Label of the release that `to` means for a model: `previous`, a label, or the begin of a digest. Raises StoreError."""
    here = labels(root, name)
    current = served_label(root, name)
    if current is None:
        raise StoreError(f"model {name} is not served here: a rollback changes models that are, list it in triton_models")
    usable = {}
    for label in here:
        try:
            usable[label] = read_record(root, name, label)
        except StoreError:
            continue
    if to == "previous":
        found = history.previous(read_history(root), name, list(usable), current)
        if found is None:
            raise StoreError(f"model {name}: found no earlier release of it here that was proven, see playbooks/history.yml")
        return found
    if to in usable:
        return to
    # Its content may have been made anew since
    again = [label for label in usable if LABEL.fullmatch(to) and content(label) == content(to)]
    if again:
        return again[0]
    fitting = [
        label
        for label, one in usable.items()
        if re.fullmatch("[0-9a-f]{4,64}", to) and (one["release"].startswith(to) or one["source"].startswith(to))
    ]
    if len({usable[label]["release"] for label in fitting}) > 1:
        raise StoreError(f"model {name}: {to} may be {' or '.join(sorted(fitting))}: name one of them")
    if not fitting:
        raise StoreError(f"model {name}: found no release {to} here, there are {', '.join(here) or 'none'}")
    return fitting[0]


def rollback_moves(root: str, models: List[str], to: str) -> Dict[str, Dict[str, Any]]:
    """{model: {"from", "to": the label to go back to}}; of no model named every served one that has such a release.

    A model that serves this content already is left out. Raises StoreError with every reason.
    """
    moves: Dict[str, Dict[str, Any]] = {}
    same = 0
    reasons = []
    for name in models or served_names(root):
        try:
            label = rollback_target(root, name, to)
            release_again(root, name, label)
        except StoreError as error:
            reasons.append(str(error))
            continue
        current = served_label(root, name) or ""
        if read_record(root, name, label)["release"] != _digest_of(root, name, current):
            moves[name] = {"from": current, "to": label, "what": "rollback"}
        else:
            same += 1
    if reasons and (models or not (moves or same)):
        raise StoreError("; ".join(reasons))
    return moves


def _digest_of(root: str, name: str, label: str) -> Optional[str]:
    try:
        return str(read_record(root, name, label)["release"])
    except StoreError:
        return None


def holds_after(root: str, run: Run, moves: Mapping[str, Mapping[str, Any]], why: str) -> Dict[str, Any]:
    """The holds after a rollback: the source that a model is rolled back from is not wanted until the inventory has another one."""
    holds = read_holds(root)
    for name, move in moves.items():
        before = holds.get(name)
        target = read_record(root, name, move["to"])
        served = read_record(root, name, move["from"])
        # Rolled back twice: it is still the inventory's source that is not wanted
        rejected = before["source"] if before and before["release"] == served["release"] else served["source"]
        holds.pop(name, None)
        if rejected != target["source"]:
            holds[name] = {
                "source": rejected,
                "label": move["to"],
                "release": target["release"],
                "versions": target["versions"],
                "by": run.by,
                "when": now(),
                "why": why,
            }
    return holds


def hold_back(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Put the held releases in the place of what the inventory wants, in all concerns at once. Returns the holds that count.

    `desired` is what host_state was given; its models and its server change in place.
    """
    parts = [desired[concern] for concern in ("models", "server") if "models" in desired.get(concern, {})]
    root = next((one["root"] for one in parts if "root" in one), None)
    found = {}
    for name, hold in sorted(read_holds(root).items()) if root else []:
        mine = [one["models"] for one in parts if name in one["models"]]
        if not mine or any(one[name].get("source") != hold["source"] for one in mine):
            continue
        try:
            held = wanted_of(read_record(root or "", name, hold["label"]))
        except StoreError:
            continue
        for one in mine:
            one[name] = {**one[name], **{key: value for key, value in held.items() if key in one[name]}}
        found[name] = {**hold, **{key: held[key] for key in FACTS}, "rejected": hold["source"]}
    return found


def linked(root: str, wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """{model: facts} of what is linked below served/, over what is wanted, and of what the server reads from elsewhere."""
    found = {name: dict(one) for name, one in wanted.items() if one["release"] is None}
    for name in served_names(root):
        label = served_label(root, name)
        if label is not None:
            facts = {key: value for key, value in wanted_of(read_record(root, name, label)).items() if key != "files"}
            found[name] = {**wanted.get(name, {}), **facts}
    return found


def in_place(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a served version of `old` is another one in `new` under its number: a response cache knows its old answers."""
    shared = set(old["versions"]) & set(new["versions"])
    return any(_version(old, number) != _version(new, number) for number in shared)


def _version(one: Mapping[str, Any], number: str) -> Any:
    files = {path: file["sha256"] for path, file in one["files"].items() if path.startswith(number + "/")}
    # What is not known is not equal
    return files, one.get("shape") or object()
