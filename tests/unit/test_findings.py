"""What is wrong with an inventory before any host is asked: names, kinds, contradictions, groups."""

from __future__ import annotations

import difflib
from typing import Any

import pytest
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from helpers import fleet

KNOWN = inventory_specs()
GROUPS = {"all": ["npu1", "npu2", "ops1"], "ungrouped": [], "npu_hosts": ["npu1", "npu2"], "monitoring_hosts": ["ops1"]}


def findings(**given: Any) -> list[str]:
    """Reasons against an inventory that sets these variables."""
    given = {"groups": GROUPS, **given}
    return subject.findings(fleet(**given), given)


def test_every_variable_is_known() -> None:
    assert {"rbln_release", "triton_models", "npufleet_root", "triton_server_ulimits", "npufleet_release_row"} <= set(KNOWN)


def test_a_good_inventory_has_no_findings() -> None:
    assert findings(triton_server_shm_size="2g", npufleet_npus="4", ansible_user="ops", vault_password="x", npu_rack="b7") == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("npufleet_http_prot", "npufleet_http_port"),
        ("rbln_relase", "rbln_release"),
        ("triton_model", "triton_models"),
        ("triton_server_shmsize", "triton_server_shm_size"),
        ("npu_fleet_npus", "npufleet_npus"),
        ("docker_engine_deamon_options", "docker_engine_daemon_options"),
    ],
)
def test_misspelt_variable_is_named_with_the_right_one(name: str, hint: str) -> None:
    (reason,) = findings(**{name: 1})
    assert reason.startswith(f"{name} is set, ")
    assert reason.endswith(f"Did you mean {hint}?")


def test_the_most_similar_name_is_the_one_of_all() -> None:
    known = sorted(KNOWN)
    places = [(name, at) for name in known[::19] for at in (0, 7, len(name))]
    slips = [name[:at] + put + name[at + skip :] for name, at in places for put in ("", "x") for skip in (0, 1, 3)]
    for name in [*slips, "inventory_hostname", "role_path", "groups", "a"]:
        for ratio in (0.8, subject.MIN_SIMILARITY):
            assert subject._most_similar(name, known, ratio) == difflib.get_close_matches(name, known, n=1, cutoff=ratio), name


def test_name_that_resembles_nothing() -> None:
    assert findings(npufleet_zzqy=1) == [
        "npufleet_zzqy is set, but there is no such variable. docs/variables.md lists all variables."
    ]
    assert findings(monitoring_team="night shift") == [], "a site's own variable, which resembles none of ours"
    (slip,) = findings(monitoring_scrape_intervall="5s")
    assert slip.endswith("Did you mean monitoring_scrape_interval?")


def test_names_that_playbooks_register_are_their_own() -> None:
    assert findings(npufleet_state={}, triton_image_state={}, inference_check_result={}, npufleet_failed="x") == []


def test_removed_variable_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(subject.REMOVED, "npufleet_images", "triton_image_base_archive")
    assert findings(npufleet_images=[]) == ["npufleet_images is no longer a variable. Set triton_image_base_archive instead."]


def test_values_of_a_wrong_kind_are_named() -> None:
    port, hosts = findings(npufleet_http_port="http", npufleet_no_proxy={"secret": "hunter2"})
    assert port == "npufleet_http_port is http, expected a whole number. Correct it."
    assert hosts.startswith("npufleet_no_proxy is a map, expected a list. ")


def test_model_entry_with_a_misspelt_key() -> None:
    (reason,) = findings(triton_models=[{"name": "digits", "artifacts": {}}])
    assert reason.startswith("triton_models[digits].artifacts is an unknown key, expected one of name, hosts, ")
    assert reason.endswith(". Did you mean artefacts?")


def test_every_template_that_lacks_something_is_named() -> None:
    reasons = findings(
        triton_image_index_password=trust_as_template("{{ vault_index_pasword }}"),
        triton_image_index_user="fleet",
        rbln_driver_package_sha256=trust_as_template("{{ driver_sum }}"),
    )
    assert [reason.split(": ")[0] for reason in reasons] == [
        "rbln_driver_package_sha256 cannot be evaluated",
        "triton_image_index_password cannot be evaluated",
        "triton_image_index_user is set without triton_image_index_password. Set both, or neither for a server without a login.",
    ]
    assert "'driver_sum' is undefined" in reasons[0]
    assert "'vault_index_pasword' is undefined" in reasons[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"rbln_driver_package_file": "/a.deb", "rbln_driver_package_url": "http://a", "rbln_driver_package_sha256": "0" * 64},
            "are both set",
        ),
        ({"rbln_driver_package_url": "http://a/b.deb"}, "rbln_driver_package_url is set without rbln_driver_package_sha256"),
        ({"triton_image_base_archive": "/base.tar"}, "triton_image_base_archive is set without triton_image_base_archive_sha256"),
        ({"triton_image_index_user": "fleet"}, "triton_image_index_user is set without triton_image_index_password"),
        ({"triton_image_registry_password": "x"}, "triton_image_registry_password is set without triton_image_registry_user"),
        ({"triton_image_delivery_user": "x"}, "triton_image_delivery_user is set without triton_image_delivery_password"),
        *(
            (
                {"triton_image_delivery_repository": repository},
                f"triton_image_delivery_repository is {repository}. Write it as registry.example.com:5000/",
            )
            for repository in (
                *("https://registry.example.com/triton", "r.example.com/Triton"),
                *("r.example.com/triton:1", "r.example.com/triton@sha256:" + "a" * 64, "r.example.com:5000/", "r.example.com/a b"),
                *("docker.io/me/triton", "index.docker.io/me/triton"),
            )
        ),
        (
            {"triton_image_delivery_repository": "npufleet/triton"},
            "triton_image_delivery_repository and triton_image_name are both",
        ),
        ({"npufleet_grpc_port": 8000}, "npufleet_http_port and npufleet_grpc_port are all 8000"),
        ({"triton_server_stop_timeout": 30}, "triton_server_stop_timeout is 30 and triton_server_exit_timeout is 30"),
        ({"triton_server_allow_metrics": False}, "triton_server_allow_metrics is off, but there are monitoring_hosts"),
        ({"npufleet_https_proxy": "proxy:3128"}, "npufleet_https_proxy has no scheme"),
        (
            {"triton_image_index_url": "https://me:pw@index.example.com/simple/"},
            "triton_image_index_url contains a login, which command lines would show. Set triton_image_index_user and ",
        ),
        (
            {"triton_image_index_user": "fleet", "triton_image_index_password": "Schl\u00fcssel"},
            "triton_image_index_user and triton_image_index_password cannot be given to pip: its password is empty, longer than",
        ),
        (
            {"npufleet_drain_timeout": 3600},
            "npufleet_drain_timeout is 3600 and npufleet_lease_timeout is 3600. Make npufleet_drain_timeout shorter",
        ),
        ({"npufleet_drain_hook": "haproxy"}, "npufleet_drain_hook is haproxy, but no host is in load_balancer_hosts."),
        ({"npufleet_drain_hook": "f5"}, "npufleet_drain_hook is f5, expected haproxy, command or none."),
        (
            {"npufleet_drain_hook": "command", "npufleet_drain_commands": {"drain": ["/srv/drain"]}},
            "npufleet_drain_hook is command, but npufleet_drain_commands has no undrain and no is_drained. Add the commands.",
        ),
        ({"npufleet_canary_weight": 0}, "npufleet_canary_weight is 0, expected a whole number from 1 to 256."),
        ({"npufleet_canary_weight": 300}, "npufleet_canary_weight is 300, expected a whole number from 1 to 256."),
        ({"npufleet_ca_file": "/no/such.pem"}, "npufleet_ca_file is /no/such.pem, but the controller has no such file"),
    ],
)
def test_contradiction(given: dict[str, Any], words: str) -> None:
    (reason,) = findings(**given)
    assert words in reason
    assert reason.endswith("."), "has a next step"


@pytest.mark.parametrize("repository", ["r.example.com:5000/npufleet/triton", "R.example.com/a/b-c_d.e", "me/triton"])
def test_a_repository_that_engines_take(repository: str) -> None:
    assert findings(triton_image_delivery_repository=repository) == []


def test_hosts_in_no_group() -> None:
    assert findings(groups={**GROUPS, "ungrouped": ["npu7", "localhost"]}) == [
        "npu7 is in no group. Put it into npu_hosts or load_balancer_hosts or monitoring_hosts."
    ]
    assert findings(groups={**GROUPS, "ungrouped": ["npu7", "npu8"]}) == [
        "npu7, npu8 are in no group. Put them into npu_hosts or load_balancer_hosts or monitoring_hosts."
    ]


def test_group_with_a_slip_in_its_name() -> None:
    groups = {"all": ["npu1"], "ungrouped": [], "npu_host": ["npu1"]}
    assert findings(groups=groups) == ["there is a group npu_host, and no host is in npu_hosts. Rename the group."]
    assert findings(groups={**GROUPS, "npu_host": ["npu1"]}) == [], "a group of the site's own beside the right one"


def test_models_placed_nowhere() -> None:
    unknown, nowhere = findings(
        triton_models=[{"name": "words", "hosts": ["npu9"]}, {"name": "faces", "hosts": ["monitoring_hosts"]}]
    )
    assert unknown == "model words: `hosts` contains npu9, expected hosts or groups of this inventory. Correct it."
    assert nowhere.startswith("model faces is on no host: none of monitoring_hosts is in npu_hosts. ")
    assert findings(triton_models=[{"name": "faces", "hosts": ["npu2"]}]) == []


def test_a_host_outside_of_the_group_that_the_inventory_alone_names() -> None:
    """Plays go over what the command line says; roles would look for another group."""
    (reason,) = findings(npufleet_group="edge", groups={**GROUPS, "edge": ["npu2"]})
    expected = "npu1 is in no group edge or load_balancer_hosts or monitoring_hosts. "
    assert reason == expected + "Set npufleet_group on the command line, where every play sees it."
    assert findings(npufleet_group="edge", groups={**GROUPS, "npu_hosts": [], "edge": ["npu1", "npu2"]}) == []


def test_renamed_variables_name_the_new_one() -> None:
    assert findings(inference_check_probe_limit=60) == [
        "inference_check_probe_limit is no longer a variable. Set monitoring_probe_limit instead."
    ]
    assert findings(triton_server_linked=True) == [
        "triton_server_linked is no longer a variable. Set triton_server_current_releases instead."
    ]
    assert findings(npufleet_row={}) == ["npufleet_row is no longer a variable. Set npufleet_release_row instead."]


def test_a_group_of_load_balancers_without_hosts_is_refused() -> None:
    assert findings(groups={**GROUPS, "load_balancer_hosts": []}) == [
        "the group load_balancer_hosts has no hosts, expected the load balancers of the fleet. Add them, or remove the group."
    ]
