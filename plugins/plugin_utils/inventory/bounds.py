# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Bounds of variables: ranges of numbers, forms of names, allowed paths.

argument_specs.yml declares only types. `values.converted` checks each value against its bound. Thus a path such as `/`, or a number
that is too large for the memory, never reaches other code.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, Mapping, NamedTuple

from ansible_collections.npufleet.triton.plugins.module_utils.store.records import NAME
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import lock_file

# Limits of the bytes of a file name and of a path. The limit of a path is low, because this project creates files below some paths.
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024
# Limit of the bytes of a name that becomes a part of file names, such as release-<name>-<random>
MAX_STEM_BYTES = 200
MAX_ENTRIES = 1000  # Entries of a list or a map
MAX_LINE, MAX_TEXT = 4096, 1 << 20  # Characters of one line, and of a text with several lines
DAY = 86400  # Seconds
MAX_NPUS = 256
MAX_BYTES = 1 << 50  # 1 PiB, the limit of the size of a file or of memory
# Characters that end a line, control a terminal or cannot be encoded
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# A path that systemd units, shells, mounts and configuration files accept without quotes
HOST_PATH = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
# Directories of the system that are refused with every path below them
SYSTEM_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr"),
    *(f"/var/lib/{name}" for name in ("apt", "containerd", "dnf", "docker", "dpkg", "kubelet", "rpm", "systemd")),
)
# Directories of the system that are refused, although paths below them are accepted
SYSTEM_DIRECTORIES = (
    *(f"/{name}" for name in ("home", "lost+found", "media", "mnt", "opt", "root", "run", "srv", "tmp", "var")),
    *(f"/var/{name}" for name in ("backups", "cache", "lib", "local", "lock", "log", "mail", "opt", "run", "spool", "tmp", "www")),
)
# Endings of other files of a model. The path of a compiled file must not have such an ending.
RESERVED_ENDINGS = (".pbtxt", ".py", ".pyc", ".so", ".json")


class Bound(NamedTuple):
    """A condition on a value that already has the right type, with texts for messages."""

    expected: str
    fits: Callable[[Any], bool]
    next_step: str = "Correct it"
    # True if the value can contain a login
    secret: bool = False


def number(least: int, most: int) -> Bound:
    """Return the bound of a whole number from `least` to `most`."""
    return Bound(f"a whole number from {least} to {most}", lambda value: least <= value <= most)


def name(pattern: str, form: str, most: int = MAX_STEM_BYTES) -> Bound:
    """Return the bound of one line of text that matches `pattern`. `form` describes the pattern in messages."""
    compiled = re.compile(pattern)

    def fits(value: str) -> bool:
        return compiled.fullmatch(value) is not None and not CONTROL.search(value) and _bytes(value) <= most

    return Bound(f"{form} of at most {most} bytes", fits)


def text(most: int = MAX_LINE, lines: bool = False, secret: bool = False) -> Bound:
    """Return the bound of a text. If `lines` is true, line breaks and control characters are allowed."""
    if lines:
        return Bound(f"a text of at most {most} characters", lambda value: len(value) <= most and "\0" not in value, secret=secret)
    expected = f"one line of at most {most} characters, without control characters"
    return Bound(expected, lambda value: len(value) <= most and not CONTROL.search(value), secret=secret)


def entries(most: int = MAX_ENTRIES, distinct: bool = False) -> Bound:
    """Return the bound of the number of entries in a list or a map. If `distinct` is true, no two entries may be equal."""
    expected = f"at most {most} {'different ' if distinct else ''}entries"

    def fits(value: Any) -> bool:
        return len(value) <= most and not (distinct and len({str(entry) for entry in value}) < len(value))

    return Bound(expected, fits)


def _bytes(value: str) -> int:
    return len(value.encode("utf-8", "surrogatepass"))


def _is_plain_path(path: str) -> bool:
    """Return True if a path has no control characters and does not exceed the limits of its length."""
    is_short = _bytes(path) <= MAX_PATH_BYTES and all(_bytes(part) <= MAX_NAME_BYTES for part in path.split("/"))
    return is_short and not CONTROL.search(path)


def _is_below(path: str, trees: Any) -> bool:
    return any(path == tree or path.startswith(tree + "/") for tree in trees)


def is_system_path(path: str) -> bool:
    """Return True for directories of the system and home directories, which this project must not replace or remove."""
    return path == "/" or path in SYSTEM_DIRECTORIES or _is_below(path, SYSTEM_TREES) or os.path.dirname(path) == "/home"


def _is_host_path(path: str) -> bool:
    """Return True for an absolute and normalised path on a host."""
    return HOST_PATH.fullmatch(path) is not None and os.path.normpath(path) == path and _is_plain_path(path)


HOST_PATH_FORM = "an absolute path of letters, digits and . _ + @ -, without `..` and without a slash at its end"


def _is_store_path(path: str) -> bool:
    # A directory directly below / can be a mount point with files that do not belong to this project.
    is_deep = path.count("/") >= 2
    # A boot removes the files below these two directories.
    return _is_host_path(path) and is_deep and not is_system_path(path) and not _is_below(path, ("/run", "/var/run"))


# A teardown removes the store as root. Therefore the path of the store has the strictest bound.
STORE = Bound(
    f"{HOST_PATH_FORM}, two directories deep or more, and not a directory of the system",
    _is_store_path,
    "Name a directory that nothing else uses, such as /var/lib/npufleet",
)
DIRECTORY = Bound(
    f"{HOST_PATH_FORM}, and not a directory of the system",
    lambda path: _is_host_path(path) and not is_system_path(path),
    "Name a directory that nothing else uses",
)


def file_on_host(*endings: str) -> Bound:
    """Return the bound of a file that this project writes on a host, in a directory that this project creates."""

    def fits(path: str) -> bool:
        directory = os.path.dirname(path)
        allowed = not is_system_path(directory) or (_is_below(directory, ["/etc"]) and directory != "/etc")
        return _is_host_path(path) and allowed and path.endswith(endings)

    return Bound(
        f"{HOST_PATH_FORM}, in a directory below /etc or outside of the system directories, with the ending {' or '.join(endings)}",
        fits,
    )


def _is_controller_path(path: str) -> bool:
    return path.startswith(("/", "~/")) and _is_plain_path(path)


CONTROLLER_FILE = Bound("an absolute path on the controller, in one line", _is_controller_path, "Write the whole path")
CONTROLLER_FILE_OR_NONE = CONTROLLER_FILE._replace(fits=lambda path: not path or _is_controller_path(path))


def _is_controller_directory(path: str) -> bool:
    """Return True for a directory that runs may write to. Playbooks can be below /etc or /usr, so such paths are allowed."""
    normalised = os.path.normpath(path)
    excluded = [tree for tree in SYSTEM_TREES if tree not in ("/etc", "/usr")]
    inside = normalised not in ("/", "/etc", "/usr") and not _is_below(normalised, excluded)
    return path.startswith("/") and _is_controller_path(path) and inside


CONTROLLER_DIRECTORY = Bound(
    "an absolute path on the controller, in one line, and not a directory of the system",
    _is_controller_directory,
    "Name a directory that nothing else uses",
)


def _is_volume(value: str) -> bool:
    """Return True for `SOURCE[:TARGET[:MODE]]`, where SOURCE is a path or a volume's name, and TARGET a path in the container."""
    source, colon, rest = value.partition(":")
    target = rest.partition(":")[0] if colon else "/volume"
    is_name = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", source) is not None
    return (is_name or _is_absolute(source)) and _is_absolute(target) and bool(target.strip("/")) and not CONTROL.search(value)


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and _is_plain_path(path)


def _is_size(value: str) -> bool:
    """Return False for a size above MAX_BYTES. A short text that is no size is left to the parser of sizes, which rejects it."""
    match = re.fullmatch(r"\s*([0-9]+)([kmgt]?)i?b?\s*", value.lower())
    if CONTROL.search(value) or len(value) > 40:
        return False
    return not match or int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]] <= MAX_BYTES


def _is_ulimit(value: str) -> bool:
    """Return True if the numbers in `name:soft:hard` fit into 64 bits. The parser of ulimits reports other errors."""
    most = (1 << 63) - 1
    return len(value) <= 100 and all(abs(int(part)) <= most for part in re.findall("[0-9]+", value)) and not CONTROL.search(value)


def _is_artefact_path(path: str) -> bool:
    """Return True for a file in a version directory, such as 1/model.rbln. Files with RESERVED_ENDINGS are excluded."""
    parts = path.split("/")
    version, last = re.fullmatch("0|[1-9][0-9]{0,17}", parts[0]), parts[-1].lower()
    is_normal = len(parts) > 1 and os.path.normpath(path) == path
    # The record of the file has the same path with .json at its end.
    return bool(version) and is_normal and _is_plain_path(path + ".json") and not last.endswith(RESERVED_ENDINGS)


SECONDS_OR_0, SECONDS = number(0, DAY), number(1, DAY)
LABEL = name(r"[A-Za-z0-9_][A-Za-z0-9._-]*", "letters, digits and . _ -", 60)
# The file names of reports and results contain the name of their host.
HOST_NAME = name(r"[^/\\]+", "a name without slashes and control characters")


def _are_daemon_options(options: Mapping[str, Any]) -> bool:
    """Return True if each directory in the engine's options is the default or is not a directory of the system."""
    paths = [options[key] for key in ("data-root", "exec-root", "graph") if key in options]
    defaults = ("/var/lib/docker", "/var/run/docker", "/run/docker")
    return all(isinstance(path, str) and (path in defaults or DIRECTORY.fits(path)) for path in paths)


# Keys are variables and their parts: `[]` is an entry of a list, and `.key` is the value of a declared key of a map. For a map
# whose keys the site chooses, `[*]` is each value, and `{}` is each key.
BOUNDS: Dict[str, Bound] = {
    **{f"{name}_port": number(1, 65535) for name in ("npufleet_http", "npufleet_grpc", "npufleet_metrics")},
    **{f"load_balancer_{name}_port": number(1, 65535) for name in ("http", "grpc")},
    **{f"monitoring_{name}_port": number(1, 65535) for name in ("prometheus", "node", "cards")},
    **{f"npufleet_{name}": SECONDS_OR_0 for name in ("free_timeout", "lease_wait", "progress", "drain_timeout")},
    **dict.fromkeys(("npufleet_judge_seconds", "npufleet_judge_wait", "preflight_clock_skew"), SECONDS_OR_0),
    **dict.fromkeys(("model_repository_lock_timeout", "load_balancer_up_timeout", "triton_server_accept_within"), SECONDS_OR_0),
    **{f"triton_server_{name}_timeout": SECONDS_OR_0 for name in ("exit", "stop", "stuck_load")},
    "triton_server_watchdog_backoff": SECONDS_OR_0,
    **{f"triton_server_{name}": SECONDS for name in ("poll_seconds", "ready_timeout", "watchdog_interval")},
    **{f"triton_server_watchdog_{fault}_timeout": SECONDS for fault in ("fault", "stall", "process", "silence", "start")},
    **{f"rbln_driver_{name}_timeout": SECONDS for name in ("run", "boot", "reboot")},
    **dict.fromkeys(("load_balancer_load_timeout", "inference_check_timeout"), SECONDS),
    **dict.fromkeys(("monitoring_up_timeout", "monitoring_probe_limit"), SECONDS),
    **dict.fromkeys(("monitoring_probe_interval", "monitoring_metrics_interval"), number(5, DAY)),
    **dict.fromkeys(("npufleet_judge_requests", "npufleet_support_lines"), number(1, 1000000)),
    **dict.fromkeys(("npufleet_npus", "model_compile_models[].devices"), number(1, MAX_NPUS)),
    # GiB
    **{f"preflight_disk_{name}": number(0, 1 << 20) for name in ("engine", "transfer", "models")},
    **dict.fromkeys(
        ("triton_models[].device_memory", "triton_server_shm_size", "triton_server_memory"),
        Bound("a size of at most 1 PiB, such as 512m or 1g", _is_size),
    ),
    **dict.fromkeys(
        ("monitoring_scrape_options", "triton_server_manual_process", "triton_server_cloud_credentials"),
        entries()._replace(secret=True),
    ),
    **{f"load_balancer_{name}": text(MAX_TEXT, lines=True) for name in ("tls_certificate_text", "client_ca_text", "check_body")},
    "model_repository_gs_credentials": text(MAX_TEXT, lines=True),
    **dict.fromkeys(
        ("load_balancer_tls_key_text", "npufleet_proxy_text", "triton_server_environment[*]"),
        text(MAX_TEXT, lines=True, secret=True),
    ),
    **dict.fromkeys(("rbln_release", "npufleet_extra_releases{}", "npufleet_release_rows{}"), LABEL),
    "npufleet_card": name(r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits and . _ -", 60),
    "triton_models[].name": name(NAME.pattern, "the name of a directory, without control characters,")._replace(
        next_step="Give the model a shorter or plainer name"
    ),
    "triton_models[].instances": number(1, 128),
    "triton_models[].npus": entries(MAX_NPUS, distinct=True),
    "triton_models[].npus[]": number(0, MAX_NPUS - 1),
    "triton_models[].artefacts{}": name(
        r"[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*", "card/SDK such as CA22/0.9", 100
    ),
    "triton_models[].artefacts[*].path": Bound(
        f"a file in a version directory, such as 1/model.rbln, which does not end in {' '.join(RESERVED_ENDINGS)}",
        _is_artefact_path,
        "Leave it out for 1/model.rbln",
    ),
    "triton_models[].artefacts[*].size": number(0, MAX_BYTES),
    **dict.fromkeys(("npufleet_root", "npufleet_incoming"), STORE),
    "npufleet_proxy_file": file_on_host(".env"),
    "load_balancer_users[].name": text(200),
    **dict.fromkeys(("load_balancer_check_interval", "load_balancer_check_timeout"), number(1, 3600)),
    "load_balancer_stream_timeout": number(60, 7 * DAY),
    "load_balancer_maxconn": number(100, 1000000),
    "npufleet_lease_timeout": number(1, 7 * DAY),
    "npufleet_query_timeout": number(1, DAY),
    "npufleet_report_hours": number(1, 720),
    "npufleet_canary_weight": number(1, 256),
    "npufleet_drain_commands": entries(3),
    **dict.fromkeys(("npufleet_output_dir", "npufleet_support_dir", "inference_check_results_dir"), CONTROLLER_DIRECTORY),
    **dict.fromkeys(("model_compile_dir", "triton_server_compose_dir"), CONTROLLER_DIRECTORY),
    # An empty path turns the cache off.
    "npufleet_cache": CONTROLLER_DIRECTORY._replace(fits=lambda path: not path or CONTROLLER_DIRECTORY.fits(path)),
    # `proxy_reasons` in desired/engine.py reports the characters that a proxy must not have.
    **dict.fromkeys(("npufleet_http_proxy", "npufleet_https_proxy"), text(lines=True, secret=True)),
    "npufleet_no_proxy[]": text(lines=True),
    "npufleet_locked": Bound(
        "an entry as site.yml writes it", lambda entry: not lock_file.entry_error(entry), "Restore the lock file as it was reviewed"
    ),
    # The name of a systemd unit becomes a file name, and a directive becomes a line of its file.
    "docker_engine_unit_limits{}": name(r"[A-Za-z0-9:_.@-]+\.[a-z]+", "the name of a systemd unit, such as docker.service"),
    "docker_engine_unit_limits[*]{}": name(r"[A-Za-z]+", "a directive of systemd", 64),
    "docker_engine_daemon_options": Bound(
        "data-root and exec-root as directories that only the engine uses",
        _are_daemon_options,
        # The options can contain secrets, so messages do not show the value.
        secret=True,
    ),
    "inference_check_headers{}": name(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a header"),
    "inference_check_headers[*]": text(secret=True),
    "model_compile_models[].name": name(r"\w[\w.-]*", "letters, digits and . _ -"),
    "model_compile_models[].batches": entries(64),
    "model_compile_models[].batches[]": number(1, 1 << 20),
    "model_compile_python": Bound(f"{HOST_PATH_FORM}, or nothing", lambda path: not path or _is_host_path(path)),
    "model_repository_keep": number(1, 1000),
    "monitoring_prometheus_config": file_on_host(".yml", ".yaml"),
    "monitoring_rules_directory": DIRECTORY._replace(fits=lambda path: file_on_host("/x").fits(path + "/x")),
    "monitoring_targets_file": file_on_host(".json", ".yml", ".yaml"),
    "monitoring_probe_directory": DIRECTORY,
    "monitoring_prometheus_service": name(r"[A-Za-z0-9:_.@-]+", "the name of a systemd unit"),
    "monitoring_prometheus_group": name(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", "the name of a group", 32),
    "monitoring_scrape_interval": name(r"([0-9]+(ms|[smhdwy]))+", "a time as Prometheus writes it, such as 15s", 32),
    "monitoring_scrape_indent": number(0, 20),
    "monitoring_triton_port": number(0, 65535),
    "monitoring_cards_gateway": name(r"|[0-9A-Za-z.:\[\]_-]+:[0-9]{1,5}", "an address and a port such as 10.0.0.5:9200"),
    "monitoring_probe_jitter": number(0, DAY),
    "rbln_driver_package_path": Bound(
        "the path of a file below npufleet_root",
        lambda path: os.path.basename(path) not in (".", "..") and _is_plain_path(path),
        "Give the package another name",
    ),
    "triton_image_packages": Bound(HOST_PATH_FORM, _is_host_path),
    "triton_server_name": name(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", "a container name of letters, digits and . _ -", 100),
    "triton_server_user": number(0, (1 << 32) - 2),
    "triton_server_tmpfs[]": Bound("an absolute path in the container, and options", lambda value: _is_volume("tmpfs:" + value)),
    "triton_server_ulimits[]": Bound("limit:soft:hard, each of 64 bits", _is_ulimit),
    "triton_server_volumes[]": Bound(
        "an absolute path or the name of a volume, and an absolute path in the container other than /, both without `..`",
        _is_volume,
    ),
    "triton_server_environment{}": name(r"[^=\s]+", "the name of a variable"),
    "triton_server_extra_args[]": text(lines=True, secret=True),
    "triton_server_metrics_interval": number(10, DAY * 1000),
    "triton_server_metrics_config[]": name(r"[a-z_]+=[A-Za-z0-9.,:_-]+", "a setting such as summary_latencies=true"),
    "triton_server_trace_config[]": text(secret=True),  # The address of a collector can contain a login.
    # Adoption copies these values from a container. Line breaks are allowed, because only the engine reads the values.
    **dict.fromkeys(("triton_server_cpuset", "triton_server_log_driver", "triton_server_log_options{}"), text(lines=True)),
    "triton_server_log_options[*]": text(lines=True, secret=True),
    "triton_server_model_repositories[]": Bound(
        "a path in the container without `..`, or an address",
        lambda value: bool(value.strip("/")) and ".." not in value.split("/") and _is_plain_path(value),
    ),
    "triton_server_log_verbose": number(0, 100),
    "triton_server_watchdog_max_actions": number(0, 1000),
}
# The bounds of variables that BOUNDS does not name, by type. A test ensures that BOUNDS names each variable of type int.
BY_TYPE: Dict[str, Bound] = {"str": text(), "list": entries(), "dict": entries(), "path": CONTROLLER_FILE}


def bounded(field: str, spec: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the spec of a variable, extended by the bounds of its value and of the parts of this value."""
    kind = spec.get("type", "str")
    # If a value contains a login, logins.py needs the name of the variable for its advice.
    result = {**spec, "variable": field}
    bound = BOUNDS.get(field, BY_TYPE.get(kind))
    if bound is CONTROLLER_FILE and (spec.get("default") == "" or not spec.get("required", True)):
        bound = CONTROLLER_FILE_OR_NONE
    if bound:
        result["bound"] = bound
    if "options" in spec:
        inner = field + ("[]" if kind == "list" else "")
        result["options"] = {key: bounded(f"{inner}.{key}", option) for key, option in spec["options"].items()}
    if kind == "list":
        element = {key: spec[key] for key in ("options", "no_log", "choices") if key in spec}
        result["element"] = bounded(f"{field}[]", {**element, "type": spec.get("elements", "raw")})
    if "values" in spec:
        result["values"] = bounded(f"{field}[*]", spec["values"])
        result["key"] = BOUNDS.get(field + "{}", BY_TYPE["str"])
    return result
