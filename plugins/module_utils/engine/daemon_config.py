"""Options of dockerd: ours merged into daemon.json, and those that its command line sets already.

The names are those of dockerd's source (cmd/dockerd/config.go and config_unix.go, daemon/config/config.go of moby): an option that
may be given more than once has a singular name as a flag, and a plural one in the file. dockerd does not start when an option is
set in both places.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

DAEMON_JSON = "/etc/docker/daemon.json"
# Options whose values only fit one value of another option
DEPENDENT = {"log-opts": "log-driver", "storage-opts": "storage-driver", "cluster-store-opts": "cluster-store"}
# What dockerd uses where the file names none. The storage driver depends on the host
DEFAULTS = {"log-driver": "json-file"}
# Maps whose entries are objects: half of one and half of another would be neither, such as a runtime with a path and a type
OBJECTS = ("runtimes", "default-ulimits")
# Maps that dockerd takes for one option. The entries of every other map are options of their own, such as those of `proxies`
ONE_OPTION = ("builder", "cluster-store-opts", "default-network-opts", "default-ulimits", "features", "log-opts", "runtimes")
# The one option that dockerd merges out of file and flags
MERGED_BY_DOCKERD = "runtimes"
# Flags whose option has another name in the file
PLURALS = {
    "add-runtime": "runtimes", "authorization-plugin": "authorization-plugins", "cdi-spec-dir": "cdi-spec-dirs",
    "cluster-store-opt": "cluster-store-opts", "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts", "default-ulimit": "default-ulimits", "dns-opt": "dns-opts",
    "exec-opt": "exec-opts", "feature": "features", "host": "hosts", "insecure-registry": "insecure-registries",
    "label": "labels", "log-opt": "log-opts", "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors", "storage-opt": "storage-opts",
}  # fmt: skip
SHORT_FLAGS = {"b": "bridge", "G": "group", "g": "graph", "H": "host", "l": "log-level", "p": "pidfile", "s": "storage-driver"}
SHORT_SWITCHES = {"D": "debug"}
CONFIG_FILE = "config-file"
# What JSON that is no object is
KINDS = {type(None): "null", list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}

UNIT = "docker.service"
# Where systemd looks for units, the first counts
UNIT_PATHS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
)  # fmt: skip
PROGRAM = "dockerd"
# The unit that Debian's package brings, for a host that has none yet: files of variables and drop-ins may be there before it
PACKAGED = (
    "the package's docker.service",
    "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n",
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Flag(NamedTuple):
    """A flag of dockerd, by the name of its option in daemon.json."""

    option: str
    written: str
    source: str


def parse(raw: Optional[str]) -> Dict[str, Any]:
    """Return the options in the text of a daemon.json, which may be missing or empty. Raises ValueError."""
    if not raw or not raw.strip():
        return {}
    found = shapes.parse(raw)
    if not isinstance(found, dict):
        raise ValueError(f"wanted an object, found {KINDS[type(found)]}")
    return found


def merge(current: Optional[Mapping[str, Any]], wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """Return `wanted` laid over `current`: maps are merged, all other values are replaced.

    Options of another driver than the wanted one go with their driver: dockerd does not start with options that its driver lacks.
    """
    merged = {}
    for option, value in (current or {}).items():
        kept = _kept(option, value, current or {}, wanted)
        if kept is not None:
            merged[option] = kept
    for option, value in wanted.items():
        merged[option] = _laid_over(merged.get(option), value, objects=option in OBJECTS)
    return merged


def _kept(option: str, value: Any, current: Mapping[str, Any], wanted: Mapping[str, Any]) -> Any:
    """The value of an option of the file as far as it fits the wanted driver; None for nothing of it."""
    owner = DEPENDENT.get(option)
    if owner is None or owner not in wanted:
        return value
    before = current.get(owner, DEFAULTS.get(owner))
    if before == wanted[owner]:
        return value
    if before is None and isinstance(value, list):
        # The name of the driver begins each option of storage, as in `overlay2.size=20G`
        return [entry for entry in value if str(entry).startswith(f"{wanted[owner]}.")] or None
    return None


def _laid_over(current: Any, wanted: Any, objects: bool = False) -> Any:
    if not (isinstance(current, Mapping) and isinstance(wanted, Mapping)):
        return wanted
    return {**current, **{key: wanted[key] if objects else _laid_over(current.get(key), wanted[key]) for key in wanted}}


def options(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of each option that a daemon.json sets."""
    for option, value in config.items():
        if isinstance(value, Mapping) and option not in ONE_OPTION:
            yield from (str(name) for name in value)
        else:
            yield option


def clashes(config: Mapping[str, Any], flags: Mapping[str, str]) -> List[str]:
    """Return a description of each flag, as `read_flags` returns them, with which dockerd would not start or not read the file."""
    both = [flags[option] for option in sorted(set(options(config)) & set(flags)) if option != MERGED_BY_DOCKERD]
    return [*both, *([flags[CONFIG_FILE]] if CONFIG_FILE in flags else [])]


def read_flags() -> Dict[str, str]:
    """Return {option: the flag and the file that has it} of the command line by which systemd starts dockerd, or will start it.

    Values are left out: one may be a secret. `--config-file` is listed where it names another file than ours.
    """
    words = _command_line(_unit_files())
    if not words or os.path.basename(words[0][0].lstrip("@-:+!")) != PROGRAM:
        # A script that starts dockerd: what runs now is all that can be known
        words = _running_command_line()
    return {flag.option: f"{flag.written} in {flag.source}" for flag in parse_flags(words)}


def parse_flags(words: Sequence[Tuple[str, str]]) -> Iterator[Flag]:
    """Yield the flags of a command line, whose words are (word, the file that it comes from)."""
    for place, (word, source) in enumerate(words):
        if place == 0 or not re.match(r"-\w|--\w", word):
            continue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name == CONFIG_FILE:
                value = value if equals else "".join(following for following, _source in words[place + 1 : place + 2])
                if os.path.normpath(value) == DAEMON_JSON:
                    continue
            yield Flag(PLURALS.get(name, name), "--" + name, source)
            continue
        for letter in word[1:]:
            name = SHORT_SWITCHES.get(letter) or SHORT_FLAGS.get(letter, letter)
            yield Flag(PLURALS.get(name, name), "-" + letter, source)
            if letter not in SHORT_SWITCHES:
                break


def _unit_files() -> List[Tuple[str, str]]:
    """(path, content) of the engine's unit and its drop-ins, in the order in which systemd reads them."""
    units = [os.path.join(path, UNIT) for path in UNIT_PATHS]
    unit = next((path for path in units if os.path.exists(path)), None)
    drop_ins: Dict[str, str] = {}
    for directory in (f"{UNIT}.d", "service.d"):
        for path in UNIT_PATHS:
            for found in glob.glob(os.path.join(glob.escape(path), directory, "*.conf")):
                drop_ins.setdefault(os.path.basename(found), found)
    whole = (unit, read_text(unit) or "") if unit else PACKAGED
    return [whole, *((drop_ins[name], read_text(drop_ins[name]) or "") for name in sorted(drop_ins))]


def _command_line(units: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """The words of ExecStart with the values of variables in their places, each with the file that it comes from."""
    start, source = "", ""
    environment: Dict[str, Tuple[str, str]] = {}
    files: List[str] = []
    for path, content in units:
        for name, value in _settings(content):
            if name == "ExecStart":
                start, source = value, path
            elif name == "Environment":
                environment = {**environment, **_environment(value, path)} if value else {}
            elif name == "EnvironmentFile":
                files = [*files, value.lstrip("-")] if value else []
    for pattern in files:
        for path in sorted(glob.glob(pattern)):
            environment.update(_environment_file(read_text(path) or "", path))
    return list(_expanded(_split(start), environment, source))


def _expanded(words: Sequence[str], environment: Mapping[str, Tuple[str, str]], source: str) -> Iterator[Tuple[str, str]]:
    for word in words:
        name = word[1:] if re.fullmatch(r"\$\w+", word) else ""
        if name:
            value, of = environment.get(name, ("", source))
            yield from ((part, of) for part in _split(value))
        else:
            inner = [environment[found][1] for found in _VARIABLE.findall(word) if found in environment]
            yield _VARIABLE.sub(lambda found: environment.get(found[1], ("", ""))[0], word), (inner or [source])[0]


def _settings(content: str) -> Iterator[Tuple[str, str]]:
    """Yield name and value of each line in the section [Service] of a unit."""
    section, kept = "", ""
    for line in content.splitlines():
        line = line.strip()
        if line[:1] in ("#", ";"):
            continue
        if line.endswith("\\"):
            kept += line[:-1] + " "
            continue
        line, kept = kept + line, ""
        if re.fullmatch(r"\[[^\]]*\]", line):
            section = line
        elif section == "[Service]" and "=" in line:
            name, _equals, value = line.partition("=")
            yield name.strip(), value.strip()


def _environment(value: str, path: str) -> Dict[str, Tuple[str, str]]:
    pairs = [word.partition("=") for word in _split(value)]
    return {name: (content, path) for name, equals, content in pairs if equals}


def _environment_file(content: str, path: str) -> Dict[str, Tuple[str, str]]:
    found = {}
    for line in content.replace("\\\n", " ").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and re.fullmatch(r"\w+", name):
            quoted = value[:1] in ("'", '"')
            found[name] = ("".join(_split(value)) if quoted else value, path)
    return found


def _split(line: str) -> List[str]:
    try:
        return shlex.split(line)
    except ValueError:
        # An open quote
        return line.split()


def _running_command_line() -> List[Tuple[str, str]]:
    pid = (read_text("/var/run/docker.pid") or "").strip()
    words = (read_text(f"/proc/{pid}/cmdline") or "").split("\0")[:-1] if pid.isdigit() else []
    is_engine = bool(words) and os.path.basename(words[0]) == PROGRAM
    return [(word, f"the command line of process {pid}") for word in words] if is_engine else []
