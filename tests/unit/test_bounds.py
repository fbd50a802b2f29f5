"""Every path, number, name and list of an inventory has bounds where it becomes a typed value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import bounds, findings
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from helpers import fleet

LONG = "n" * 240
SHA = "a" * 64


def refused(**given: Any) -> list[str]:
    """Return why these variables are refused; no message has a character that a terminal obeys, or much of the value."""
    reasons = fleet(**given).type_errors
    assert reasons, given
    assert not [reason for reason in reasons if bounds.CONTROL.search(reason) or len(reason) > 400], reasons
    return reasons


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "", ".", "..", "relative", "~/x", "~", "/data", "/var", "/var/lib", "/var/lib/", "/etc", "/etc/npufleet"),
        *("/usr/local/npufleet", "/home/ops", "/srv", "/srv/", "/srv/../etc", "/srv/./x", "//srv/x", "/srv//x", "/dev/shm"),
        *("/proc/1", "/sys/x", "/boot/x", "/run/npufleet", "/var/run/x", "/var/lib/docker", "/var/lib/docker/npufleet"),
        *(
            "/srv/a b",
            "/srv/a:b",
            "/srv/%i",
            "/srv/a\nExecStart=/bin/sh -c evil",
            "/srv/a\n",
            "/srv/a\0b",
            "/srv/$(id)",
            "/srv/\x1b[2J",
        ),
        *("/srv/'x'", "/srv/\ubaa8\ub378", "/srv/" + 256 * "x", "/srv" + 300 * "/xyz"),
    ],
)
def test_a_root_that_teardown_must_not_remove_is_refused(path: str) -> None:
    (reason,) = refused(npufleet_root=path)
    assert reason.startswith("npufleet_root is ")
    assert reason.endswith("Name a directory that nothing else uses, such as /var/lib/npufleet.")
    with pytest.raises(Refusal):
        fleet(npufleet_root=trust_as_template("{{ given }}"), given=path)["npufleet_root"]


@pytest.mark.parametrize("path", ["/var/lib/npufleet", "/srv/npufleet", "/data/models/npufleet-2", "/opt/n_p.u@1"])
def test_a_root_of_its_own_is_accepted(path: str) -> None:
    assert fleet(npufleet_root=path).type_errors == []


@pytest.mark.parametrize(
    "given",
    [
        {"monitoring_probe_directory": "/etc"},
        {"monitoring_probe_directory": "/var/lib"},
        {"monitoring_rules_directory": "/etc"},
        {"monitoring_rules_directory": "/usr/lib"},
        {"monitoring_targets_file": "/usr/lib/x.json"},
        {"monitoring_prometheus_config": "prometheus.yml"},
        {"npufleet_proxy_file": "/etc/proxy.env"},
        {"npufleet_incoming": "/etc"},
        {"npufleet_cache": "/"},
        {"npufleet_cache": "cache"},
        {"npufleet_output_dir": "/etc"},
        {"npufleet_output_dir": "/dev/shm/x"},
        {"npufleet_output_dir": "/bin/.."},
        {"npufleet_cache": "~/cache"},
        {"npufleet_output_dir": ""},
        {"npufleet_output_dir": "/srv/a\nb"},
        {"npufleet_lock_file": "lock.json"},
        {"npufleet_ca_file": "/x\n.pem"},
        {"inference_check_checks_dir": ["checks"]},
        {"inference_check_http_tls": {"ca": "ca.pem"}},
        {"model_compile_python": "python3"},
        *(
            {"triton_models": [{"name": "m", "artefacts": {"CA12/0.6": {"path": path}}}]}
            for path in (
                *(
                    "../../elsewhere/cron.d/x",
                    "1/../../y",
                    "1/../config.pbtxt",
                    "/1/x",
                    "1//x",
                    "1/./x",
                    "1/x/",
                    "1/",
                    "1",
                    "\n",
                    "",
                ),
                *(
                    "config.pbtxt",
                    "1/config.pbtxt",
                    "1/CONFIG.PBTXT",
                    "1/model.py",
                    "1/model.json",
                    "1/libtriton_x.so",
                    "model.rbln",
                ),
                *("01/x", "-1/x", "latest/x", "1/x\n", "1/" + 251 * "x", 19 * "9" + "/x", "1" + 600 * "/x"),
            )
        ),
        {"triton_server_volumes": ["../x:/x"]},
        {"triton_server_volumes": ["/srv/../etc:/x"]},
        {"triton_server_volumes": ["/srv:/"]},
        {"triton_server_volumes": ["/srv:/x\n"]},
        {"triton_server_tmpfs": ["tmp"]},
        {"triton_server_tmpfs": ["/"]},
        {"triton_server_model_repositories": ["/"]},
        {"triton_server_model_repositories": ["/srv/../etc"]},
        {"docker_engine_daemon_options": {"data-root": "/"}},
        {"docker_engine_daemon_options": {"data-root": "docker"}},
        {"docker_engine_daemon_options": {"data-root": "/etc/docker"}},
        {"docker_engine_daemon_options": {"data-root": 1}},
        {"docker_engine_daemon_options": {"exec-root": "/var/lib/../../etc"}},
    ],
)
def test_other_paths_have_bounds(given: dict[str, Any]) -> None:
    (reason,) = refused(**given)
    assert reason.startswith(next(iter(given)))


@pytest.mark.parametrize(
    "given",
    [
        {"npufleet_output_dir": "/srv/build"},
        {"npufleet_output_dir": "/etc/ansible/build"},
        {"npufleet_locked": {"id": "sha256:" + SHA, "reference": "npufleet/triton:1"}},
        {"npufleet_cache": "/cache"},
        {"npufleet_cache": "/home/\ud64d\uae38\ub3d9/\uce90\uc2dc"},
        {"npufleet_model_repository": "/srv/site/../models"},
        {"inference_check_checks_dir": ["~/checks"]},
        {"triton_image_wheelhouse": ""},
        {"triton_models": [{"name": "m", "artefacts": {"CA12/0.6": {"path": "2/sub/resnet.rbln"}}}]},
        {"triton_server_volumes": ["cache:/cache", "/data/:/data/:ro", "/srv/x:/x:ro,Z"]},
        {"triton_server_model_repositories": ["s3://https://store.example.com:9000/bucket/models", "/models/", "models"]},
        {"docker_engine_daemon_options": {"data-root": "/data/docker", "log-opts": {"max-size": "1m"}, "live-restore": True}},
        {"docker_engine_daemon_options": {"data-root": "/var/lib/docker"}},
        {"monitoring_probe_directory": "/run/prometheus/textfile"},
    ],
)
def test_usual_paths_are_accepted(given: dict[str, Any]) -> None:
    assert fleet(**given).type_errors == []


@pytest.mark.parametrize(
    "value", [20000000000, "20000000000", 0, -1, "-1", 257, 1e300, "9" * 5000, pytest.param(10**5000, id="huge")]
)
def test_a_number_of_npus_that_no_host_has_is_refused(value: Any) -> None:
    (reason,) = refused(npufleet_npus=value)
    assert reason.startswith("npufleet_npus")


@pytest.mark.parametrize(
    "given",
    [
        {"npufleet_http_port": 65536},
        {"npufleet_http_port": "0"},
        {"monitoring_prometheus_port": -1},
        {"npufleet_lease_timeout": 0},
        {"model_repository_keep": 10**9},
        {"triton_server_ready_timeout": "99999999999"},
        {"triton_server_log_verbose": 10**20},
        {"monitoring_scrape_indent": 10**9},
        {"npufleet_support_lines": 10**12},
        {"preflight_disk_models": 10**12},
        {"triton_models": [{"name": "m", "instances": 10**9}]},
        {"triton_models": [{"name": "m", "instances": 0}]},
        {"triton_models": [{"name": "m", "npus": [10**12]}]},
        {"triton_models": [{"name": "m", "npus": [-1]}]},
        {"triton_models": [{"name": "m", "npus": [0, 0]}]},
        {"triton_models": [{"name": "m", "npus": list(range(300))}]},
        {"triton_models": [{"name": "m", "device_memory": "9999999999g"}]},
        {"triton_models": [{"name": "m", "artefacts": {"CA12/0.6": {"size": -1}}}]},
        {"triton_models": [{"name": f"m{number}"} for number in range(1001)]},
        {"triton_server_shm_size": "99999999999999999999"},
        {"triton_server_ulimits": ["memlock:-1:99999999999999999999"]},
        {"model_compile_models": [{"name": "m", "source": {}, "inputs": [], "batches": [10**12]}]},
        {"model_compile_models": [{"name": "m", "source": {}, "inputs": [], "devices": 10**12}]},
    ],
)
def test_other_numbers_and_lists_have_bounds(given: dict[str, Any]) -> None:
    (reason,) = refused(**given)
    assert reason.startswith(next(iter(given)))
    assert " expected " in reason


def numbers_without_bound(where: str, spec: Mapping[str, Any]) -> list[str]:
    """Return the whole numbers in a variable that have no bound, in the form of the keys of BOUNDS."""
    parts = {f".{key}": option for key, option in (spec.get("options") or {}).items()}
    parts |= {suffix: spec[key] for suffix, key in (("[]", "element"), ("[*]", "values")) if key in spec}
    own = [where] if spec.get("type") == "int" and "bound" not in spec else []
    return own + [name for suffix, part in parts.items() for name in numbers_without_bound(where + suffix, part)]


def test_every_number_of_the_specs_has_a_bound() -> None:
    specs = inventory_specs()
    assert [name for variable, spec in specs.items() for name in numbers_without_bound(variable, spec)] == []
    assert numbers_without_bound("x", {"type": "list", "element": {"type": "int"}}) == ["x[]"]


def test_every_bound_belongs_to_a_variable() -> None:
    specs = inventory_specs()
    unknown = [name for name in bounds.BOUNDS if name.partition("[")[0].partition("{")[0] not in specs]
    assert unknown == []


@pytest.mark.parametrize(
    "given",
    [
        {"rbln_release": "../x"},
        {"rbln_release": LONG},
        {"rbln_release": "25.08\n"},
        {"npufleet_locked": {"id": "../../x"}},
        {"triton_models": [{"name": "a\u202eb"}]},
        {"triton_models": [{"name": "a\ud800"}]},
        {"npufleet_extra_releases": {"a/b": {}}},
        {"npufleet_card": "RBLN/CA22"},
        {"triton_models": [{"name": LONG}]},
        {"triton_models": [{"name": "\ubaa8" * 70}]},
        {"triton_models": [{"name": "a/b"}]},
        {"triton_models": [{"name": ".."}]},
        {"triton_models": [{"name": "a\nb"}]},
        {"triton_models": [{"name": ""}]},
        {"triton_models": [{"name": "m", "artefacts": {"../..": {}}}]},
        {"triton_models": [{"name": "m", "artefacts": {"CA12/0.6": {"path": LONG * 40}}}]},
        {"docker_engine_unit_limits": {"../x.service": {}}},
        {"docker_engine_unit_limits": {"x.service": {"Limit\nExecStart": "1"}}},
        {"docker_engine_unit_limits": {"x.service": {"LimitNOFILE": "1\nExecStart=/bin/x"}}},
        {"triton_server_environment": {"A=B": "1"}},
        {"inference_check_headers": {"a: b\r\nx": "1"}},
        {"inference_check_headers": {"a": "1\r\nx: y"}},
        {"monitoring_scrape_interval": "15s\nx: y"},
        {"monitoring_scrape_interval": "soon"},
        {"monitoring_prometheus_service": "../x"},
        {"triton_server_name": "a/b"},
        {"triton_server_name": "--privileged"},
        {"npufleet_protected": "x" * 5000},
    ],
)
def test_names_fit_the_files_and_lines_that_they_become(given: dict[str, Any]) -> None:
    (reason, *_more) = refused(**given)
    assert reason.startswith(next(iter(given)))


def test_secrets_outside_of_their_bounds_are_not_shown() -> None:
    (reason,) = refused(npufleet_artefact_password="hunter2\nhunter2")
    assert "hunter2" not in reason
    (reason,) = refused(inference_check_headers={"key": "hunter2\n"})
    assert "hunter2" not in reason


def test_what_is_made_of_good_variables_is_judged_as_well() -> None:
    given = {"rbln_driver_package_url": "https://files.example.com/..", "rbln_driver_package_sha256": SHA}
    (reason,) = findings.findings(fleet(**given), given)
    assert reason.startswith("rbln_driver_package_path is /var/lib/npufleet/packages/.., expected ")


def test_a_host_whose_name_is_no_file_name_is_refused() -> None:
    for host in ("../../etc/x", "h" * 250, "a\nb"):
        given = {"inventory_hostname": host, "groups": {}}
        (reason,) = findings.findings(fleet(**given), given)
        assert "the name of this host" in reason
