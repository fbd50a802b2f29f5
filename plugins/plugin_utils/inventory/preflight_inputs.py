# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The controller's part of preflight: checks of its own files, and the inputs of the host's checks.

The inputs are conditions and suppliers. A supplier is a server from which the host downloads files.
"""

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
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import read_checks
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import directories
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import cache, listen_address
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.engine import authority
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.image import in_repository


def conditions(variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the conditions that a host must meet, from its variables, its release row and the manifests of its models."""
    row, rows = variables["npufleet_release_row"], variables["npufleet_release_rows"]
    services = [name for name in ("http", "grpc", "metrics") if variables[f"triton_server_allow_{name}"]]
    builds = variables["npufleet_build_host"] == variables["inventory_hostname"]
    # A host that only pulls the image gets no archive of it.
    archive_gib = int(variables["preflight_disk_transfer"]) if builds or not variables["triton_image_delivery_repository"] else 0
    return {
        "release": variables["rbln_release"],
        "rows": {name: {"systems": entry["systems"], "cards": entry["cards"]} for name, entry in rows.items()},
        "systems": row["systems"],
        "untested_systems": row.get("untested_systems") or [],
        "cards": row["cards"],
        "ports": {str(variables[f"npufleet_{name}_port"]): f"npufleet_{name}_port" for name in services},
        "listen": listen_address(variables),
        "metrics_listen": listen_address(variables, "metrics"),
        "container": variables["triton_server_name"],
        "headers": bool(variables["preflight_kernel_headers"]),
        # True if the role rbln_driver installs the kernel headers
        "installs_headers": variables["rbln_driver_form"] == "run",
        # True if the engine finds the cards by CDI, which needs the container toolkit
        "uses_cdi": device_access.uses_cdi(variables),
        # True if the role rbln_driver can install the container toolkit
        "installs_toolkit": bool(variables["rbln_driver_toolkit_repository"]),
        "disk": {
            "/var/lib/docker": {"image": int(variables["preflight_disk_engine"]) * GIB},
            variables["npufleet_root"]: {
                "image": archive_gib * GIB,
                "models": int(variables["preflight_disk_models"]) * GIB,
            },
        },
        # {model: [bytes of device memory on each NPU]} of the models whose memory is known
        "models": {name: manifest["memory"] for name, manifest in manifests.items() if any(manifest["memory"])},
        "downloads": _downloads(variables, manifests),
    }


def _downloads(variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the large files that the host fetches, and the options of the fetch. Return {} if the controller fetches them."""
    if variables["model_repository_fetch"] == "controller":
        return {}
    files = {
        digest: {**origin, "model": name, "source": download.display_name(origin), "todo": _todo(origin)}
        for name, manifest in sorted(manifests.items())
        for digest, origin in manifest["origins"].items()
        if "file" not in origin
    }
    bundle, root = variables["model_repository_bundle"], variables["npufleet_root"]
    return {"files": files, "fetch_options": fetch_options(variables, False)[0], "bundle": bundle, "root": root}


def proxies(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Return the proxies of the site by scheme. `no_proxy` has the hosts that need no proxy."""
    return {
        "http": variables["npufleet_http_proxy"],
        "https": variables["npufleet_https_proxy"],
        "no_proxy": ",".join(variables["npufleet_no_proxy"]),
    }


def fetch_options(variables: Mapping[str, Any], from_controller: bool) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Return (options, secrets) for the functions of fetch/download.py, on the controller or on a host."""
    proxy_settings = proxies(variables)
    if from_controller:
        from urllib.request import getproxies

        proxy_settings = getproxies()
        proxy_settings["no_proxy"] = proxy_settings.get("no", "")
    options = {
        "user": variables["npufleet_artefact_user"],
        "proxies": proxy_settings,
        "ca": authority(variables),
        "s3": {key: variables["model_repository_s3_" + key] for key in ("provider", "endpoint", "region")},
        "gs": {"endpoint": variables["model_repository_gs_endpoint"]},
    }
    secrets = {"password": variables["npufleet_artefact_password"], "gs_credentials": variables["model_repository_gs_credentials"]}
    secrets.update({"s3_" + key: variables["model_repository_s3_" + key] for key in ("access_key", "secret_key")})
    return options, secrets


def suppliers(variables: Mapping[str, Any]) -> Tuple[List[Dict[str, Any]], Dict[str, Any]]:
    """Return ([suppliers], {supplier: password}). A supplier is a server from which the host has to download files for the plan."""
    entries: List[Dict[str, Any]] = []
    address = variables["rbln_driver_package_url"]
    if address and not variables["rbln_driver_package_file"]:
        todo = "correct rbln_driver_package_url or its login"
        entries.append(_supplier("driver package", address, "rbln_driver_package", ["driver", "install"], todo))
    repository = variables["rbln_driver_toolkit_repository"]
    if device_access.uses_cdi(variables) and repository:
        address = f"{repository.rstrip('/')}/dists/stable/Release"
        todo = "correct rbln_driver_toolkit_repository, or empty it and install the toolkit"
        entries.append(_supplier("repository of the container toolkit", address, "", ["driver", cdi.INSTALL], todo))
    if variables["npufleet_build_host"] == variables["inventory_hostname"]:
        entries += _build_suppliers(variables)
    if variables["triton_image_delivery_repository"]:
        entries += _delivery_suppliers(variables)
    passwords: Dict[str, Any] = {}
    if variables["model_repository_fetch"] != "controller":
        passwords[LARGE_FILES] = fetch_options(variables, False)[1]
    for entry in entries:
        login = entry.pop("login")
        entry["user"] = variables[login + "_user"] if login else ""
        passwords[entry["name"]] = variables[login + "_password"] if login else ""
        entry["proxies"] = proxies(variables)
        entry["ca"] = authority(variables)
    return entries, passwords


def _supplier(name: str, address: str, login: str, step: List[str], todo: str, kind: str = "web", **more: Any) -> Dict[str, Any]:
    """Return a supplier. `login` is the prefix of the variables with user and password, or ""."""
    return {"name": name, "kind": kind, "address": address, "login": login, "needed": step, "todo": todo, **more}


def _build_suppliers(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the suppliers of the host that builds the image."""
    step = ["image", "build"]
    if not variables["triton_image_wheelhouse"]:
        address = f"{variables['triton_image_index_url'].rstrip('/')}/{variables['npufleet_release_row']['sdk']['package']}/"
        todo = "correct triton_image_index_url, _user and _password, or give wheels with triton_image_wheelhouse"
        yield _supplier("package index", address, "triton_image_index", step, todo)
    archive = variables["triton_image_base_archive"]
    if "://" in archive:
        todo = "correct triton_image_base_archive or the login npufleet_artefact_user and _password"
        yield _supplier("archive of the base image", archive, "npufleet_artefact", step, todo)
    elif not archive:
        base, mirrors = variables["triton_image_base"], variables["docker_engine_registry_mirrors"]
        mirror = mirrors[0] if mirrors and http_probe.split(base)[0] == http_probe.DOCKER_HUB else None
        todo = "correct triton_image_base, triton_image_registry_user and _password, or give triton_image_base_archive"
        yield _supplier("base image", base, "triton_image_registry", step, todo, "image", mirror=mirror)


def _delivery_suppliers(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the registry of the image as a supplier, for the pull of the image and for each push."""
    repository, registry = variables["triton_image_delivery_repository"], variables["triton_image_delivery_registry"]
    login = "triton_image_delivery"
    engine_hint = "or configure this host's engine for the registry (docs/production.md)"
    locked = in_repository(variables["npufleet_locked"].get("repo_digest"), repository)
    if locked:
        todo = f"correct {login}_user and _password, {engine_hint}"
        yield _supplier("image in the registry", locked, login, ["image", "deliver"], todo, ENGINE, registry=registry, pushes=False)
    if variables["npufleet_build_host"] == variables["inventory_hostname"]:
        todo = f"correct {login}_repository, _user and _password, {engine_hint}"
        for action in ("build", "publish"):
            yield _supplier("repository", repository, login, ["image", action], todo, ENGINE, registry=registry, pushes=True)


def refusals(
    variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]], plan: List[Item], actual: Mapping[str, Any]
) -> List[str]:
    """Return the errors of files on the controller that prevent this plan. `manifests` are the manifests by model."""
    steps = {(item["concern"], item["action"]) for item in plan}
    reasons: List[str] = []
    if ("driver", "install") in steps:
        reasons += list(_driver(variables))
    if ("image", "build") in steps and variables["npufleet_build_host"] == variables["inventory_hostname"]:
        reasons += list(_image(variables))
    if "models" in actual:
        reasons += list(_models(variables, manifests, actual["models"]))
        reasons += list(_cached(variables, actual["models"]["served"]))
    if {"models", "server", "probe"} & {concern for concern, _action in steps}:
        reasons += list(_checks(variables, manifests))
    return reasons


def clock(actual: float, before: float, after: float, max_skew: int) -> List[str]:
    """Return [the reason] if the clocks of host and controller differ by more than `max_skew` seconds, else [].

    `before` and `after` are the controller's times before and after the query. Any time between them counts as right.
    """
    difference = max(actual - after, 0.0) + min(actual - before, 0.0)
    if abs(difference) <= max_skew:
        return []
    direction = "ahead of" if difference > 0 else "behind"
    return [
        f"the clock is {abs(difference):.0f} s {direction} the controller's, expected at most {max_skew} s. Run chrony or "
        "systemd-timesyncd on both: certificates and scrapes fail with a wrong clock."
    ]


def _checks(variables: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of check files and of models without a check. With such errors, the proof after the change would fail."""
    try:
        document = read_checks(sorted(models), *directories(variables), 0)
    except Refusal as refusal:
        yield from refusal.reasons
        return
    switches = ["inference_check_latency", *(["monitoring_probe_latency"] if variables["monitoring_probe"] else [])]
    disabled = [name for name in switches if not variables[name]]
    for entry in document["checks"]:
        if disabled and all("latency" in check for check in entry["checks"]):
            yield (
                f"model {entry['model']}: its check file has only checks with latency, which {' and '.join(disabled)} disables, "
                "expected a check without latency. Add a check that compares an answer."
            )
    if variables["inference_check_require_checks"]:
        for entry in document["no_check_file"]:
            yield (
                f"model {entry['model']}: its check file {entry['model']}.yml is missing, expected a check file that proves the "
                "model. Write it below inference_check_checks_dir, or set inference_check_require_checks to false."
            )


def _cached(variables: Mapping[str, Any], served: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield an error for each model whose served version would change, because an external cache would keep the old answers."""
    kind = cache(variables)
    if kind in (None, "local"):
        return
    for name, entry in sorted(served.items()):
        if entry.get("in_place"):
            yield (
                f"model {name}: a served version would change, but with response_cache the {kind} cache would return the old "
                "answers, expected a new version. Add a version directory (2/ beside 1/), or turn response_cache off."
            )


def _driver(variables: Mapping[str, Any]) -> Iterator[str]:
    row = variables["npufleet_release_row"]["driver"]
    path = variables["rbln_driver_package_file"]
    if not path and not variables["rbln_driver_package_url"]:
        yield (
            f"the driver package is missing, expected {row['package']} {row['version']} (.{row['form']}). Get it from the vendor's "
            "portal, and set rbln_driver_package_file or rbln_driver_package_url, and rbln_driver_package_sha256."
        )
        return
    try:
        name = os.path.basename(path or http_probe.parse_address(variables["rbln_driver_package_url"]).path)
    except http_probe.AddressError as error:
        yield f"rbln_driver_package_url: {error}. Correct it."
        return
    # The file name may contain any version, except the version of another driver.
    others = {other["driver"]["version"] for other in variables["npufleet_release_rows"].values()}
    versions, ending = set(re.findall(r"\d+(?:\.\d+)+", name)), os.path.splitext(name)[1]
    todo = "Set rbln_driver_package_file or rbln_driver_package_url, and rbln_driver_package_sha256, for this release."
    if versions & others and row["version"] not in versions:
        yield f"the driver package is {name}, named after another driver, expected {row['package']} {row['version']}. {todo}"
    elif ending in (".deb", ".rpm", ".run") and ending != "." + variables["rbln_driver_form"]:
        yield f"the driver package is {name}, expected a .{variables['rbln_driver_form']}. {todo}"
    elif path:
        yield from _file(variables, "the driver package", "rbln_driver_package_file", "rbln_driver_package_sha256")


def _image(variables: Mapping[str, Any]) -> Iterator[str]:
    wheels = variables["triton_image_wheelhouse"]
    if wheels and not os.path.isdir(wheels):
        yield f"the controller has no directory {wheels}, expected the wheels of the SDK in it. Correct triton_image_wheelhouse."
    archive = variables["triton_image_base_archive"]
    if archive and "://" not in archive:
        digest_variable = "triton_image_base_archive_sha256"
        yield from _file(variables, "the archive of the base image", "triton_image_base_archive", digest_variable)


def _file(variables: Mapping[str, Any], name: str, path_variable: str, digest_variable: str) -> Iterator[str]:
    """Yield the error of a file on the controller that is missing or has another digest."""
    path, digest = variables[path_variable], variables[digest_variable]
    if not os.path.isfile(path):
        yield f"the controller has no {path}, expected {name}. Correct {path_variable}."
    elif digest:
        actual = file_digest(path)
        if actual != digest:
            yield f"{name} has SHA-256 {actual}, expected {digest}. Compare it with its source before you change {digest_variable}."


def _models(variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]], store: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of large files: sources that the controller cannot read, and too little free space on the host."""
    fetch = variables["model_repository_fetch"]
    bundle = variables["model_repository_bundle"]
    sizes: Dict[str, Any] = {}
    try:
        bundled = download.blobs_in_bundle(bundle) if fetch == "controller" else {}
    except download.SourceError as error:
        yield str(error)
        return
    for name, entry in sorted(manifests.items()):
        for digest in sorted(set(entry["origins"]) & set(store["missing"])):
            origin = entry["origins"][digest]
            cache_path = os.path.join(variables["npufleet_cache"], "blobs", digest)
            if digest in bundled:
                sizes[digest] = bundled[digest]
            elif "file" in origin:
                if os.path.isfile(origin["file"]):
                    sizes[digest] = os.path.getsize(origin["file"])
                else:
                    yield f"model {name}: the controller has no {origin['file']}, expected the compiled file. Correct `file`."
            elif fetch != "controller":
                # The host itself queries the sources of its downloads.
                continue
            elif os.path.isfile(cache_path):
                sizes[digest] = os.path.getsize(cache_path)
            else:
                try:
                    sizes[digest] = download.size(origin, digest, *fetch_options(variables, True))
                except download.SourceError as error:
                    yield f"model {name}: compiled file {download.display_name(origin)}: {error}. Correct {_todo(origin)}."
    if "free" in store:
        yield from filter(None, [blobs.shortage(variables["npufleet_root"], store["free"], store["arrived"], sizes)])


def _todo(origin: Mapping[str, Any]) -> str:
    """Return the variables that configure a source, for the next step of a message."""
    store = download.store_of(origin.get("url", ""))
    return f"`url` or model_repository_{store}_*" if store else "`url` or npufleet_artefact_user"
