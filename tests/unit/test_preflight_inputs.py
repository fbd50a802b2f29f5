"""The controller's half of preflight: conditions, suppliers, and files that have to lie here."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import stores
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import LARGE_FILES, download_refusals
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import preflight_inputs as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import release_change
from helpers import ROW, fleet, http_server

FULL_ROW = {**ROW, "systems": {"ubuntu-22.04": ">=5.10"}}
INSTALL = {"concern": "driver", "name": "package", "action": "install"}
BUILD = {"concern": "image", "name": "npufleet/triton", "action": "build"}
CHECK = """model: {model}
checks:
  - name: one
    protocols: [http]
    inputs: {{X: {{numbers: [1.5], dtype: FP32}}}}
    expect: {{Y: {{finite: true}}}}
"""
LOAD = {"concern": "models", "name": "digits", "action": "release"}


def variables(**given: Any) -> Any:
    row = {**FULL_ROW, **given.pop("row", {})}
    base = {
        "npufleet_release_row": row,
        "npufleet_release_rows": {"24.01": row},
        "npufleet_build_host": "npu1",
        "npufleet_cache": "/no/cache",
    }
    return fleet(**{**base, **given})


def refused(tmp_path: Path, plan: list[dict[str, Any]], found: Any = None, missing: Any = (), **given: Any) -> list[str]:
    here = {
        "served": given.pop("served", {}),
        "missing": list(missing),
        "free": given.pop("free", 10**12),
        "arrived": given.pop("arrived", {}),
    }
    given.setdefault("inference_check_checks_dir", [str(tmp_path)])
    return subject.refusals(variables(**given), found or {}, plan, {"models": here})


def test_a_version_that_changes_under_a_cache_that_outlives_the_server(tmp_path: Path) -> None:
    served = {"digits": {"release": "0001-e", "differs": [], "in_place": True}, "faces": {"release": "0001-e", "differs": []}}
    (reason,) = refused(tmp_path, [], served=served, triton_server_extra_args=["--cache-config=redis,host=cache1"])
    assert reason.startswith(
        "model digits: a served version would change, but with response_cache the redis cache would return the old answers"
    )
    assert "Add a version directory" in reason
    # A cache of the server's own is gone with a restart
    assert refused(tmp_path, [], served=served, triton_server_extra_args=["--cache-config=local,size=1048576"]) == []


def test_conditions_are_plain_data() -> None:
    made = subject.conditions(variables(triton_server_allow_grpc=False), {"a": {"memory": [4 * 2**30, 0]}, "b": {"memory": [0, 0]}})
    assert json.loads(json.dumps(made)) == made
    assert made["ports"] == {"8000": "npufleet_http_port", "8002": "npufleet_metrics_port"}
    assert made["models"] == {"a": [4 * 2**30, 0]}
    assert made["systems"] == {"ubuntu-22.04": ">=5.10"}


def test_known_vulnerabilities_are_a_warning_with_the_row_that_clears_them() -> None:
    flaws = {"5816": "26.02", "5828": "26.03", "5865": "26.06"}
    row = {**FULL_ROW, "vulnerabilities": {"as_of": "2026-08-18", "bulletins": flaws}}

    def later(triton: str, *open_to: str, **more: Any) -> dict[str, Any]:
        known = {"as_of": "2026-08-18", "bulletins": {number: flaws[number] for number in open_to}}
        return {**FULL_ROW, "triton": {**FULL_ROW["triton"], "version": triton}, "vulnerabilities": known, **more}

    rows = {
        "24.01": row,
        "26.07": later("2.71.0"),
        "26.05": later("2.69.0", "5865"),
        "older": later("2.41.0"),
        "other-card": later("2.68.0", cards=["RBLN-CR13"]),
        "unknown": {**later("2.68.0"), "vulnerabilities": None},
    }
    (warning,) = release_change.warnings(variables(row=row, npufleet_release_rows=rows))
    assert warning == (
        "release 24.01 runs a Triton with 3 known vulnerabilities as of 2026-08-18 (NVIDIA security bulletins 5816, 5828, 5865): "
        "release 26.05 fixes 5816, 5828; release 26.07 fixes 5865. "
        "Until this host runs such a version, keep its ports away from untrusted networks."
    )
    (warning,) = release_change.warnings(variables(row=row, npufleet_release_rows={"24.01": row, "26.07": later("2.71.0")}))
    assert "bulletins 5816, 5828, 5865): release 26.07 fixes them. Until this host" in warning
    (warning,) = release_change.warnings(variables(row=row))
    for bulletin, triton in (("5816", "26.02"), ("5828", "26.03"), ("5865", "26.06")):
        assert f"Triton {triton}, which no release row for RBLN-CA12 has, fixes {bulletin}" in warning
    assert release_change.warnings(variables(row={"vulnerabilities": {"as_of": "2026-08-18", "bulletins": {}}})) == []
    assert release_change.warnings(variables()) == []


def test_cards_that_serve_vllm_only_are_a_remark() -> None:
    (remark,) = release_change.untested_remarks(variables(npufleet_card="RBLN-CR13"))
    assert remark == "RBLN-CR13 serves models of backend vllm only. Place no other models on this host"


@pytest.mark.parametrize("bulletins", [{}, {"5816": "26.02"}])
def test_a_row_that_nobody_vouches_for_is_a_remark(bulletins: dict[str, str]) -> None:
    row = {"untested": "an older SDK", "vulnerabilities": {"as_of": "2026-08-18", "bulletins": bulletins}}
    *more, remark = release_change.warnings(variables(row=row))
    assert remark == "release 24.01 is untested: an older SDK"
    assert len(more) == len(bulletins)


def test_suppliers_of_a_build_host_and_of_another() -> None:
    given: dict[str, Any] = {
        "rbln_driver_package_url": "https://a.example.com/d.deb",
        "npufleet_artefact_user": "fleet",
        "npufleet_artefact_password": "one",
        "triton_image_index_url": "https://index.example.com/simple/",
        "triton_image_index_user": "portal",
        "triton_image_index_password": "two",
        "npufleet_https_proxy": "http://proxy.example.com:3128",
        "npufleet_no_proxy": ["a", "b"],
    }
    found, passwords = subject.suppliers(variables(**given))
    assert [(entry["name"], entry["address"], entry["user"], entry["needed"]) for entry in found] == [
        ("driver package", "https://a.example.com/d.deb", "fleet", ["driver", "install"]),
        ("package index", "https://index.example.com/simple/rebel-compiler/", "portal", ["image", "build"]),
        ("base image", "triton:base", "", ["image", "build"]),
    ]
    assert passwords == {"driver package": "one", "package index": "two", "base image": ""}
    assert found[0]["proxies"] == {"http": "", "https": "http://proxy.example.com:3128", "no_proxy": "a,b"}
    assert not any(secret in json.dumps(found) for secret in ('"one"', '"two"'))
    found, _passwords = subject.suppliers(variables(**given, npufleet_build_host="npu9"))
    assert [entry["name"] for entry in found] == ["driver package"]


def test_the_repository_of_the_toolkit_is_a_supplier_where_it_is_needed() -> None:
    row = {"npufleet_release_row": {**ROW, "driver": {**ROW["driver"], "version": "3.2.2"}}, "npufleet_build_host": "npu9"}
    assert subject.suppliers(variables(**row, npufleet_device_access="devices"))[0] == []
    (found,), passwords = subject.suppliers(variables(**row, npufleet_device_access="cdi"))
    assert found["address"] == "https://nexus.rebellions.ai/repository/apt-public/dists/stable/Release"
    assert (found["needed"], found["user"], passwords) == (["driver", "toolkit"], "", {found["name"]: ""})
    own = {**row, "npufleet_device_access": "cdi", "rbln_driver_toolkit_repository": ""}
    assert subject.suppliers(variables(**own))[0] == []


def test_archive_and_wheels_take_the_place_of_registry_and_index() -> None:
    found, _passwords = subject.suppliers(variables(triton_image_wheelhouse="/wheels", triton_image_base_archive="/base.tar"))
    assert found == []
    found, _passwords = subject.suppliers(
        variables(triton_image_wheelhouse="/wheels", triton_image_base_archive="http://a/base.tar")
    )
    assert [entry["name"] for entry in found] == ["archive of the base image"]


REPOSITORY = "registry.example.com:5000/npufleet/triton"
DELIVERY = {
    "triton_image_delivery_repository": REPOSITORY,
    "triton_image_delivery_user": "fleet",
    "triton_image_delivery_password": "three",
    "triton_image_wheelhouse": "/wheels",
    "triton_image_base_archive": "/base.tar",
}


def test_the_registry_that_brings_the_image_is_asked_by_the_engine() -> None:
    locked = {"24.01": {"repo_digest": f"{REPOSITORY}@sha256:1"}}
    found, passwords = subject.suppliers(variables(**DELIVERY, npufleet_build_host="npu9", npufleet_lock=locked))
    (entry,) = found
    assert (entry["kind"], entry["address"], entry["user"], entry["needed"], entry["pushes"], entry["registry"]) == (
        *("engine", f"{REPOSITORY}@sha256:1", "fleet", ["image", "deliver"], False, "registry.example.com:5000"),
    )
    assert passwords == {entry["name"]: "three"}
    found, passwords = subject.suppliers(variables(**DELIVERY))
    assert [(item["address"], item["pushes"], item["needed"]) for item in found] == [
        (REPOSITORY, True, ["image", "build"]),
        (REPOSITORY, True, ["image", "publish"]),
    ]
    assert set(passwords.values()) == {"three"}
    assert "three" not in json.dumps(found)


@pytest.mark.parametrize(("builder", "repository", "room"), [("npu9", REPOSITORY, 0), ("npu1", REPOSITORY, 30), ("npu9", "", 30)])
def test_an_image_from_a_registry_needs_no_room_for_an_archive(builder: str, repository: str, room: int) -> None:
    given = {"npufleet_build_host": builder, "triton_image_delivery_repository": repository}
    assert subject.conditions(variables(**given), {})["disk"]["/var/lib/npufleet"]["image"] == room * 2**30


def test_mirror_is_asked_for_docker_hub_alone() -> None:
    def mirror_of(base: str) -> Any:
        found, _passwords = subject.suppliers(
            variables(triton_image_base=base, docker_engine_registry_mirrors=["https://m"], triton_image_wheelhouse="/w")
        )
        return found[0]["mirror"]

    assert mirror_of("rebellions/tritonserver:25.08") == "https://m"
    assert mirror_of("nvcr.io/nvidia/tritonserver:24.01-py3") is None


def test_authority_travels_as_text(tmp_path: Path) -> None:
    (tmp_path / "site.pem").write_text("PEM")
    found, _passwords = subject.suppliers(variables(npufleet_ca_file=str(tmp_path / "site.pem")))
    assert {entry["ca"] for entry in found} == {"PEM"}


@pytest.mark.parametrize(
    ("name", "form", "words"),
    [
        ("rebellions_1.2.92_amd64.deb", "deb", ""),
        ("rebellions_1.2.92-6d00b56_amd64.deb", "deb", ""),
        ("the-driver.deb", "deb", ""),
        ("driver", "deb", ""),
        # 1.3.57 is in no row: it may be a name of the site's own
        ("rebellions_1.3.57_amd64.deb", "deb", ""),
        (
            "rebellions_3.2.2_amd64.deb",
            "deb",
            "rebellions_3.2.2_amd64.deb, named after another driver, expected rebellions 1.2.92",
        ),
        ("rebellions-x86_64-3.2.2.run", "run", "named after another driver, expected rebellions 1.2.92"),
        ("for-1.2.92-and-3.2.2.deb", "deb", ""),
        ("the-driver.run", "deb", "the driver package is the-driver.run, expected a .deb. Set rbln_driver_package_file"),
        ("the-driver.deb", "run", "the driver package is the-driver.deb, expected a .run. Set rbln_driver_package_file"),
    ],
)
@pytest.mark.parametrize("where", ["file", "url"])
def test_a_driver_package_of_another_release(tmp_path: Path, where: str, name: str, form: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"driver")
    digest = hashlib.sha256(b"driver").hexdigest()
    place = str(tmp_path / name) if where == "file" else f"https://a.example.com/1.1.67/{name}?sig=3.5.1"
    rows = {"24.01": FULL_ROW, "26.05": {**FULL_ROW, "driver": {**FULL_ROW["driver"], "version": "3.2.2"}}}
    given = {f"rbln_driver_package_{where}": place, "rbln_driver_package_sha256": digest, "rbln_driver_form": form}
    reasons = refused(tmp_path, [INSTALL], npufleet_release_rows=rows, **given)
    assert len(reasons) == bool(words)
    assert not words or words in reasons[0]


def test_missing_driver_package(tmp_path: Path) -> None:
    (reason,) = refused(tmp_path, [INSTALL])
    assert reason.startswith("the driver package is missing, expected rebellions 1.2.92 (.deb). ")
    (reason,) = refused(tmp_path, [INSTALL], rbln_driver_package_file="/no/d.deb", rbln_driver_package_sha256="0" * 64)
    assert reason == "the controller has no /no/d.deb, expected the driver package. Correct rbln_driver_package_file."
    assert refused(tmp_path, []) == [], "a host that has its driver needs no package"


def test_wrong_sha256_of_the_driver(tmp_path: Path) -> None:
    package = tmp_path / "d.deb"
    package.write_bytes(b"another")
    digest = hashlib.sha256(b"another").hexdigest()
    (reason,) = refused(tmp_path, [INSTALL], rbln_driver_package_file=str(package), rbln_driver_package_sha256="0" * 64)
    assert reason.startswith(f"the driver package has SHA-256 {digest}, expected {'0' * 64}. Compare it with its source")
    assert refused(tmp_path, [INSTALL], rbln_driver_package_file=str(package), rbln_driver_package_sha256=digest) == []


def test_no_base_image_and_no_wheels(tmp_path: Path) -> None:
    base, wheels = "/no/base.tar", "/no/wheels"
    given: dict[str, Any] = {
        "triton_image_base_archive": base,
        "triton_image_base_archive_sha256": "0" * 64,
        "triton_image_wheelhouse": wheels,
    }
    reasons = refused(tmp_path, [BUILD], **given)
    assert [reason.split(",")[0] for reason in reasons] == [
        f"the controller has no directory {wheels}",
        f"the controller has no {base}",
    ]
    assert refused(tmp_path, [BUILD], npufleet_build_host="npu2", **given) == []


def test_model_without_a_check_file(tmp_path: Path) -> None:
    found = {"digits": {"origins": {}}, "words": {"origins": {}}}
    (tmp_path / "digits.yml").write_text(CHECK.format(model="digits"))
    (reason,) = refused(tmp_path, [LOAD], found)
    assert reason.startswith("model words: its check file words.yml is missing, expected a check file that proves the model. ")
    own = tmp_path / "own"
    own.mkdir()
    (own / "words.yml").write_text(CHECK.format(model="words"))
    assert refused(tmp_path, [LOAD], found, inference_check_checks_dir=[str(own)]) == []
    assert refused(tmp_path, [LOAD], found, inference_check_require_checks=False) == []
    assert refused(tmp_path, [], found) == []


def test_check_file_of_loads_alone_proves_nothing_where_those_are_left_out(tmp_path: Path) -> None:
    found = {"digits": {"origins": {}}}
    load = CHECK.format(model="digits").rstrip().rsplit("expect:", 1)[0] + "latency: {requests: 100, p99_ms: 9}\n"
    (tmp_path / "digits.yml").write_text(load)
    (reason,) = refused(tmp_path, [LOAD], found)
    assert reason == (
        "model digits: its check file has only checks with latency, which monitoring_probe_latency disables, expected a check "
        "without latency. Add a check that compares an answer."
    )
    (reason,) = refused(tmp_path, [LOAD], found, inference_check_latency=False, monitoring_probe=False)
    assert "which inference_check_latency disables, " in reason
    assert refused(tmp_path, [LOAD], found, monitoring_probe=False) == []
    assert refused(tmp_path, [LOAD], found, monitoring_probe_latency=True) == []


def test_check_files_that_are_not_right(tmp_path: Path) -> None:
    found = {"digits": {"origins": {}}, "words": {"origins": {}}}
    (tmp_path / "digits.yml").write_text("model: digits\nchecks: [{name: a}]\n")
    (tmp_path / "words.yml").write_text("checks: [\n")
    reasons = refused(tmp_path, [LOAD], found)
    assert any("digits.yml: checks[0].inputs is missing" in entry for entry in reasons), reasons
    assert any("words.yml: is not a YAML file" in entry for entry in reasons), reasons
    (reason,) = refused(tmp_path, [INSTALL], found, rbln_driver_package_file="/no", rbln_driver_package_sha256="0" * 64)
    assert reason.endswith("Correct rbln_driver_package_file.")
    assert refused(tmp_path, [], found) == []


def test_compiled_files_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    with http_server({"HEAD /there": (200, b"")}) as served:
        address = f"http://127.0.0.1:{served.port}"
        origins = {"1" * 64: {"file": "/no/model.rbln"}, "2" * 64: {"url": address + "/gone"}, "3" * 64: {"url": address + "/kept"}}
        (tmp_path / "blobs").mkdir()
        (tmp_path / "blobs" / ("3" * 64)).write_bytes(b"in the cache")
        reasons = refused(
            tmp_path,
            [],
            {"digits": {"origins": origins}},
            missing=origins,
            npufleet_cache=str(tmp_path),
        )
    assert reasons[0] == "model digits: the controller has no /no/model.rbln, expected the compiled file. Correct `file`."
    assert reasons[1].startswith(f"model digits: compiled file {address}/gone: no answer (")
    assert len(reasons) == 2


def test_room_for_large_files_is_counted_before_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    (tmp_path / "a.rbln").write_bytes(b"a" * 600)
    with stores.serving({"b": b"b" * 500}) as store:
        origins = {"1" * 64: {"file": str(tmp_path / "a.rbln")}, "2" * 64: {"url": store.url + "/b"}}
        asked: dict[str, Any] = {"found": {"digits": {"origins": origins}}, "missing": origins}
        (reason,) = refused(tmp_path, [], **asked, free=999)
        assert (
            reason
            == "/var/lib/npufleet has 999 bytes (0 MiB) free, expected 1100 (1 MiB) for 2 large files. Make room on this disk"
        )
        assert refused(tmp_path, [], **asked, free=999, arrived={"1" * 64: 101}) == []


def test_large_files_of_a_bundle_need_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "bundle/blobs/sha256"
    home.mkdir(parents=True)
    (home / ("1" * 64)).write_bytes(b"content")
    found = {"digits": {"origins": {"1" * 64: {}, "2" * 64: {}}}}
    reasons = refused(tmp_path, [], found, found["digits"]["origins"], model_repository_bundle=str(tmp_path / "bundle"))
    assert reasons == [
        "model digits: compiled file nowhere: it has no `url`, no `file`, and is in no bundle. Name one. "
        "Correct `url` or npufleet_artefact_user."
    ]
    (gone,) = refused(tmp_path, [], found, found["digits"]["origins"], model_repository_bundle="/no/bundle")
    assert gone.startswith("/no/bundle is no complete bundle (")


def test_a_host_that_fetches_itself_judges_its_sources_itself(tmp_path: Path) -> None:
    with stores.serving({"b": b"b" * 500}) as store:
        store.login = "fleet:two"
        origins = {"1" * 64: {"url": store.url + "/b"}, "2" * 64: {"url": store.url + "/gone"}, "3" * 64: {"file": "/no/file"}}
        found = {"digits": {"origins": origins, "memory": [0, 0]}}
        given = {"model_repository_fetch": "host", "npufleet_artefact_user": "fleet", "npufleet_artefact_password": "two"}
        assert refused(tmp_path, [], found, ["1" * 64, "2" * 64], **given) == []
        pulls = subject.conditions(variables(**given), found)["downloads"]
        secrets = subject.suppliers(variables(**given))[1][LARGE_FILES]
        here = {"missing": sorted(origins), "free": 499, "arrived": {}}
        assert download_refusals(pulls, here, secrets) == [
            f"model digits: compiled file {store.url}/gone: status 404, expected a file or page. "
            "Correct `url` or npufleet_artefact_user",
            "/var/lib/npufleet has 499 bytes (0 MiB) free, expected 500 (1 MiB) for 1 large file. Make room on this disk",
        ]
        assert download_refusals(pulls, {**here, "missing": []}, secrets) == []
        assert "two" not in json.dumps(pulls)
    assert subject.conditions(variables(), found)["downloads"] == {}
