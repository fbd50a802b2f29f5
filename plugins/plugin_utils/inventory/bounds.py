# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Bounds of variables: ranges of numbers, forms of names, allowed paths. Controller only.

argument_specs.yml declares types only. `values.converted` checks each value against its bound. Therefore no other code gets a path
such as `/`, or a number that is too large for the memory.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.store.records import NAME

# The most bytes of a file name. The most bytes of a path, below which this project creates further files
NAME_BYTES, PATH_BYTES = 255, 1024
# The most bytes of a name that becomes a part of file names, such as release-<name>-<random>
STEM_BYTES = 200
# The most entries of a list or a map. The most characters of one line, and of a text of several lines
ENTRIES, LINE, PAGE = 1000, 4096, 1 << 20
DAY = 86400  # seconds
MOST_NPUS = 256
MOST_BYTES = 1 << 50  # 1 PiB: the largest file or memory
# Characters that end a line, control a terminal or cannot be encoded
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Paths that units, shells, mounts and configuration files accept without quotes
HOST_PATH = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
# Directories of the system. The bounds refuse them and every path below them.
TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr"),
    *(f"/var/lib/{name}" for name in ("apt", "containerd", "dnf", "docker", "dpkg", "kubelet", "rpm", "systemd")),
)
# Directories of the system. The bounds refuse them, but accept paths below them.
SHARED = (
    *(f"/{name}" for name in ("home", "lost+found", "media", "mnt", "opt", "root", "run", "srv", "tmp", "var")),
    *(f"/var/{name}" for name in ("backups", "cache", "lib", "local", "lock", "log", "mail", "opt", "run", "spool", "tmp", "www")),
)
# Endings that a compiled file must not have, because other files of a model have them
RESERVED = (".pbtxt", ".py", ".pyc", ".so", ".json")
# Directories that do not survive a boot
VOLATILE = ("/run", "/var/run")


class Bound(NamedTuple):
    """A condition on a value that has the right type already, with texts for messages."""

    expected: str
    fits: Callable[[Any], bool]
    todo: str = "Correct it"
    # True if the value may contain a login
    secret: bool = False


def number(least: int, most: int) -> Bound:
    """Return the bound of a whole number from `least` to `most`."""
    return Bound(f"a whole number from {least} to {most}", lambda value: least <= value <= most)


def name(pattern: str, form: str, most: int = STEM_BYTES) -> Bound:
    """Return the bound of one line of text that matches `pattern`, which messages call `form`."""
    compiled = re.compile(pattern)

    def fits(value: str) -> bool:
        return compiled.fullmatch(value) is not None and not CONTROL.search(value) and _bytes(value) <= most

    return Bound(f"{form} of at most {most} bytes", fits)


def text(most: int, lines: bool = False, secret: bool = False) -> Bound:
    """Return the bound of a text. It may contain line breaks and control characters only if `lines` is true."""
    if lines:
        return Bound(f"a text of at most {most} characters", lambda value: len(value) <= most and "\0" not in value, secret=secret)
    expected = f"one line of at most {most} characters, without control characters"
    return Bound(expected, lambda value: len(value) <= most and not CONTROL.search(value), secret=secret)


def entries(most: int = ENTRIES, distinct: bool = False) -> Bound:
    """Return the bound of the number of entries in a list or a map; no two may be equal if `distinct` is true."""
    expected = f"at most {most} {'different ' if distinct else ''}entries"

    def fits(value: Any) -> bool:
        return len(value) <= most and not (distinct and len({str(entry) for entry in value}) < len(value))

    return Bound(expected, fits)


def _bytes(value: str) -> int:
    return len(value.encode("utf-8", "surrogatepass"))


def _short_enough(path: str) -> bool:
    return _bytes(path) <= PATH_BYTES and all(_bytes(part) <= NAME_BYTES for part in path.split("/"))


def _below(path: str, trees: Any) -> bool:
    return any(path == tree or path.startswith(tree + "/") for tree in trees)


def is_of_system(path: str) -> bool:
    """Return True for the system's directories and for home directories. This project must not replace or remove them."""
    return path == "/" or path in SHARED or _below(path, TREES) or os.path.dirname(path) == "/home"


def _host(path: str) -> bool:
    """Return True for an absolute and normalised path on a host."""
    plain = HOST_PATH.fullmatch(path) is not None and not path.startswith("//")
    return plain and os.path.normpath(path) == path and _short_enough(path)


PLAIN = "an absolute path of letters, digits and . _ + @ -, without `..` and a slash at its end"


def _store(path: str) -> bool:
    # A directory directly below / may be a mount point with files that do not belong to this project.
    deep = path.count("/") >= 2
    return _host(path) and deep and not is_of_system(path) and not _below(path, VOLATILE)


# Teardown removes the store as root. Therefore its bound is the strictest.
STORE = Bound(
    f"{PLAIN}, two directories deep or more and not one of the system's",
    _store,
    "Name a directory of its own, such as /var/lib/npufleet",
)
DIRECTORY = Bound(
    f"{PLAIN}, and not a directory of the system",
    lambda path: _host(path) and not is_of_system(path),
    "Name a directory of its own",
)


def file_on_host(*endings: str) -> Bound:
    """Return the bound of a file that this project writes on a host, in a directory that it creates."""

    def fits(path: str) -> bool:
        directory = os.path.dirname(path)
        allowed = not is_of_system(directory) or (_below(directory, ["/etc"]) and directory != "/etc")
        return _host(path) and allowed and path.endswith(endings)

    return Bound(f"{PLAIN}, in a directory below /etc or outside of the system's, with the ending {' or '.join(endings)}", fits)


def _package(path: str) -> bool:
    return os.path.basename(path) not in (".", "..") and _short_enough(path) and not CONTROL.search(path)


def _on_controller(path: str) -> bool:
    return path.startswith(("/", "~/")) and _short_enough(path) and not CONTROL.search(path)


CONTROLLER_FILE = Bound("an absolute path on the controller, of one line", _on_controller, "Write the whole path")
CONTROLLER_FILE_OR_NONE = CONTROLLER_FILE._replace(fits=lambda path: not path or _on_controller(path))


def _directory_on_controller(path: str) -> bool:
    """Return True for a directory that runs may write to. It may be below /etc and /usr, as people keep playbooks there."""
    normalised = os.path.normpath(path)
    excluded = [tree for tree in TREES if tree not in ("/etc", "/usr")]
    inside = normalised not in ("/", "/etc", "/usr") and not _below(normalised, excluded)
    return path.startswith("/") and _on_controller(path) and inside


CONTROLLER_DIRECTORY = Bound(
    "an absolute path on the controller, of one line, and not a directory of the system",
    _directory_on_controller,
    "Name a directory of its own",
)


def _locked(entry: Mapping[str, Any]) -> bool:
    """Return True if the ID in an entry of the lock file can be part of a file name. The lock file's reader checks the rest."""
    identity = entry.get("id", "none")
    return isinstance(identity, str) and re.fullmatch("[A-Za-z0-9:_-]{1,200}", identity) is not None


def _volume(value: str) -> bool:
    """Return True for `SOURCE[:TARGET[:MODE]]`: SOURCE is a path or the name of a volume, TARGET a path in the container."""
    source, colon, rest = value.partition(":")
    target = rest.partition(":")[0] if colon else "/of/its/own"
    named = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", source) is not None
    return (named or _absolute(source)) and _absolute(target) and bool(target.strip("/")) and not CONTROL.search(value)


def _absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and _short_enough(path)


def _repository(value: str) -> bool:
    named = bool(value.strip("/")) and ".." not in value.split("/")
    return named and _short_enough(value) and not CONTROL.search(value)


def _size(value: str) -> bool:
    """Return False for a size above MOST_BYTES. A short text that is no size passes, as the parser of sizes rejects it."""
    match = re.fullmatch(r"\s*([0-9]+)([kmgt]?)i?b?\s*", value.lower())
    if CONTROL.search(value) or len(value) > 40:
        return False
    return not match or int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]] <= MOST_BYTES


def _limit(value: str) -> bool:
    """Return True if the numbers in `name:soft:hard` fit into 64 bits. The parser of limits rejects other errors."""
    most = (1 << 63) - 1
    return len(value) <= 100 and all(abs(int(part)) <= most for part in re.findall("[0-9]+", value)) and not CONTROL.search(value)


def _artefact(path: str) -> bool:
    """Return True for a file in a version directory, such as 1/model.rbln, that has none of the RESERVED endings."""
    parts = path.split("/")
    version, last = re.fullmatch("0|[1-9][0-9]{0,17}", parts[0]), parts[-1].lower()
    plain = len(parts) > 1 and os.path.normpath(path) == path and not CONTROL.search(path)
    # The name of the file's record is this path plus .json.
    return bool(version) and plain and _short_enough(path + ".json") and not last.endswith(RESERVED)


SIZE = Bound("a size of at most 1 PiB, such as 512m or 1g", _size)
PORT = number(1, 65535)
# Seconds, at most one day. WAIT may be 0, TIME may not.
WAIT, TIME = number(0, DAY), number(1, DAY)
LABEL = name(r"[A-Za-z0-9_][A-Za-z0-9._-]*", "letters, digits and . _ -", 60)
FORM = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# Unit names become file names. Directives become lines of unit files.
UNIT = name(r"[A-Za-z0-9:_.@-]+\.[a-z]+", "the name of a systemd unit, such as docker.service")
DIRECTIVE = name(r"[A-Za-z]+", "a directive of systemd", 64)
GIB = number(0, 1 << 20)
# The file names of reports and results contain the name of their host.
HOST_NAME = name(r"[^/\\]+", "a name without slashes and control characters")


def _daemon(options: Mapping[str, Any]) -> bool:
    """Return True if each directory in the engine's options is its default or is not a directory of the system."""
    paths = [options[key] for key in ("data-root", "exec-root", "graph") if key in options]
    defaults = ("/var/lib/docker", "/var/run/docker", "/run/docker")
    return all(isinstance(path, str) and (path in defaults or (_host(path) and not is_of_system(path))) for path in paths)


# Keys are variables and their parts. `[]` is an entry of a list. `.key` is a value of a map with known keys. If the site chooses
# the keys of a map, `[*]` is a value of the map, and `{}` is a key.
BOUNDS: Dict[str, Bound] = {
    **dict.fromkeys(("rbln_release", "npufleet_extra_releases{}", "npufleet_release_rows{}"), LABEL),
    "npufleet_npus": number(1, MOST_NPUS),
    "npufleet_card": name(FORM, "letters, digits and . _ -", 60),
    "triton_models[].name": Bound(
        f"the name of a directory of at most {STEM_BYTES} bytes, without control characters",
        lambda value: NAME.fullmatch(value) is not None and not CONTROL.search(value) and _bytes(value) <= STEM_BYTES,
        "Give the model a shorter or plainer name",
    ),
    "triton_models[].instances": number(1, 128),
    "triton_models[].npus": entries(MOST_NPUS, distinct=True),
    "triton_models[].npus[]": number(0, MOST_NPUS - 1),
    "triton_models[].device_memory": SIZE,
    "triton_models[].artefacts{}": name(
        r"[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*", "card/SDK such as CA22/0.9", 100
    ),
    "triton_models[].artefacts[*].path": Bound(
        f"a file in a version directory, such as 1/model.rbln, which does not end in {' '.join(RESERVED)}",
        _artefact,
        "Leave it out for 1/model.rbln",
    ),
    "triton_models[].artefacts[*].size": number(0, MOST_BYTES),
    **dict.fromkeys(("npufleet_root", "npufleet_incoming"), STORE),
    "npufleet_proxy_file": file_on_host(".env"),
    **dict.fromkeys(("npufleet_http_port", "npufleet_grpc_port", "npufleet_metrics_port", "monitoring_prometheus_port"), PORT),
    **dict.fromkeys(("npufleet_free_timeout", "npufleet_lease_wait", "npufleet_progress", "model_repository_lock_timeout"), WAIT),
    "npufleet_lease_timeout": number(1, 7 * DAY),
    "npufleet_query_timeout": number(1, DAY),
    "npufleet_support_lines": number(1, 1000000),
    **dict.fromkeys(
        ("npufleet_output_dir", "npufleet_support_dir", "model_compile_dir", "triton_server_compose_dir"),
        CONTROLLER_DIRECTORY,
    ),
    "inference_check_results_dir": CONTROLLER_DIRECTORY,
    # An empty path turns the cache off.
    "npufleet_cache": CONTROLLER_DIRECTORY._replace(fits=lambda path: not path or CONTROLLER_DIRECTORY.fits(path)),
    # `proxy_reasons` in desired/engine.py reports the characters that a proxy must not have.
    **dict.fromkeys(("npufleet_http_proxy", "npufleet_https_proxy"), text(LINE, lines=True, secret=True)),
    "npufleet_no_proxy[]": text(LINE, lines=True),
    "npufleet_proxy_environment": entries(),
    "npufleet_locked": Bound(
        "an entry with the ID of an image, such as sha256:0123", _locked, "Bring the lock file back as it was reviewed"
    ),
    "npufleet_proxy_text": text(PAGE, lines=True, secret=True),
    "docker_engine_unit_limits{}": UNIT,
    "docker_engine_unit_limits[*]{}": DIRECTIVE,
    "docker_engine_daemon_options": Bound(
        "data-root and exec-root as paths of directories of their own",
        _daemon,
        # Only root may read the daemon.json, and messages show digests of its values.
        secret=True,
    ),
    "inference_check_timeout": TIME,
    "inference_check_headers{}": name(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a header"),
    "inference_check_headers[*]": text(LINE, secret=True),
    "model_compile_models[].name": name(r"\w[\w.-]*", "letters, digits and . _ -"),
    "model_compile_models[].batches": entries(64),
    "model_compile_models[].batches[]": number(1, 1 << 20),
    "model_compile_models[].devices": number(1, MOST_NPUS),
    "model_compile_python": Bound(f"{PLAIN}, or nothing", lambda path: not path or _host(path)),
    "model_repository_keep": number(1, 1000),
    "model_repository_gs_credentials": text(PAGE, lines=True),
    "monitoring_prometheus_config": file_on_host(".yml", ".yaml"),
    "monitoring_rules_file": file_on_host(".yml", ".yaml"),
    "monitoring_targets_file": file_on_host(".json", ".yml", ".yaml"),
    "monitoring_probe_directory": DIRECTORY,
    "monitoring_prometheus_service": name(r"[A-Za-z0-9:_.@-]+", "the name of a systemd unit"),
    "monitoring_prometheus_group": name(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", "the name of a group", 32),
    "monitoring_scrape_interval": name(r"([0-9]+(ms|[smhdwy]))+", "a time as Prometheus writes it, such as 15s", 32),
    "monitoring_scrape_indent": number(0, 20),
    "monitoring_scrape_job": text(PAGE, lines=True),
    "monitoring_up_timeout": TIME,
    "monitoring_probe_interval": number(5, DAY),
    "monitoring_probe_jitter": number(0, DAY),
    "monitoring_probe_limit": TIME,
    **dict.fromkeys(("preflight_disk_engine", "preflight_disk_transfer", "preflight_disk_models"), GIB),
    "preflight_clock_skew": WAIT,
    **dict.fromkeys(("rbln_driver_run_timeout", "rbln_driver_boot_timeout", "rbln_driver_reboot_timeout"), TIME),
    "rbln_driver_package_path": Bound("the path of a file below npufleet_root", _package, "Give the package another name"),
    "triton_image_packages": Bound(PLAIN, _host),
    "triton_server_name": name(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", "a container name of letters, digits and . _ -", 100),
    "triton_server_user": number(0, (1 << 32) - 2),
    "triton_server_tmpfs[]": Bound("an absolute path in the container, and its options", lambda value: _volume("tmpfs:" + value)),
    **dict.fromkeys(("triton_server_shm_size", "triton_server_memory"), SIZE),
    "triton_server_ulimits[]": Bound("limit:soft:hard, each of 64 bits", _limit),
    **dict.fromkeys(("triton_server_exit_timeout", "triton_server_stop_timeout"), WAIT),
    "triton_server_volumes[]": Bound(
        "an absolute path or the name of a volume, and an absolute path in the container other than /, no `..` in either", _volume
    ),
    "triton_server_environment{}": name(r"[^=\s]+", "the name of a variable"),
    "triton_server_environment[*]": text(PAGE, lines=True, secret=True),
    "triton_server_extra_args[]": text(LINE, lines=True, secret=True),
    # Adoption copies these values from a container. Only the engine reads them. They never become a path or a line of a file.
    **dict.fromkeys(("triton_server_cpuset", "triton_server_log_driver", "triton_server_log_options{}"), text(LINE, lines=True)),
    "triton_server_log_options[*]": text(LINE, lines=True, secret=True),
    "triton_server_model_repositories[]": Bound("a path in the container without `..`, or an address", _repository),
    "triton_server_poll_seconds": TIME,
    "triton_server_log_verbose": number(0, 100),
    "triton_server_ready_timeout": TIME,
    "triton_server_stuck_load_limit": WAIT,
    "triton_server_started_inside": entries()._replace(secret=True),
    "triton_server_cloud_credentials": entries()._replace(secret=True),
    "triton_server_watchdog_interval": TIME,
    **{f"triton_server_watchdog_{fault}_limit": TIME for fault in ("fault", "stall", "stub", "silence", "start")},
    "triton_server_watchdog_actions": number(0, 1000),
    "triton_server_watchdog_backoff": WAIT,
}
# The bounds of variables that BOUNDS does not name, by type. Each number has its own bound in BOUNDS.
BY_TYPE: Dict[str, Bound] = {"str": text(LINE), "list": entries(), "dict": entries(), "path": CONTROLLER_FILE}


def bounded(where: str, spec: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the spec of a variable, extended by the bounds of its value and of the value's parts."""
    kind = spec.get("type", "str")
    # `variable` is also the key in logins.INSTEAD, whose keys have the form of those of BOUNDS.
    result = {**spec, "variable": where}
    bound = BOUNDS.get(where, BY_TYPE.get(kind))
    if bound is CONTROLLER_FILE and (spec.get("default") == "" or not spec.get("required", True)):
        bound = CONTROLLER_FILE_OR_NONE
    if bound:
        result["bound"] = bound
    if "options" in spec:
        inner = where + ("[]" if kind == "list" else "")
        result["options"] = {key: bounded(f"{inner}.{key}", option) for key, option in spec["options"].items()}
    if kind == "list":
        result["element"] = bounded(f"{where}[]", element(result))
    if "values" in spec:
        result["values"] = bounded(f"{where}[*]", spec["values"])
        result["key"] = BOUNDS.get(where + "{}", BY_TYPE["str"])
    return result


def element(spec: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the spec of an entry of a list."""
    return {key: spec[key] for key in ("options", "no_log", "choices") if key in spec} | {"type": spec.get("elements", "raw")}


def unbounded(specs: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Return the numeric variables and parts of variables that have no bound, in the form of the keys of BOUNDS."""

    def walk(where: str, spec: Mapping[str, Any]) -> List[str]:
        names = [where] if spec.get("type") == "int" and "bound" not in spec else []
        for key, option in (spec.get("options") or {}).items():
            names += walk(f"{where}.{key}", option)
        parts: Dict[str, Optional[Mapping[str, Any]]] = {"[]": spec.get("element"), "[*]": spec.get("values")}
        return names + [entry for suffix, part in parts.items() if part for entry in walk(where + suffix, part)]

    return [entry for variable, spec in sorted(specs.items()) for entry in walk(variable, spec)]
