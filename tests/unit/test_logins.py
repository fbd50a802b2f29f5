"""A login in an address is found by its form in every variable, refused with the variable to use instead, and never shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils import plan, secret
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings, logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from helpers import ROW, fleet

WORD = "S3cret-Word"
LOGIN = f"https://fleet:{WORD}@files.example.com/x.deb"
FORMS = [
    LOGIN,
    f"HTTPS://fleet:{WORD}@files.example.com/x.deb",
    f"https://{WORD}@files.example.com/x.deb",
    f"https://fleet:{WORD}@files.example.com:port/x",
    f"https://fleet:{WORD}@files.example.com:99999/x",
    f"https://fleet:{WORD}@[::1]:8443/x",
    f"https://fleet:{WORD}/more@files.example.com/x",
    f"https://fleet:a?{WORD}@files.example.com/x",
    f"https://fleet:{WORD}\"quoted'@files.example.com/x",
    f"https://fleet:{WORD} spaced@files.example.com/x",
    f"https://fleet:{WORD}@with@files.example.com/x",
    f"https://:{WORD}@files.example.com/x",
    f"https:/fleet:{WORD}@files.example.com/x",
    f"https:\\\\fleet:{WORD}@files.example.com\\x",
    f"https://fleet%3A{WORD}%40files.example.com/x",
    f"https%3A%2F%2Ffleet%3A{WORD}%40files.example.com%2Fx",
    f"https%253A%252F%252Ffleet%253A{WORD}%2540files.example.com%252Fx",
    f"ftp://fleet:{WORD}@files.example.com/x",
    f"git+ssh://fleet:{WORD}@files.example.com/x",
    f"fleet:{WORD}@files.example.com/x",
    f"  https://fleet:{WORD}@files.example.com/x",
]
CLEAN = [
    "https://files.example.com/x.deb",
    "https://files.example.com:8443/a@b/x.deb?sig=a@b",
    "https://files.example.com/50%25/x.deb",
    "nvcr.io/nvidia/tritonserver:26.07-py3@sha256:" + "a" * 64,
    "registry.example.com:5000/triton@sha256:" + "a" * 64,
    "ops@example.com",
    "s3://https://store.example.com:9000/bucket/models@v2",
    "rebel-compiler==0.6.2 ; python_version < '3.13'",
    "package @ https://files.example.com/p.whl",
    "/srv/a:/b@c:ro",
    "50%",
]


@pytest.mark.parametrize("text", FORMS)
def test_a_login_is_found_in_every_form(text: str) -> None:
    assert secret.has_login(text)
    assert WORD not in plan.short(text) or not text.strip().lower().startswith("http")


@pytest.mark.parametrize("text", CLEAN)
def test_what_has_no_login_is_left_alone(text: str) -> None:
    assert not secret.has_login(text)
    assert plan.short(text) == text or text.startswith("s3://")


def refused(**given: Any) -> list[str]:
    reasons = findings.findings(fleet(**given), given)
    assert WORD not in json.dumps(reasons), reasons
    assert fleet(**given).type_errors, "every action refuses it, not preflight alone"
    return reasons


VARIABLES: list[tuple[dict[str, Any], str]] = [
    ({"rbln_driver_package_url": LOGIN, "rbln_driver_package_sha256": "a" * 64}, "rbln_driver_package_user"),
    ({"triton_image_base_archive": LOGIN, "triton_image_base_archive_sha256": "a" * 64}, "npufleet_artefact_user"),
    ({"triton_image_index_url": LOGIN}, "triton_image_index_user"),
    ({"triton_image_extra_index_urls": ["https://mirror.example/simple", LOGIN]}, "triton_image_index_user"),
    ({"triton_image_pip_options": [f"--proxy=http://fleet:{WORD}@proxy:3128"]}, "npufleet_http_proxy"),
    ({"triton_image_pip_options": [f"--proxy=fleet:{WORD}@proxy:3128"]}, "npufleet_http_proxy"),
    ({"triton_image_requirements": [f"x @ {LOGIN}"]}, "Ansible Vault"),
    ({"rbln_driver_toolkit_repository": LOGIN}, "rbln_driver_toolkit_repository"),
    ({"rbln_driver_toolkit_key_url": LOGIN}, "rbln_driver_toolkit_repository"),
    ({"rbln_driver_run_arguments": [f"--from={LOGIN}"]}, "Ansible Vault"),
    ({"triton_models": [{"name": "m", "artefacts": {"CA12/0.6": {"url": LOGIN}}}]}, "npufleet_artefact_user"),
    ({"triton_models": [{"name": "m", "artefacts": {"CA12/0.6": {"record": {"a": [{"b": LOGIN}]}}}}]}, "Ansible Vault"),
    ({"triton_models": [{"name": "m", "repository": f"s3://key:{WORD}@bucket/x"}]}, "triton_server_cloud_credentials"),
    ({"triton_server_model_repositories": [f"s3://https://key:{WORD}@store/b"]}, "triton_server_cloud_credentials"),
    ({"docker_engine_registry_mirrors": [LOGIN]}, "triton_image_registry_user"),
    ({"triton_image_base": f"fleet:{WORD}@registry.example.com/x"}, "triton_image_registry_user"),
    ({"triton_image_delivery_repository": f"https://me:{WORD}@registry.example.com/triton"}, "triton_image_delivery_user"),
    ({"npufleet_extra_releases": {"x": {**ROW, "triton": {**ROW["triton"], "image": LOGIN}}}}, "triton_image_registry_user"),
    ({"model_repository_s3_endpoint": LOGIN}, "model_repository_s3_access_key"),
    ({"model_repository_gs_endpoint": LOGIN}, "model_repository_gs_credentials"),
    ({"inference_check_address": LOGIN}, "inference_check_headers"),
    ({"npufleet_address": f"{WORD}@npu1"}, "inference_check_headers"),
    ({"model_repository_rsync_options": [f"--log={LOGIN}"]}, "Ansible Vault"),
    ({"npufleet_ca_file": LOGIN}, "Ansible Vault"),
    ({"npufleet_http_port": LOGIN}, "Ansible Vault"),
    ({"npufleet_no_proxy": LOGIN}, "Ansible Vault"),
    ({"triton_server_watchdog": LOGIN}, "Ansible Vault"),
    ({"triton_server_restart_policy": LOGIN}, "Ansible Vault"),
]


@pytest.mark.parametrize(("given", "instead"), VARIABLES, ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_every_variable_with_a_login_is_refused(given: dict[str, Any], instead: str) -> None:
    name = next(iter(given))
    (reason,) = [entry for entry in refused(**given) if entry.startswith(name)]
    assert " contains a login, which command lines would show. " in reason
    assert instead in reason


@pytest.mark.parametrize("text", [*FORMS, f"{WORD}@files.example.com/x.deb"])
def test_every_form_is_refused_where_an_address_belongs(text: str) -> None:
    (reason,) = refused(rbln_driver_toolkit_key_url=text)
    assert "contains a login" in reason


def test_a_login_out_of_a_template_is_refused() -> None:
    given = {
        "triton_image_extra_index_urls": [trust_as_template("https://fleet:{{ word }}@pypi.example.com/simple/")],
        "word": WORD,
    }
    reasons = findings.findings(fleet(**given), given)
    assert [reason for reason in reasons if reason.startswith("triton_image_extra_index_urls[0] contains a login")]
    assert WORD not in json.dumps(reasons)


@pytest.mark.parametrize(
    "given",
    [
        {"npufleet_http_proxy": f"http://fleet:{WORD}@proxy:3128", "npufleet_https_proxy": f"http://fleet:{WORD}@proxy:3128"},
        {"npufleet_artefact_user": "me@example.com", "npufleet_artefact_password": f"a:{WORD}@b"},
        {"triton_image_index_user": "fleet", "triton_image_index_password": LOGIN},
        {"triton_server_environment": {"OTEL": LOGIN}},
        {"triton_server_extra_args": [f"--trace-config=opentelemetry,url={LOGIN}"]},
        {"inference_check_headers": {"x-proxy": LOGIN}},
        {"triton_server_log_options": {"fluentd-address": LOGIN}},
        {"docker_engine_daemon_options": {"proxies": {"http-proxy": f"http://fleet:{WORD}@proxy:3128"}}},
        {"triton_server_cloud_credentials": {"s3": {"": {"secret_key": f"a:{WORD}@b"}}}},
        {
            "triton_models": [
                {"name": "m", "artefacts": {"CA12/0.6": {"url": "https://files.example.com/m.rbln?X-Amz-Signature=a"}}}
            ]
        },
    ],
)
def test_variables_that_may_hold_a_login_keep_it(given: dict[str, Any]) -> None:
    assert findings.findings(fleet(**given), given) == []


def test_every_advice_is_of_a_variable_that_is_there() -> None:
    known = inventory_specs()
    assert [name for name in logins.NEXT_STEPS if name.partition("[")[0] not in known] == []
