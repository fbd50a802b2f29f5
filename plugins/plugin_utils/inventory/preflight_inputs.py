"""The controller's half of preflight: conditions for the host, suppliers for it to ask, and the files that lie here."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import ENGINE, GIB, LARGE_FILES
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs
from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import documents
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import directories
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import cache, listen_address
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.engine import authority
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.image import in_repository


def conditions(variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """What the host has to fulfil, from its variables, its release row and the manifests of its models."""
    row = variables["npufleet_row"]
    rows = variables["npufleet_release_rows"]
    names = {name: f"npufleet_{name}_port" for name in ("http", "grpc", "metrics")}
    return {
        "release": variables["rbln_release"],
        "rows": {name: {"systems": entry["systems"], "cards": entry["cards"]} for name, entry in rows.items()},
        "systems": row["systems"],
        "untested_systems": row.get("untested_systems") or [],
        "cards": row["cards"],
        "ports": {str(variables[name]): name for kind, name in names.items() if variables["triton_server_allow_" + kind]},
        "listen": listen_address(variables),
        "container": variables["triton_server_name"],
        "headers": bool(variables["preflight_kernel_headers"]),
        # Whether the role installs them
        "brings_headers": variables["rbln_driver_form"] == "run",
        # Whether the engine has to find the cards by name, and whether the role knows where the toolkit for it comes from
        "by_name": device_access.by_name(variables),
        "brings_toolkit": bool(variables["rbln_driver_toolkit_repository"]),
        "disk": {
            "/var/lib/docker": {"image": int(variables["preflight_disk_engine"]) * GIB},
            variables["npufleet_root"]: {
                "image": _archive_room(variables),
                "models": int(variables["preflight_disk_models"]) * GIB,
            },
        },
        # Bytes of device memory on each NPU, of the models that say what they need
        "models": {name: manifest["memory"] for name, manifest in manifests.items() if any(manifest["memory"])},
        "pulls": _pulls(variables, manifests),
    }


def _archive_room(variables: Mapping[str, Any]) -> int:
    """Bytes for an archive on its way: none where the image comes from a registry, but for what is built with."""
    if variables["triton_image_delivery_repository"] and variables["npufleet_build_host"] != variables["inventory_hostname"]:
        return 0
    return int(variables["preflight_disk_transfer"]) * GIB


def _pulls(variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The large files that the host fetches itself, and how; {} where the controller fetches."""
    if variables["model_repository_fetch"] == "controller":
        return {}
    files = {
        digest: {**origin, "model": name, "source": download.shown(origin), "todo": _todo(origin)}
        for name, manifest in sorted(manifests.items())
        for digest, origin in manifest["origins"].items()
        if "file" not in origin
    }
    bundle = variables["model_repository_bundle"]
    return {"files": files, "way": way(variables, False)[0], "bundle": bundle, "root": variables["npufleet_root"]}


def proxies(variables: Mapping[str, Any]) -> Dict[str, str]:
    """The site's proxies by scheme, and what goes past them."""
    return {
        "http": variables["npufleet_http_proxy"],
        "https": variables["npufleet_https_proxy"],
        "no_proxy": ",".join(variables["npufleet_no_proxy"]),
    }


def way(variables: Mapping[str, Any], here: bool) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(how large files are fetched, the secrets of it), from the controller or else from a host, as download.py takes them."""
    mine = proxies(variables)
    if here:
        from urllib.request import getproxies

        mine = getproxies()
        mine["no_proxy"] = mine.get("no", "")
    shown = {
        "user": variables["npufleet_artefact_user"],
        "proxies": mine,
        "ca": authority(variables),
        "s3": {key: variables["model_repository_s3_" + key] for key in ("provider", "endpoint", "region")},
        "gs": {"endpoint": variables["model_repository_gs_endpoint"]},
    }
    hidden = {"password": variables["npufleet_artefact_password"], "gs_credentials": variables["model_repository_gs_credentials"]}
    hidden.update({"s3_" + key: variables["model_repository_s3_" + key] for key in ("access_key", "secret_key")})
    return shown, hidden


def suppliers(variables: Mapping[str, Any]) -> Tuple[List[Dict[str, Any]], Dict[str, Any]]:
    """(suppliers that the host would download from, each with the step of a plan that needs it; passwords by supplier)."""
    found: List[Dict[str, Any]] = []
    if variables["rbln_driver_package_url"] and not variables["rbln_driver_package_file"]:
        found.append(
            {
                "what": "driver package",
                "kind": "web",
                "address": variables["rbln_driver_package_url"],
                "login": "rbln_driver_package",
                "needed": ["driver", "install"],
                "todo": "correct rbln_driver_package_url or its login",
            }
        )
    if device_access.by_name(variables) and variables["rbln_driver_toolkit_repository"]:
        found.append(
            {
                "what": "repository of the container toolkit",
                "kind": "web",
                "address": "{}/dists/stable/Release".format(variables["rbln_driver_toolkit_repository"].rstrip("/")),
                "login": None,
                "needed": ["driver", cdi.INSTALL],
                "todo": "correct rbln_driver_toolkit_repository, or empty it and install the toolkit",
            }
        )
    if variables["npufleet_build_host"] == variables["inventory_hostname"]:
        found += list(_of_image(variables))
    if variables["triton_image_delivery_repository"]:
        found += list(_of_delivery(variables))
    passwords: Dict[str, Any] = {}
    if variables["model_repository_fetch"] != "controller":
        passwords[LARGE_FILES] = way(variables, False)[1]
    for entry in found:
        login = entry.pop("login")
        entry["user"] = variables[login + "_user"] if login else ""
        passwords[entry["what"]] = variables[login + "_password"] if login else ""
        entry["proxies"] = proxies(variables)
        entry["ca"] = authority(variables)
    return found, passwords


def _of_image(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """What the host that builds the image downloads."""
    needed = ["image", "build"]
    if not variables["triton_image_wheelhouse"]:
        package = variables["npufleet_row"]["sdk"]["package"]
        yield {
            "what": "package index",
            "kind": "web",
            "address": "{}/{}/".format(variables["triton_image_index_url"].rstrip("/"), package),
            "login": "triton_image_index",
            "needed": needed,
            "todo": "correct triton_image_index_url, _user and _password, or give wheels with triton_image_wheelhouse",
        }
    archive = variables["triton_image_base_archive"]
    if "://" in archive:
        yield {
            "what": "archive of the base image",
            "kind": "web",
            "address": archive,
            "login": "npufleet_artefact",
            "needed": needed,
            "todo": "correct triton_image_base_archive or the login npufleet_artefact_user and _password",
        }
    elif not archive:
        mirrors = variables["docker_engine_registry_mirrors"]
        base = variables["triton_image_base"]
        yield {
            "what": "base image",
            "kind": "image",
            "address": base,
            "mirror": mirrors[0] if mirrors and http_probe.split(base)[0] == http_probe.DOCKER_HUB else None,
            "login": "triton_image_registry",
            "needed": needed,
            "todo": "correct triton_image_base, triton_image_registry_user and _password, or give triton_image_base_archive",
        }


def _of_delivery(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """The registry that the image is pushed to, and that it is pulled from."""
    repository = variables["triton_image_delivery_repository"]
    login = "triton_image_delivery"
    common = {"kind": ENGINE, "login": login, "registry": variables["triton_image_delivery_registry"]}
    where = "see what this host's engine lacks to reach it (docs/production.md)"
    locked = in_repository(variables["npufleet_locked"].get("repo_digest"), repository)
    if locked:
        common["todo"] = f"correct {login}_user and _password, or {where}"
        yield {"what": "image in the registry", "address": locked, "pushes": False, "needed": ["image", "deliver"], **common}
    if variables["npufleet_build_host"] == variables["inventory_hostname"]:
        common["todo"] = f"correct {login}_repository, _user and _password, or {where}"
        for action in ("build", "publish"):
            yield {"what": "repository", "address": repository, "pushes": True, "needed": ["image", action], **common}


def refusals(
    variables: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]], plan: List[Item], actual: Mapping[str, Any]
) -> List[str]:
    """What lies, or should lie, on the controller and stands in the way of this plan; `found` are the manifests by model."""
    doing = {(item["concern"], item["action"]) for item in plan}
    reasons: List[str] = []
    if ("driver", "install") in doing:
        reasons += list(_driver(variables))
    if ("image", "build") in doing and variables["npufleet_build_host"] == variables["inventory_hostname"]:
        reasons += list(_image(variables))
    if "models" in actual:
        reasons += list(_models(variables, found, actual["models"]))
        reasons += list(_cached(variables, actual["models"]["served"]))
    if {"models", "server", "probe"} & {concern for concern, _action in doing}:
        reasons += list(_checks(variables, found))
    return reasons


def clock(found: float, began: float, ended: float, most: int) -> List[str]:
    """A host's clock against the controller's, which read `began` before the host was asked and `ended` when its answer was here.

    The answer may have taken as long as it liked: only what the clock is outside of these two is its own fault.
    """
    off = max(found - ended, 0.0) + min(found - began, 0.0)
    if abs(off) <= most:
        return []
    way = "ahead of" if off > 0 else "behind"
    return [
        f"found the clock {abs(off):.0f} s {way} the controller's, wanted at most {most} s: run chrony or systemd-timesyncd on "
        "both; certificates and scrapes fail with a wrong clock"
    ]


def _checks(variables: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Models that nothing proves, and check files that are not right: a proof that they end would put back what is good."""
    try:
        document = documents(sorted(found), *directories(variables), 0)
    except Refusal as refusal:
        yield from refusal.reasons
        return
    unproven = document["unproven"]
    left_out = [
        name
        for name in ("inference_check_latency", "monitoring_probe_latency")
        if not variables[name] and (variables["monitoring_probe"] or "probe" not in name)
    ]
    yield from (
        f"model {check['model']}: found loads alone in its check file, left out by {' and '.join(left_out)}: wanted a check "
        "without latency, which judges an answer"
        for check in document["checks"]
        if left_out and all("latency" in each for each in check["checks"])
    )
    if variables["inference_check_require_checks"]:
        yield from (
            f"model {result}: found no check file {result}.yml, wanted one that says which answers prove it: write it below "
            "inference_check_checks_dir, or set inference_check_require_checks to false"
            for result in (each["model"] for each in unproven)
        )


def _cached(variables: Mapping[str, Any], served: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Versions that would change under their number while a cache that outlives the server knows their old answers."""
    kind = cache(variables)
    if kind in (None, "local"):
        return
    for name in sorted(served):
        if served[name].get("in_place"):
            yield (
                f"model {name}: found a change of a version that is served, with response_cache and a {kind} cache, which would "
                "go on giving its old answers: wanted a new version directory (2/ beside 1/), or response_cache off"
            )


def _driver(variables: Mapping[str, Any]) -> Iterator[str]:
    row = variables["npufleet_row"]["driver"]
    path, digest = variables["rbln_driver_package_file"], variables["rbln_driver_package_sha256"]
    if not path and not variables["rbln_driver_package_url"]:
        yield (
            f"found no driver package, wanted {row['package']} {row['version']} (.{row['form']}): get it from the vendor's portal "
            "and set rbln_driver_package_file or rbln_driver_package_url, and rbln_driver_package_sha256"
        )
        return
    try:
        name = os.path.basename(path or http_probe.parsed(variables["rbln_driver_package_url"]).path)
    except http_probe.AddressError as error:
        yield f"rbln_driver_package_url: {error}: correct it"
        return
    # Of a name nothing counts but that it is another driver's
    others = {other["driver"]["version"] for other in variables["npufleet_release_rows"].values()}
    named, ending = set(re.findall(r"\d+(?:\.\d+)+", name)), os.path.splitext(name)[1]
    if named & others and row["version"] not in named:
        yield (
            f"found driver package {name}, which is named after another driver, wanted {row['package']} {row['version']}: set "
            "rbln_driver_package_file or rbln_driver_package_url, and rbln_driver_package_sha256, for this release"
        )
    elif ending in (".deb", ".rpm", ".run") and ending != "." + variables["rbln_driver_form"]:
        yield (
            f"found driver package {name}, wanted a .{variables['rbln_driver_form']}: set rbln_driver_package_file or "
            "rbln_driver_package_url, and rbln_driver_package_sha256, for this release"
        )
    elif path:
        yield from _file("driver package", path, digest, "rbln_driver_package_file", "rbln_driver_package_sha256")


def _image(variables: Mapping[str, Any]) -> Iterator[str]:
    wheels = variables["triton_image_wheelhouse"]
    if wheels and not os.path.isdir(wheels):
        yield f"found no directory {wheels} on the controller, wanted the wheels of the SDK there: correct triton_image_wheelhouse"
    archive = variables["triton_image_base_archive"]
    if archive and "://" not in archive:
        digest = variables["triton_image_base_archive_sha256"]
        yield from _file(
            "archive of the base image", archive, digest, "triton_image_base_archive", "triton_image_base_archive_sha256"
        )


def _file(what: str, path: str, digest: str, place: str, sum_of: str) -> Iterator[str]:
    """A file of the controller that is not there, or not the one that was asked for."""
    if not os.path.isfile(path):
        yield f"found no {path} on the controller, wanted the {what} there: correct {place}"
    elif digest:
        found = file_digest(path)
        if found != digest:
            yield f"{what} found with SHA-256 {found}, wanted {digest}: compare with its source before you change {sum_of}"


def _models(variables: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any]) -> Iterator[str]:
    """Large files that the host lacks and the controller brings: their sources, and whether the host has room for them."""
    fetch = variables["model_repository_fetch"]
    bundle = variables["model_repository_bundle"]
    sizes: Dict[str, Any] = {}
    try:
        inside = download.bundled(bundle) if fetch == "controller" else {}
    except download.SourceError as error:
        yield str(error)
        return
    for name, entry in sorted(found.items()):
        for digest in sorted(set(entry["origins"]) & set(here["missing"])):
            origin = entry["origins"][digest]
            cached = os.path.join(variables["npufleet_cache"], "blobs", digest)
            if digest in inside:
                sizes[digest] = inside[digest]
            elif "file" in origin:
                if os.path.isfile(origin["file"]):
                    sizes[digest] = os.path.getsize(origin["file"])
                else:
                    yield f"model {name}: found no {origin['file']} here, wanted its compiled file: correct `file`"
            elif fetch != "controller":
                # The host asks its sources itself.
                continue
            elif os.path.isfile(cached):
                sizes[digest] = os.path.getsize(cached)
            else:
                try:
                    sizes[digest] = download.size(origin, digest, *way(variables, True))
                except download.SourceError as error:
                    yield f"model {name}: compiled file {download.shown(origin)}: {error}: correct {_todo(origin)}"
    if "free" in here:
        yield from filter(None, [blobs.short_of_room(variables["npufleet_root"], here["free"], here["arrived"], sizes)])


def _todo(origin: Mapping[str, Any]) -> str:
    """What to look at where a source does not give its file."""
    store = download.store_of(origin.get("url", ""))
    return f"`url` or model_repository_{store}_*" if store else "`url` or npufleet_artefact_user"
