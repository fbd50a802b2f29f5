"""Values take the type that argument_specs.yml says, nested ones too, or are refused; and nobody reads one that does not fit."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, NPU_HOSTS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from helpers import ROOT, ROW, fleet

NPU = [name for name, concern in CONCERNS.items() if NPU_HOSTS in concern.groups]
LIST = "expected a list. Write it as [one, two], on a command line inside JSON."
MAP = "expected a map. Write it as {key: value}, on a command line inside JSON."
DIGEST = "0" * 64


def refused(**given: Any) -> list[str]:
    """Why nothing can be wanted of a host with these variables; what does not fit is the first of it."""
    with pytest.raises(Refusal) as refusal:
        subject.desired(fleet(**given), NPU)
    return refusal.value.reasons


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"triton_models": [{"name": "words", "hosts": "npu1"}]}, f"triton_models[words].hosts is text, {LIST}"),
        ({"triton_models": [{"name": "words", "npus": 1}]}, f"triton_models[words].npus is a number, {LIST}"),
        (
            {"triton_models": [{"name": "words", "npus": ["one", True]}]},
            "triton_models[words].npus[0] is one, expected a whole number. Correct it.",
        ),
        (
            {"triton_models": [{"name": "words", "instances": "two"}]},
            "triton_models[words].instances is two, expected a whole number. Correct it.",
        ),
        (
            {"triton_models": [{"name": "words", "profile": "fast"}]},
            "triton_models[words].profile is fast, expected throughput or latency. Correct it.",
        ),
        ({"triton_models": [{"hosts": ["npu1"]}]}, "triton_models[0].name is missing, expected text. Add it."),
        ({"triton_models": ["words"]}, f"triton_models[0] is text, {MAP}"),
        ({"triton_models": "words"}, f"triton_models is text, {LIST}"),
        ({"triton_models": {"name": "words"}}, f"triton_models is a map, {LIST}"),
        (
            {"triton_models": [{"name": "words", "artefacts": {"CA12/0.6": "https://a.example.com/model.rbln"}}]},
            f"triton_models[words].artefacts[CA12/0.6] is text, {MAP}",
        ),
        ({"triton_models": [{"name": "words", "artefacts": ["a"]}]}, f"triton_models[words].artefacts is a list, {MAP}"),
        ({"triton_server_extra_args": "--log-info=true"}, f"triton_server_extra_args is text, {LIST}"),
        ({"triton_server_extra_args": [True]}, "triton_server_extra_args[0] is true, expected text. Write it in quotes."),
        ({"triton_server_extra_args": None}, f"triton_server_extra_args is empty, {LIST}"),
        ({"npufleet_no_proxy": "localhost,example.com"}, f"npufleet_no_proxy is text, {LIST}"),
        ({"docker_engine_registry_mirrors": "https://mirror.example.com"}, f"docker_engine_registry_mirrors is text, {LIST}"),
        ({"inference_check_checks_dir": "/srv/fleet/checks"}, f"inference_check_checks_dir is text, {LIST}"),
        ({"triton_server_volumes": "/srv:/srv"}, f"triton_server_volumes is text, {LIST}"),
        ({"triton_server_model_repositories": "/srv/models"}, f"triton_server_model_repositories is text, {LIST}"),
        ({"docker_engine_packages": "docker.io"}, f"docker_engine_packages is text, {LIST}"),
        ({"triton_server_ulimits": 1}, f"triton_server_ulimits is a number, {LIST}"),
        ({"triton_server_environment": "A=1"}, f"triton_server_environment is text, {MAP}"),
        (
            {"triton_server_environment": {"DEBUG": True}},
            "triton_server_environment[DEBUG] is true, expected text. Write it in quotes.",
        ),
        (
            {"docker_engine_unit_limits": {"docker.service": "LimitNOFILE=1"}},
            f"docker_engine_unit_limits[docker.service] is text, {MAP}",
        ),
        ({"triton_server_watchdog": "soon"}, "triton_server_watchdog is soon, expected true or false. Correct it."),
        ({"npufleet_http_port": True}, "npufleet_http_port is true, expected a whole number. Correct it."),
        ({"npufleet_http_port": 8000.5}, "npufleet_http_port is 8000.5, expected a whole number. Correct it."),
        ({"npufleet_http_port": ""}, 'npufleet_http_port is "", expected a whole number. Correct it.'),
        ({"npufleet_root": ["/srv"]}, "npufleet_root is a list, expected a path. Write it in quotes."),
        (
            {"triton_server_restart_policy": "sometimes"},
            "triton_server_restart_policy is sometimes, expected no or on-failure or always or unless-stopped. Correct it.",
        ),
        (
            {"rbln_release": 26.1},
            "rbln_release is 26.1, expected text. Write it in quotes, as YAML makes 26.10 the number 26.1.",
        ),
        (
            {"inference_check_http_tls": {"crt": "/c.pem"}},
            "inference_check_http_tls.crt is an unknown key, expected one of ca, cert, key. Did you mean cert?",
        ),
        (
            {"npufleet_extra_releases": {"site": {**ROW, "vulnerabilities": {"as_of": date(2026, 8, 18), "bulletins": {}}}}},
            "npufleet_extra_releases[site].vulnerabilities.as_of is 2026-08-18, expected text. Write it in quotes.",
        ),
        (
            {"npufleet_protected": date(2026, 8, 18)},
            "npufleet_protected is 2026-08-18, expected text. Write it in quotes.",
        ),
        (
            {"npufleet_extra_releases": {"site": {**ROW, "cards": "RBLN-CA12"}}},
            f"npufleet_extra_releases[site].cards is text, {LIST}",
        ),
    ],
)
def test_a_value_of_another_type_is_refused(given: dict[str, Any], reason: str) -> None:
    assert refused(**given)[0] == reason


def test_every_reason_of_every_variable_comes_at_once() -> None:
    entry = {"name": "words", "hosts": "npu1", "npus": [0, "x"], "artifacts": {}}
    reasons = refused(
        triton_models=[entry, {"instances": []}], npufleet_no_proxy="a", npufleet_grpc_port="many", npufleet_card=None
    )
    assert [reason.split(" is ")[0] for reason in reasons] == [
        "npufleet_card",
        "npufleet_grpc_port",
        "npufleet_no_proxy",
        "triton_models[words].artifacts",
        "triton_models[words].hosts",
        "triton_models[words].npus[1]",
        "triton_models[1].name",
        "triton_models[1].instances",
    ]


def test_reasons_of_the_concerns_come_beside_them() -> None:
    words, model, *_rest = refused(triton_models=[{"name": "nowhere"}], docker_engine_registry_mirrors="a")
    assert words.startswith("docker_engine_registry_mirrors is text, ")
    assert model.startswith("model nowhere: ")


def test_a_value_out_of_a_template_is_judged_when_it_is_read() -> None:
    given = {"site": "npu1", "triton_models": trust_as_template("{{ [{'name': 'words', 'hosts': site}] }}")}
    assert refused(**given)[0] == f"triton_models[words].hosts is text, {LIST}"
    assert refused(triton_server_volumes=[trust_as_template("{{ [1] }}")])[0].startswith("triton_server_volumes[0] is a list, ")


def test_a_template_that_nobody_reads_is_not_evaluated() -> None:
    lookup = trust_as_template("{{ lookup('ansible.builtin.pipe', 'false') }}")
    variables = fleet(triton_image_index_password=lookup, npufleet_npus="2")
    assert variables.type_errors == []
    assert variables["npufleet_npus"] == 2


def test_secrets_are_not_shown() -> None:
    reasons = refused(
        triton_server_extra_args="key=hunter2", npufleet_artefact_password=["hunter2"], triton_server_environment="hunter2"
    )
    assert len(reasons) >= 3
    assert "hunter2" not in json.dumps(reasons)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("npufleet_npus", "4", 4),
        ("npufleet_npus", 4.0, 4),
        ("triton_server_allow_grpc", "no", False),
        ("triton_server_allow_grpc", 1, True),
        ("triton_server_memory", 34359738368, "34359738368"),
        ("triton_server_restart_policy", False, "no"),
        ("triton_server_log_options", {"max-file": 5}, {"max-file": "5"}),
        ("triton_server_environment", {"PORT": 8080}, {"PORT": "8080"}),
        ("triton_server_extra_args", ["--repeat", 7], ["--repeat", "7"]),
        ("npufleet_rollout_serial", "25%", "25%"),
        ("inference_check_http_tls", {"ca": "/ca.pem", "key": None}, {"ca": "/ca.pem"}),
        ("triton_models", [{"name": "words", "instances": "2", "npus": None}], [{"name": "words", "instances": 2}]),
        (
            "triton_models",
            [
                {
                    "name": 5,
                    "artefacts": {"CA12/0.6": {"url": "s3://a/b", "sha256": DIGEST, "size": "7", "record": {"batches": [1]}}},
                }
            ],
            [
                {
                    "name": "5",
                    "artefacts": {"CA12/0.6": {"url": "s3://a/b", "sha256": DIGEST, "size": 7, "record": {"batches": [1]}}},
                }
            ],
        ),
    ],
)
def test_a_value_takes_its_type(name: str, given: Any, value: Any) -> None:
    found = fleet(**{name: given})[name]
    assert (found, type(found)) == (value, type(value))
    # ... also where it comes out of a template
    found = fleet(**{"given": given, name: trust_as_template("{{ given }}")})[name]
    assert found == value


def test_what_is_made_of_a_value_is_made_of_it_in_its_type() -> None:
    template = trust_as_template("{{ monitoring_scrape_indent + 1 }}")
    assert fleet(monitoring_scrape_indent="4", monitoring_up_timeout=template)["monitoring_up_timeout"] == 5


@pytest.mark.parametrize("name", ["triton_server_current_releases", "npufleet_http_port"])
def test_a_variable_that_does_not_fit_is_not_taken_for_one_that_is_not_there(name: str) -> None:
    variables = fleet(**{name: []})
    assert name in variables
    with pytest.raises(Refusal, match=name):
        variables[name]
    with pytest.raises(Refusal, match=name):
        variables.get(name)
    assert variables.untyped(name) == []


def test_defaults_fit_themselves() -> None:
    """Their templates take part where they need no plugin and nothing of a play."""
    variables, read = fleet(npufleet_cache="/cache", npufleet_lock_file="/lock", groups={"npu_hosts": ["npu1"]}), 0
    assert variables.type_errors == []
    for name in variables:
        if name not in ("npufleet_support_dir", "inference_check_results_dir"):
            assert variables[name] is not None
            read += 1
    assert read > 120


def test_every_type_of_the_specs_is_known() -> None:
    kinds = set()

    def walk(options: Any) -> None:
        for option in options.values():
            kinds.update({option["type"], option.get("elements", "raw")})
            walk(option.get("options") or {})

    walk(inventory_specs())
    assert kinds == {*("str", "path", "int", "bool", "list", "dict"), "raw"}


def test_what_the_project_itself_sets_fits() -> None:
    """Inventories, scenarios and tests, as far as they hold values and no templates."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML with Ansible's tags."""

    Loader.add_multi_constructor("!", lambda loader, _tag, node: loader.construct_scalar(node))
    seen, wrong = 0, []

    def look(value: Any, path: Path) -> None:
        nonlocal seen
        if isinstance(value, list):
            for entry in value:
                look(entry, path)
        elif isinstance(value, dict):
            mine = {name: entry for name, entry in value.items() if name in inventory_specs()}
            seen += len(mine)
            wrong.extend(f"{path}: {misfit}" for misfit in fleet(**mine).type_errors) if mine else None
            for entry in value.values():
                look(entry, path)

    for top in ("inventories", "molecule", "playbooks", "roles", "lab", "tests"):
        for path in sorted((ROOT / top).rglob("*.yml")):
            if path.parts[-2] != "meta":
                look(yaml.load(path.read_text(), Loader), path)
    assert seen > 100
    assert wrong == []
