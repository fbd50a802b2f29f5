# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Options of dockerd: merge desired options into daemon.json, and read the options that the command line of dockerd sets.

The names are from the source of moby (cmd/dockerd/config.go and config_unix.go, daemon/config/config.go). Some options can be set
several times. Their flag has a singular name, and their key in the file has a plural name. dockerd does not start if an option is
set both by a flag and in the file.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

DAEMON_JSON = "/etc/docker/daemon.json"
# {option: the option that selects its driver}. The values of an option are valid only for the selected driver.
DRIVER_OPTIONS = {"log-opts": "log-driver", "storage-opts": "storage-driver", "cluster-store-opts": "cluster-store"}
# Defaults of dockerd. The storage driver has no fixed default: it depends on the host.
DEFAULT_DRIVERS = {"log-driver": "json-file"}
# Maps whose entries are replaced as a whole. If an entry were merged, a runtime, for example, could have both a path and a type.
WHOLE_ENTRIES = ("runtimes", "default-ulimits")
# Maps that count as one option of dockerd. In other maps, such as `proxies`, each entry is an option.
ONE_OPTION = ("builder", "cluster-store-opts", "default-network-opts", "default-ulimits", "features", "log-opts", "runtimes")
# dockerd accepts this option in the file together with its flag, and merges their values.
MERGED_BY_DOCKERD = "runtimes"
# {name of a flag: name of its option in the file}
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

UNIT = "docker.service"
# Unit directories of systemd in the order of precedence
UNIT_PATHS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
)  # fmt: skip
PROGRAM = "dockerd"
# The unit of Debian's package. It is used if the host has no unit, because drop-ins can exist before the package is installed.
PACKAGED_UNIT = (
    "the package's docker.service",
    "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n",
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def parse(raw: Optional[str]) -> Dict[str, Any]:
    """Return the options in the text of a daemon.json, which may be missing or empty. Raises ValueError."""
    return dict(shapes.parse_as(raw, dict)) if raw and raw.strip() else {}


def merge(current: Optional[Mapping[str, Any]], desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return `current` updated with `desired`: maps are merged, other values are replaced.

    `desired` may select another driver for logs or storage. The options of the current driver are then removed, because dockerd
    would not start with them.
    """
    merged = {}
    for option, value in (current or {}).items():
        valid_part = _valid_part(option, value, current or {}, desired)
        if valid_part is not None:
            merged[option] = valid_part
    for option, value in desired.items():
        merged[option] = _merge_value(merged.get(option), value, whole_entries=option in WHOLE_ENTRIES)
    return merged


def _valid_part(option: str, value: Any, current: Mapping[str, Any], desired: Mapping[str, Any]) -> Any:
    """Return the part of an option's current value that the desired driver accepts, or None if no part remains."""
    owner = DRIVER_OPTIONS.get(option)
    if owner is None or owner not in desired:
        return value
    current_driver = current.get(owner, DEFAULT_DRIVERS.get(owner))
    if current_driver == desired[owner]:
        return value
    if current_driver is None and isinstance(value, list):
        # The current driver is unknown, but a storage option begins with the name of its driver, as in `overlay2.size=20G`.
        return [entry for entry in value if str(entry).startswith(f"{desired[owner]}.")] or None
    return None


def _merge_value(current: Any, desired: Any, whole_entries: bool = False) -> Any:
    if not (isinstance(current, Mapping) and isinstance(desired, Mapping)):
        return desired
    return {**current, **{key: desired[key] if whole_entries else _merge_value(current.get(key), desired[key]) for key in desired}}


def options(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the options of a daemon.json."""
    for option, value in config.items():
        if isinstance(value, Mapping) and option not in ONE_OPTION:
            yield from (str(name) for name in value)
        else:
            yield option


def clashes(config: Mapping[str, Any], flags: Mapping[str, str]) -> List[str]:
    """Return the flags (from `read_flags`) that conflict with daemon.json.

    dockerd does not start if a flag sets an option that is also in daemon.json. With `--config-file`, dockerd reads another file.
    """
    set_twice = [flags[option] for option in sorted(set(options(config)) & set(flags)) if option != MERGED_BY_DOCKERD]
    return [*set_twice, *([flags[CONFIG_FILE]] if CONFIG_FILE in flags else [])]


def read_flags() -> Dict[str, str]:
    """Return {option: "FLAG in FILE"} of the command line with which systemd starts dockerd.

    Values are left out, because they may be secret. `--config-file` is left out if it names daemon.json.
    """
    words = _command_line(_unit_files())
    if not words or os.path.basename(words[0][0].lstrip("@-:+!")) != PROGRAM:
        # Systemd starts another program, such as a script that starts dockerd. Only the running process shows the flags.
        words = _running_command_line()
    return dict(parse_flags(words))


def parse_flags(words: Sequence[Tuple[str, str]]) -> Iterator[Tuple[str, str]]:
    """Yield (option, "FLAG in FILE") of a command line. `words` has each word, with the file that sets the word."""
    for position, (word, source) in enumerate(words):
        if position == 0 or not re.match(r"-\w|--\w", word):
            continue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name == CONFIG_FILE:
                value = value if equals else "".join(following for following, _source in words[position + 1 : position + 2])
                if os.path.normpath(value) == DAEMON_JSON:
                    continue
            yield PLURALS.get(name, name), f"--{name} in {source}"
            continue
        for letter in word[1:]:
            name = SHORT_SWITCHES.get(letter) or SHORT_FLAGS.get(letter, letter)
            yield PLURALS.get(name, name), f"-{letter} in {source}"
            if letter not in SHORT_SWITCHES:
                break


def _unit_files() -> List[Tuple[str, str]]:
    """Return (path, content) of the engine's unit and of its drop-ins, in the order in which systemd reads them."""
    units = [os.path.join(path, UNIT) for path in UNIT_PATHS]
    unit = next((path for path in units if os.path.exists(path)), None)
    drop_ins: Dict[str, str] = {}
    for directory in (f"{UNIT}.d", "service.d"):
        for path in UNIT_PATHS:
            for found in glob.glob(os.path.join(glob.escape(path), directory, "*.conf")):
                drop_ins.setdefault(os.path.basename(found), found)
    main = (unit, read_text(unit) or "") if unit else PACKAGED_UNIT
    return [main, *((drop_ins[name], read_text(drop_ins[name]) or "") for name in sorted(drop_ins))]


def _command_line(units: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """Return each word of ExecStart with variables expanded, as (word, file that sets the word)."""
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
    return list(_expand(_split(start), environment, source))


def _expand(words: Sequence[str], environment: Mapping[str, Tuple[str, str]], source: str) -> Iterator[Tuple[str, str]]:
    for word in words:
        name = word[1:] if re.fullmatch(r"\$\w+", word) else ""
        if name:
            value, path = environment.get(name, ("", source))
            yield from ((part, path) for part in _split(value))
        else:
            paths = [environment[match][1] for match in _VARIABLE.findall(word) if match in environment]
            yield _VARIABLE.sub(lambda match: environment.get(match[1], ("", ""))[0], word), (paths or [source])[0]


def _settings(content: str) -> Iterator[Tuple[str, str]]:
    """Yield (name, value) of each setting in the [Service] section of a unit."""
    section, continued = "", ""
    for line in map(str.strip, content.splitlines()):
        if line[:1] in ("#", ";"):
            continue
        if line.endswith("\\"):
            continued += line[:-1] + " "
            continue
        setting, continued = continued + line, ""
        if re.fullmatch(r"\[[^\]]*\]", setting):
            section = setting
        elif section == "[Service]" and "=" in setting:
            name, _equals, value = setting.partition("=")
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
        # The line has a quote that is not closed, so quotes are ignored.
        return line.split()


def _running_command_line() -> List[Tuple[str, str]]:
    pid = (read_text("/var/run/docker.pid") or "").strip()
    words = (read_text(f"/proc/{pid}/cmdline") or "").split("\0")[:-1] if pid.isdigit() else []
    is_engine = bool(words) and os.path.basename(words[0]) == PROGRAM
    return [(word, f"the command line of process {pid}") for word in words] if is_engine else []
