"""The Triton container as `docker inspect` shows it, and what the server inside says that it has loaded."""

from __future__ import annotations

import calendar
import hashlib
import json
import os
import re
import stat
import time
from itertools import takewhile
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import hidden, keys, store
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, Refusal, item
from ansible_collections.npufleet.triton.plugins.module_utils.probe import NAMELESS, Engine, can_be_asked, frames, http_json, netloc

CONCERN = "server"
HANGING = "loads"
RELEASE = "npufleet_release"
# By this variable Triton finds its keys to object stores; they lie where only root looks
CREDENTIALS = "TRITON_CLOUD_CREDENTIAL_PATH"
CREDENTIALS_HOME = "/etc/npufleet/credentials"
# How far back the log of a container that ended is read: its usage message alone has some hundred lines.
LOG_LINES = 1000
# How each entry of Triton's log begins; what does not begin so goes on with the entry before
LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./]+:\d+\] ?")
REASON = 2000
ERROR_LINE = re.compile(r"E\d{4} |error:|tritonserver: |Traceback|\w*Error: ")
# Where Python's frames begin in what Triton says, in one entry or, as from 2.51 on, escaped in one line
FRAMES = re.compile(r"(\\n|\n){2}At:")
# What the server's part of a host has to know of a model
MODEL = ("versions", "release", "source", "steps", "memory", "switch", "cached")
# ... and what it knows of one that Triton itself reads out of an object store
CLOUD: Mapping[str, Any] = {
    **dict.fromkeys(("versions", "release", "source")),
    "steps": [],
    "memory": [],
    "switch": "beside",
    "cached": False,
}
CLOUD_SERVICES = ("allow-sagemaker", "allow-vertex-ai")
# What the engine records for options that were not given: an option dropped from the inventory is then a difference.
DEFAULTS: Dict[str, Any] = {
    "cap_add": [],
    "cap_drop": [],
    "cpuset": "",
    "devices": [],
    "entrypoint": "the image's",
    "extra_hosts": [],
    "ipc": "default",
    "cpus": 0,
    "memory": 0,
    "network": "default",
    "pid": "",
    "pids_limit": 0,
    "read_only": False,
    "security": [],
    "tmpfs": [],
    "user": "the image's",
    "working_dir": "the image's",
}


def desired(
    variables: Mapping[str, Any],
    image: Mapping[str, Any],
    manifests: Mapping[str, Mapping[str, Any]],
    cloud: Sequence[str] = (),
) -> Dict[str, Any]:
    """The container, and name, versions and release digest of every model that it has to serve.

    `cloud` are the models that Triton itself reads out of an object store: they have to be READY, and no more is known of them.
    """
    closed = keys.reasons(variables)
    if closed:
        raise Refusal(closed)
    cloud_keys = credentials(variables["triton_server_cloud_credentials"])
    mode = variables["triton_server_model_control_mode"]
    container = {
        "image": image["id"],
        "command": keys.command(variables, command(variables, sorted([*manifests, *cloud]), image.get("options") or [])),
        "environment": {
            **{key: str(value) for key, value in variables["triton_server_environment"].items()},
            **({CREDENTIALS: cloud_keys["path"]} if cloud_keys else {}),
        },
        "log": {
            "driver": variables["triton_server_log_driver"],
            "options": dict(variables["triton_server_log_options"]),
        },
        "ports": ports(variables),
        "privileged": bool(variables["triton_server_privileged"]),
        "restart": variables["triton_server_restart_policy"],
        "shm_size": size_of(variables, "triton_server_shm_size"),
        "stop_timeout": int(variables["triton_server_stop_timeout"]),
        "ulimits": ulimits(variables, "triton_server_ulimits"),
        "volumes": sorted(
            [
                *map(volume, variables["triton_server_volumes"]),
                *("{0}:{0}:ro".format(one["path"]) for one in [cloud_keys] if one),
                *keys.volumes(variables),
            ]
        ),
        **DEFAULTS,
        "cpuset": variables["triton_server_cpuset"],
        "memory": size_of(variables, "triton_server_memory") if variables["triton_server_memory"] else 0,
    }
    models = {name: {key: one[key] for key in MODEL} for name, one in manifests.items()}
    return {
        "name": variables["triton_server_name"],
        "credentials": cloud_keys,
        "key": keys.desired(variables),
        "key_fingerprint": keys.digest(variables),
        "grpc": by_grpc(variables),
        "container": container,
        # Where no address is asked for, none is given
        "published_ports": [f"{where}:{port.split('/')[0]}".lstrip(":") for port, where in sorted(container["ports"].items())],
        "address": address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "mode": mode,
        "root": variables["npufleet_root"],
        "cache": cache(variables),
        "models": {**models, **{name: dict(CLOUD) for name in cloud}},
    }


def sealed(part: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """What of this concern may be shown and compared, secrets as digests, and the key that the host makes them by."""
    return {**part, "container": sealed_container(part["container"], key), "seal": key}


def sealed_container(facts: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """A container's facts with all that may be secret as digests."""
    entrypoint = facts["entrypoint"]
    return {
        **facts,
        "command": hidden.command(facts["command"], key),
        "entrypoint": hidden.command(entrypoint, key) if isinstance(entrypoint, (list, tuple)) else entrypoint,
        "environment": hidden.settings(facts["environment"], key),
        "log": {**facts["log"], "options": hidden.settings(facts["log"]["options"], key)},
    }


def credentials(given: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """File of the host with Triton's keys to object stores, {"path", "sha256"}; None where there are no keys.

    Other keys are another file, and so another mount: the container is replaced for them as for anything else, and the one before
    it still has its own.
    """
    if not given:
        return None
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return {"path": f"{CREDENTIALS_HOME}/cloud-{digest[:12]}.json", "sha256": digest}


def by_grpc(variables: Mapping[str, Any]) -> bool:
    """Whether the server takes requests to load over gRPC, from inside its container and without TLS."""
    secured = any(str(one).startswith("--grpc-use-ssl") for one in variables["triton_server_extra_args"])
    return bool(variables["triton_server_allow_grpc"]) and not secured


def cache(variables: Mapping[str, Any]) -> Optional[str]:
    """The kind of response cache that the server has, such as `local` or `redis`; None without one."""
    given = [str(one) for one in variables["triton_server_extra_args"]]
    words = " ".join(given)
    found = re.search(r"--cache-config[= ](\w+)", words)
    size_given = re.search(r"--response-cache-byte-size[= ](\d+)", words)
    return found[1] if found else "local" if size_given and int(size_given[1]) else None


def listens(variables: Mapping[str, Any]) -> str:
    """The address of the host that ports are published on, as it is written shortest; empty for every address. Raises Refusal."""
    # Here, as only the controller needs it
    import ipaddress

    given = variables["triton_server_listen_address"].strip()
    try:
        return str(ipaddress.ip_address(re.sub(r"^\[(.*)\]$", r"\1", given))) if given else ""
    except ValueError:
        raise Refusal(
            [
                f"triton_server_listen_address is {given}, wanted an IP address of the host, or none for every address: "
                "ports are published on addresses, not on names"
            ]
        ) from None


def address(variables: Mapping[str, Any]) -> str:
    """Where the host itself reaches the server."""
    listen = listens(variables)
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def command(variables: Mapping[str, Any], models: List[str], known: Sequence[str] = ()) -> List[str]:
    """The command line of tritonserver; `known` are those of its options that not every release has."""

    def flag(name: str) -> str:
        return "true" if variables[name] else "false"

    mode = variables["triton_server_model_control_mode"]
    line = ["tritonserver"]
    line += ["--model-repository=" + one for one in variables["triton_server_model_repositories"]]
    line += ["--model-control-mode=" + mode]
    if mode == "poll":
        line += ["--repository-poll-secs={}".format(variables["triton_server_poll_seconds"])]
    if mode == "explicit":
        # What is linked there is what is wanted: with a star another model does not mean another container
        only = variables["triton_server_model_repositories"] == [variables["npufleet_root"] + "/served"]
        line += ["--load-model=*"] if only else ["--load-model=" + name for name in models]
    line += [
        "--exit-on-error=" + flag("triton_server_exit_on_error"),
        "--exit-timeout-secs={}".format(variables["triton_server_exit_timeout"]),
        "--allow-http=" + flag("triton_server_allow_http"),
        "--allow-grpc=" + flag("triton_server_allow_grpc"),
        "--allow-metrics=" + flag("triton_server_allow_metrics"),
        "--allow-gpu-metrics=false",
        "--http-port=8000",
        "--grpc-port=8001",
        "--metrics-port=8002",
        "--log-verbose={}".format(variables["triton_server_log_verbose"]),
    ]
    # Services of clouds, by which requests went past restricted APIs before 26.03
    line += [f"--{one}=false" for one in CLOUD_SERVICES if one in known]
    if not variables["triton_server_auto_complete_config"]:
        line += ["--disable-auto-complete-config"]
    return line + [str(one) for one in variables["triton_server_extra_args"]]


def ports(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Published ports, container side first: a service that is off publishes none."""
    services = (("http", 8000), ("grpc", 8001), ("metrics", 8002))
    listen = listens(variables)
    return {
        f"{inside}/tcp": netloc(listen, variables[f"npufleet_{name}_port"])
        for name, inside in services
        if variables["triton_server_allow_" + name]
    }


def size(value: Any) -> int:
    """Bytes of `1g`, `512m`, `64k` or a number."""
    found = re.fullmatch(r"(\d+)([kmg]?)b?", str(value).strip().lower())
    if not found:
        raise Refusal([f"{value} is no size, wanted whole bytes or such as 512m or 1g"])
    return int(found.group(1)) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[found.group(2)]


def size_of(variables: Mapping[str, Any], name: str) -> int:
    """Bytes of a variable, 0 where it is empty."""
    try:
        return size(variables[name])
    except Refusal as refusal:
        raise Refusal([f"{name}: {refusal}"]) from None


def ulimits(variables: Mapping[str, Any], name: str) -> Dict[str, str]:
    """{limit: "soft:hard"} of a list of `limit:soft:hard`, or `limit:both`."""
    limits = {}
    for one in variables[name]:
        found = re.fullmatch(r"(\w+):(-?\d+)(?::(-?\d+))?", str(one))
        if not found:
            raise Refusal([f"{name} has {one}, wanted limit:soft:hard such as memlock:-1:-1"])
        limits[found.group(1)] = f"{found.group(2)}:{found.group(3) or found.group(2)}"
    return limits


def volume(bind: str) -> str:
    """A bind mount as the engine writes it out, with its mode."""
    parts = bind.split(":")
    if len(parts) == 2 and parts[1].startswith("/"):
        return bind + ":rw"
    if len(parts) != 3:
        raise Refusal([f"triton_server_volumes has {bind}, wanted host path:container path, or these with :ro behind them"])
    return bind


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """The container of that name, the server's own index and configs, and its keys where it needs any."""
    actual = _read_container(wanted)
    if wanted.get("credentials"):
        actual["credentials"] = _read_credentials(wanted["credentials"])
    flaw = keys.flaw(wanted["key"]["path"], wanted["key_fingerprint"]) if wanted.get("key") else {"words": None}
    if flaw["words"]:
        actual["key"] = flaw
    return actual


def _read_credentials(wanted: Mapping[str, str]) -> Optional[str]:
    """What is wrong with the file of keys; None for nothing."""
    try:
        with open(wanted["path"], "rb") as source:
            found = os.fstat(source.fileno())
            digest = hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return "nothing"
    if digest != wanted["sha256"]:
        return f"SHA-256 {digest[:12]}"
    mode = stat.S_IMODE(found.st_mode)
    return None if (mode, found.st_uid) == (0o600, 0) else f"mode {mode:04o} of user {found.st_uid}"


def _read_container(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    engine = Engine()
    try:
        found = engine.get("/containers/{}/json".format(wanted["name"]))
        image = engine.get("/images/{}/json".format(found["Image"])) if found else None
        # What a run that was killed left aside
        previous = engine.get("/containers/{}-previous/json".format(wanted["name"]))
    except OSError:
        return {"engine": False, "container": None, "served": None}
    if not found:
        return {"engine": True, "container": None, "served": None, "previous": previous is not None}
    facts = container_facts(found, image or {})
    shown = sealed_container(facts, wanted["seal"])
    actual = {"engine": True, "container": shown, "served": None}
    actual["inherited"] = hidden.settings(environment((image or {}).get("Config") or {}), wanted["seal"])
    state = found["State"]
    actual["state"] = "running" if state["Status"] == "running" else "{} ({})".format(state["Status"], state["ExitCode"])
    # How often the engine had to start it again since hands or a run have
    actual["restarts"] = found.get("RestartCount") or 0
    actual["previous"] = previous is not None
    if actual["state"] == "running":
        actual["hung"] = hung(wanted["root"], state.get("StartedAt") or "")
        actual["served"] = read_served(wanted)
        if actual["served"] is None:
            if asked(wanted, "POST", "/v2/repository/index")[0] == 403:
                actual["closed"] = True
            said = refused(engine, wanted, sorted(wanted["models"]), epoch(state.get("StartedAt") or ""))
            loads = [why for why in said.values() if why.startswith("failed to load ")]
            ended = last_words(engine, wanted["name"]) if actual["restarts"] else ""
            actual["log"] = "; ".join(loads) or ended
        status, server = asked(wanted, "GET", "/v2")
        actual["version"] = server.get("version") if status == 200 and isinstance(server, dict) else None
    else:
        actual["log"] = last_words(engine, wanted["name"])
    if "log" in actual:
        raw, kept = ([*one["environment"].values(), *one["command"]] for one in (facts, shown))
        actual["log"] = hidden.without(str(actual["log"]), raw, kept)
    return actual


def hung(root: str, started: str) -> List[str]:
    """Models of which a load hangs in the server that started then, as a run has written down. A later start has ended it."""
    mark = store.read(root, store.HUNG).content
    return sorted(mark["models"]) if mark and started and epoch(started) < mark["at"] else []


def epoch(stamp: str) -> float:
    """Seconds since 1970 of a time as the engine writes it, such as 2026-01-02T03:04:05.678901234Z; 0 for none."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", stamp)
    return calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) + float(found[2] or 0) if found else 0


def container_facts(inspect: Mapping[str, Any], image: Mapping[str, Any]) -> Dict[str, Any]:
    """`docker inspect` in the shape of the desired container; what comes from the image is left out."""
    host = inspect["HostConfig"]
    config = inspect["Config"]
    base = image.get("Config") or {}

    def own(key: str) -> Any:
        return "the image's" if (config.get(key) or None) == (base.get(key) or None) else config.get(key)

    return {
        "image": inspect["Image"],
        "command": list(config.get("Cmd") or []),
        "environment": dict(set(environment(config).items()) - set(environment(base).items())),
        "log": {"driver": host["LogConfig"]["Type"], "options": dict(host["LogConfig"].get("Config") or {})},
        "ports": {
            port: ", ".join(sorted(netloc(one.get("HostIp") or "", one["HostPort"]) for one in found))
            for port, found in (host.get("PortBindings") or {}).items()
            if found
        },
        "privileged": host["Privileged"],
        "restart": host["RestartPolicy"]["Name"],
        "shm_size": host["ShmSize"],
        "stop_timeout": config.get("StopTimeout") or 10,
        "ulimits": {one["Name"]: "{}:{}".format(one["Soft"], one["Hard"]) for one in host.get("Ulimits") or []},
        "volumes": sorted(one if one.count(":") > 1 else one + ":rw" for one in host.get("Binds") or []),
        "cap_add": sorted(host.get("CapAdd") or []),
        "cap_drop": sorted(host.get("CapDrop") or []),
        "cpuset": host.get("CpusetCpus") or "",
        "devices": sorted("{PathOnHost}:{PathInContainer}:{CgroupPermissions}".format(**one) for one in host.get("Devices") or []),
        "extra_hosts": sorted(host.get("ExtraHosts") or []),
        "memory": host.get("Memory") or 0,
        # Engines say `default` or `bridge` for the same thing.
        "network": "default" if host.get("NetworkMode") in (None, "", "default", "bridge") else host["NetworkMode"],
        "pid": host.get("PidMode") or "",
        "read_only": bool(host.get("ReadonlyRootfs")),
        "tmpfs": sorted(host.get("Tmpfs") or {}),
        "entrypoint": own("Entrypoint"),
        "ipc": "default" if host.get("IpcMode") in (None, "", "private", "shareable") else host["IpcMode"],
        "cpus": (host.get("NanoCpus") or 0) / 1e9,
        "pids_limit": max(host.get("PidsLimit") or 0, 0),
        # The engine itself adds this one to a privileged container
        "security": sorted(set(host.get("SecurityOpt") or []) - {"label=disable"}),
        "user": own("User"),
        "working_dir": own("WorkingDir"),
    }


def environment(config: Mapping[str, Any]) -> Dict[str, str]:
    """Environment of a container's or an image's Config."""
    return dict(one.split("=", 1) for one in config.get("Env") or [] if "=" in one)


def asked(wanted: Mapping[str, Any], method: str, resource: str) -> Tuple[int, Any]:
    """Status and body of one request to the server of this host, with its key."""
    return http_json(wanted["address"], wanted["http_port"], method, resource, headers=keys.headers(wanted.get("key")))


def read_served(wanted: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """{model: {version: {"state", "reason", "release"}}} of the server, None while it does not answer."""
    status, index = asked(wanted, "POST", "/v2/repository/index")
    if status != 200 or not isinstance(index, list):
        return None
    served: Dict[str, Any] = {}
    for one in index:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            continue
        name, version, reason = one["name"], str(one.get("version", "")), str(one.get("reason", ""))
        if not version.isdigit() or not isinstance(one.get("state"), str):
            reason = reason or "it could not be read"
            served.setdefault(name, {})["-"] = {"state": "UNAVAILABLE", "reason": reason, "release": None}
            continue
        release = None
        if one["state"] == "READY" and can_be_asked(name):
            release = _loaded_release(wanted, name, version)
        elif one["state"] == "READY":
            reason = NAMELESS
        served.setdefault(name, {})[version] = {"state": one["state"], "reason": reason, "release": release}
    return served


def _loaded_release(wanted: Mapping[str, Any], name: str, version: str) -> Optional[str]:
    """The release digest inside the config that the server really has in memory."""
    status, config = asked(wanted, "GET", f"/v2/models/{name}/versions/{version}/config")
    if status != 200 or not isinstance(config, dict):
        return None
    parameters = config.get("parameters")
    found = parameters.get(RELEASE) if isinstance(parameters, dict) else None
    release = found.get("string_value") if isinstance(found, dict) else None
    return release if isinstance(release, str) else None


def log_lines(engine: Engine, name: str, since: float = 0) -> List[str]:
    """The last lines of a container's log, since a time of the host's clock."""
    import http.client

    connection = engine.connection()
    try:
        later = f"&since={since:.3f}" if since else ""
        connection.request("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={LOG_LINES}{later}")
        raw = connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()
    return frames(raw).decode("utf-8", "replace").strip().splitlines()


def refused(engine: Engine, wanted: Mapping[str, Any], names: List[str], since: float) -> Dict[str, str]:
    """{model: why Triton did not take its new files}, out of its log: its index tells nothing where a config does not parse."""
    lines = log_lines(engine, wanted["name"], since)
    found: Dict[str, str] = {}
    for at, line in enumerate(lines):
        if not line.startswith("E"):
            continue
        for name in names:
            if LOG_LINE.match(line) and f"'{name}'" in line:
                rest = list(takewhile(lambda one: not LOG_LINE.match(one), lines[at + 1 :]))
                found[name] = plain("\n".join([line, *rest]))[-REASON:]
    return found


def plain(entry: str) -> str:
    """An entry of Triton's log without its stamp, its quotes and Python's frames."""
    return FRAMES.split(LOG_LINE.sub("", entry).strip(), maxsplit=1)[0].strip('"\n ')


def last_words(engine: Engine, name: str) -> str:
    """Why a container ended: what failed to load, else the last errors of its log, or its last lines where none looks like one."""
    words = log_lines(engine, name)
    errors = [plain(line) for line in words if ERROR_LINE.match(line)]
    # A container that restarts says the same again and again.
    loads = {line.split("'")[1]: line for line in errors if line.startswith("failed to load '")}
    return "\n".join(list(loads.values()) or list(dict.fromkeys(errors or words))[-6:])[-1500:]


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Container first; the served models are judged only in a container that stays."""
    found = actual["container"]
    plan = []
    if actual.get("credentials"):
        keys = "SHA-256 {}, mode 0600 of user 0".format(wanted["credentials"]["sha256"][:12])
        plan.append(item(CONCERN, "credentials", actual["credentials"], keys, "write"))
    flaw = actual.get("key") or {}
    if flaw:
        whose = "the operator's key" if wanted["key_fingerprint"] else "a key of this host"
        plan.append(item(CONCERN, "key", flaw["words"], whose + ", for root alone", "key"))
    if found is None:
        return [*plan, item(CONCERN, "container", None, "running " + wanted["name"], "create")]
    for key in sorted(wanted["container"]):
        asked = wanted["container"][key]
        if key == "environment":
            # What the image sets to the same value does not show in the container.
            asked = dict(set(asked.items()) - set(actual.get("inherited", {}).items()))
        if key == "ports":
            # Some engines record no address where 0.0.0.0 was asked for
            asked = {
                port: where if found[key].get(port) == where else where.replace("0.0.0.0", "") for port, where in asked.items()
            }
        if found[key] != asked:
            plan.append(item(CONCERN, "container." + key, found[key], wanted["container"][key], "replace"))
    replaced = any(one["action"] == "replace" for one in plan)
    if actual["state"] != "running":
        words = actual["state"] + (": " + actual["log"] if actual.get("log") else "")
        plan.append(item(CONCERN, "container", words, "running", "start"))
    elif (flaw.get("other") or actual.get("closed")) and not replaced:
        # A server reads its key when it starts.
        path = (wanted["key"] or {}).get("path", "no file")
        plan.append(item(CONCERN, "key in use", "another key", f"that of {path}", "restart"))
    elif actual["served"] is None:
        words = "no answer on port {}".format(wanted["http_port"])
        words += ", restart count {}".format(actual["restarts"]) if actual.get("restarts") else ""
        words += ": " + actual["log"] if actual.get("log") else ""
        plan.append(item(CONCERN, "http", words, "the model index", "wait"))
    else:
        plan += diff_models(wanted, actual["served"])
    if actual["state"] == "running" and actual.get("hung"):
        found = f"a load that hangs: {', '.join(actual['hung'])}"
        plan.append(item(CONCERN, HANGING, found, "a server that can load", "restart"))
    return plan


def diff_models(wanted: Mapping[str, Any], served: Mapping[str, Any]) -> List[Item]:
    """Every wanted model READY in its versions and of its release, and no other model READY."""
    act = {"none": "restart", "poll": "wait", "explicit": "load"}[wanted["mode"]]
    plan = []
    for name in sorted(wanted["models"]):
        model = wanted["models"][name]
        versions = served.get(name) or {}
        if model["release"] is None:
            if not any(one["state"] == "READY" for one in versions.values()):
                plan.append(item(CONCERN, name, _as_served(versions), "READY out of its object store", act))
            continue
        good = {version for version, one in versions.items() if one["state"] == "READY" and one["release"] == model["release"]}
        loaded = {version for version, one in versions.items() if one["state"] in ("READY", "LOADING")}
        if good != set(model["versions"]) or loaded - good:
            plan.append(item(CONCERN, name, _as_served(versions), _as_wanted(model), act))
    for name in sorted(set(served) - set(wanted["models"])):
        if any(one["state"] == "READY" for one in served[name].values()):
            unload = {"none": "restart", "poll": "wait", "explicit": "unload"}[wanted["mode"]]
            plan.append(item(CONCERN, name, _as_served(served[name]), None, unload))
    return plan


def _as_served(versions: Mapping[str, Any]) -> Optional[str]:
    words = []
    for version in sorted(versions):
        one = versions[version]
        tail = plain(one["reason"])
        if one["state"] == "READY":
            tail = (one["release"] or "no release")[:12] + (f" ({NAMELESS})" if one["reason"] == NAMELESS else "")
        words.append("version {} {} {}".format(version, one["state"], tail).strip())
    return ", ".join(words) or None


def _as_wanted(model: Mapping[str, Any]) -> str:
    return ", ".join("version {} READY {}".format(version, model["release"][:12]) for version in model["versions"])
