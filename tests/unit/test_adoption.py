"""Hand-made containers, as engines recorded them, become variables; nothing of them is dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.triton import options
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import arguments, translation
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.bounds import BOUNDS
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text
from helpers import fixture

CONTAINERS = fixture("hand_made_containers.json")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE = {"Config": {"Env": ["PATH=" + PATH], "Cmd": ["bash"]}}
GUIDE = ["tritonserver", "--model-repository", "/opt/tritonserver/python_backend/examples/rbln"]


def found(name: str, argv: list[str] | None = None, main: bool = True, **environment: str) -> dict[str, Any]:
    """What the module reads of a recorded container; its server is the container's command unless `argv` says otherwise."""
    inspect = CONTAINERS[name]
    return {
        "inspect": inspect,
        "image": IMAGE,
        "default_runtime": "runc",
        "process": {
            "argv": argv or inspect["Config"]["Cmd"],
            "directory": "/opt/tritonserver",
            "environment": environment,
            "main": main,
        },
    }


def translate(*values: Any, **more: Any) -> arguments.Translation:
    return translation.translate(found(*values, **more), "npu-1", "/var/lib/npufleet")


def test_the_guides_container_is_the_roles_own_but_for_the_mode() -> None:
    variables, left_out, vault = translate("guide", GUIDE, False, PATH="/opt/sdk:" + PATH, RBLN_DEVICES="0", PWD="/", SHLVL="1")
    assert variables == {
        "npufleet_device_access": "privileged",
        "triton_server_shm_size": "1g",
        "triton_server_ulimits": ["memlock:-1:-1", "stack:67108864:67108864"],
        "triton_server_environment": {"RBLN_DEVICES": "0"},
        "triton_server_model_control_mode": "none",
        "npufleet_http_port": 8000,
        "npufleet_grpc_port": 8001,
        "npufleet_metrics_port": 8002,
        "triton_server_listen_address": "",
        **{name: variables[name] for name in ("triton_server_log_driver", "triton_server_log_options") if name in variables},
    }
    assert [line.split(":")[0] for line in left_out] == [
        "name nifty_sinoussi",
        "restart policy no",
        "volume /srv/python_backend",
        "environment PATH",
        "no key",
    ]
    assert vault == {}


def test_a_server_behind_a_shell_and_its_secrets() -> None:
    argv = ["tritonserver", *CONTAINERS["shell"]["Config"]["Cmd"][-1].split("exec tritonserver ")[1].split()]
    variables, left_out, vault = translate("shell", argv)
    assert variables["triton_server_name"] == "triton-resnet"
    assert variables["triton_server_shm_size"] == "512m"
    assert variables["triton_server_memory"] == "8g"
    assert variables["triton_server_cpuset"] == "0-1"
    assert variables["triton_server_restart_policy"] == "on-failure"
    assert variables["triton_server_stop_timeout"] == 60
    assert variables["triton_server_log_options"] == {"max-size": "10m"}
    assert variables["triton_server_log_verbose"] == 1
    assert variables["triton_server_auto_complete_config"] is False
    assert (variables["triton_server_listen_address"], variables["npufleet_http_port"]) == ("10.0.0.5", 9000)
    assert "npufleet_grpc_port" not in variables
    assert variables["triton_server_volumes"] == [
        "{{ npufleet_root }}:{{ npufleet_root }}:ro",
        "/srv/tokenizers:/tokenizers:rw",
    ]
    assert variables["triton_server_extra_args"] == ["--backend-config=python,shm-default-byte-size=1048576"]
    assert variables["triton_server_restricted_apis"] == ["model-repository"]
    assert (variables["triton_server_api_key_name"], variables["triton_server_api_key"]) == (
        "admin-key",
        "{{ vault_npu_1_triton_server_api_key }}",
    )
    assert variables["triton_server_environment"] == {
        "HF_TOKEN": "{{ vault_npu_1_hf_token }}",
        "MODEL_KEY_FILE": "/keys/a.pem",
        "PROMPT": "{{ lookup('pipe', 'id') }}",
    }
    assert vault == {
        "vault_npu_1_hf_token": "hf_abcdefgh12345678",
        "vault_npu_1_triton_server_api_key": "s3cr3t-value",
    }
    text = " ".join(left_out)
    assert "limit of 3 tries" in text
    assert "grpc was not published" in text
    assert "metrics was not published" in text
    assert "s3cr3t" not in text


def test_what_looks_like_a_template_on_a_host_is_none() -> None:
    environment = translate("shell", GUIDE).variables["triton_server_environment"]
    assert isinstance(environment["HF_TOKEN"], host_text.Template)
    assert not isinstance(environment["PROMPT"], host_text.Template)


def test_a_container_of_compose() -> None:
    variables, left_out, _vault = translate("compose")
    assert variables["triton_server_name"] == "serving_triton_1"
    assert variables["triton_server_restart_policy"] == "always"
    assert variables["triton_server_model_control_mode"] == "poll"
    assert variables["triton_server_poll_seconds"] == 30
    assert variables["triton_server_exit_on_error"] is False
    assert variables["triton_server_volumes"][1:] == ["adorec_cache:/cache:rw"]
    for word in (
        "no device of a card",
        "devices /dev/null:/dev/rbln0",
        "cap_drop none: the managed container has ALL",
        "user the image's: the managed container has the user of triton_server_user",
        "extra_hosts store:10.0.0.9",
        "network adorec",
        "Dns 10.0.0.2",
        "groups 44: the managed container has the groups that may open the cards",
        "service triton of compose project serving: remove it from /srv/serving/docker-compose.yml",
        "volume /srv:/models",
    ):
        assert any(line.startswith(word) for line in left_out), (word, left_out)


def unprivileged(**limits: Any) -> arguments.Translation:
    """The guide's container, without its privileges."""
    given = found("guide", GUIDE)
    host = {**given["inspect"]["HostConfig"], "Privileged": False, **limits}
    return translation.translate({**given, "inspect": {**given["inspect"], "HostConfig": host}}, "npu-1", "/var/lib/npufleet")


def node(path: str, inside: str = "", rights: str = "rwm") -> dict[str, str]:
    return {"PathOnHost": path, "PathInContainer": inside or path, "CgroupPermissions": rights}


CDI = {"Driver": "cdi", "Count": 0, "DeviceIDs": ["rebellions.ai/npu=0"], "Capabilities": None, "Options": None}


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"Devices": [node("/dev/rbln0"), node("/dev/rbln1"), node("/dev/rsd2", "/dev/rsd0", "rw")]}, []),
        ({"Devices": [node("/dev/rbln4", "/dev/rbln0")]}, ["no device of a card", "devices /dev/rbln4:/dev/rbln0:rwm"]),
        (
            {"DeviceRequests": [{**CDI, "DeviceIDs": ["example.com/npu=0"]}]},
            ["no device of a card", "device_requests cdi example.com"],
        ),
    ],
)
def test_a_container_without_privileges_becomes_one_with_the_cards_alone(limits: dict[str, Any], told: list[str]) -> None:
    variables, left_out, _vault = unprivileged(**limits)
    assert variables["npufleet_device_access"] == "devices"
    assert "triton_server_tmpfs" not in variables
    words = [line for line in left_out if line.startswith(("no device", "device"))]
    assert len(words) == len(told) and all(line.startswith(start) for line, start in zip(words, told, strict=True)), words
    assert "read_only none: the managed container has True" in left_out


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["rebellions.ai/npu=0"], []),
        (["rebellions.ai/npu=0", "rebellions.ai/npu=1"], []),
        (
            ["rebellions.ai/npu=all"],
            ["device_requests cdi rebellions.ai/npu=all: the managed container has each NPU by its number"],
        ),
    ],
)
def test_a_container_whose_engine_finds_its_cards_goes_on_so(names: list[str], told: list[str]) -> None:
    variables, left_out, _vault = unprivileged(DeviceRequests=[{**CDI, "DeviceIDs": names}])
    assert variables["npufleet_device_access"] == "cdi"
    assert [line for line in left_out if line.startswith(("no device", "device"))] == told


def test_what_a_container_of_the_least_has_is_not_told() -> None:
    variables, left_out, _vault = unprivileged(
        Devices=[node("/dev/rbln0"), node("/dev/rsd0")],
        CapAdd=["CAP_IPC_LOCK"],
        CapDrop=["ALL"],
        SecurityOpt=["no-new-privileges:true"],
        ReadonlyRootfs=True,
        Tmpfs={"/tmp": "size=64m"},
    )
    assert variables["triton_server_tmpfs"] == ["/tmp:size=64m"]
    assert not [line for line in left_out if line.startswith(("cap", "security", "read_only", "tmpfs", "devices", "groups"))]


def test_a_server_on_the_hosts_network() -> None:
    variables, left_out, _vault = translate("host_network")
    assert variables["npufleet_http_port"] == 9000
    assert variables["npufleet_grpc_port"] == 9001
    assert "npufleet_metrics_port" not in variables
    assert variables["triton_server_allow_metrics"] is False
    assert variables["triton_server_listen_address"] == "10.0.0.5"
    assert variables["triton_server_auto_complete_config"] is False
    assert variables["triton_server_model_control_mode"] == "explicit"
    assert "triton_server_extra_args" not in variables
    assert any(line.startswith("network host: ") for line in left_out)
    assert any(line.startswith("ipc host: ") for line in left_out)
    assert any(line.startswith("listen addresses 10.0.0.5, 0.0.0.0") for line in left_out)


@pytest.mark.parametrize(
    ("given", "listens", "asked"),
    [
        (["--http-address=ipv6:2001:db8::5"], "2001:db8::5", "2001:db8::5"),
        (["--http-address", "ipv6:::"], "::", "::1"),
        ([], "0.0.0.0", "127.0.0.1"),
    ],
)
def test_a_server_on_the_hosts_network_with_ipv6(given: list[str], listens: str, asked: str) -> None:
    argv = ["tritonserver", "--model-repository=/models", *given]
    variables, _left_out, _vault = translate("host_network", argv)
    assert variables["triton_server_listen_address"] == listens
    assert options.endpoint({"HostConfig": {"NetworkMode": "host"}}, argv) == (asked, 8000)


def test_leftovers_of_another_kind_of_card() -> None:
    _variables, left_out, _vault = translate("gpus")
    for word in (
        "device_requests any gpu all: the managed container has none",
        "user 1000: the managed container has the user of triton_server_user",
        "working_dir /workspace",
        "tmpfs /run: the managed container has the paths of triton_server_tmpfs",
        "port 6006/tcp",
        "--allow-gpu-metrics",
        "--log-file",
    ):
        assert any(line.startswith(word) for line in left_out), (word, left_out)


@pytest.mark.parametrize("name", sorted(CONTAINERS))
def test_no_secret_is_written_in_clear(name: str) -> None:
    variables, left_out, _vault = translate(name, GUIDE)
    assert "hf_abc" not in str(variables) + str(left_out)


@pytest.mark.parametrize(
    ("arguments", "pairs", "strange"),
    [
        (["--model-repository", "/a", "--log-verbose=1"], [("model-repository", "/a"), ("log-verbose", "1")], []),
        (
            ["--disable-auto-complete-config", "--exit-on-error", "false"],
            [("disable-auto-complete-config", ""), ("exit-on-error", "false")],
            [],
        ),
        (["--backend-config=python,a=b"], [("backend-config", "python,a=b")], []),
        (["serve", "--log-verbose"], [("log-verbose", "")], ["serve"]),
    ],
)
def test_options(arguments: list[str], pairs: list[tuple[str, str]], strange: list[str]) -> None:
    assert options.options(arguments) == (pairs, strange)


def test_repositories_are_where_the_server_stands() -> None:
    argv = [
        "tritonserver",
        "--model-repository=examples/rbln",
        "--model-store",
        "/models/",
        "--model-repository=s3://bucket/models",
    ]
    assert options.repositories(argv, "/opt/backend") == ["/opt/backend/examples/rbln", "/models", "s3://bucket/models"]


@pytest.mark.parametrize(
    ("command", "idle"),
    [
        (None, True),
        (["bash"], True),
        (["/bin/bash", "-l"], True),
        (["sleep", "infinity"], True),
        (["sh", "-c", "while true; do sleep 60; done"], True),
        (["tail", "-f", "/dev/null"], True),
        (["bash", "-c", "tritonserver --model-store /m"], False),
        (["bash", "/start.sh"], False),
        (["sh", "-c", "/start.sh"], False),
        (["/start"], False),
        (["tritonserver"], False),
    ],
)
def test_commands_that_only_keep_a_container(command: list[str] | None, idle: bool) -> None:
    assert options.starts_no_server({"Cmd": command}) is idle


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "hf_x", True),
        ("AWS_SECRET_ACCESS_KEY", "abc", True),
        ("DB_PASSWORD", "x", True),
        ("API_KEY", "x", True),
        ("STORE", "https://me:pw@host/x", True),
        ("STORE", "https://host/x", False),
        ("KEYBOARD", "us", False),
        ("SSL_KEY_FILE", "/etc/key.pem", False),
        ("MAX_TOKENS", "512", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("HF_TOKEN", "", False),
        ("ALERTS", "https://hooks.slack.com/services/T0/B0/abc", True),
        ("SOURCE", "https://a.blob.core.windows.net/c?sp=r&sig=abc", True),
        ("STORE", "https://me:p/w@host/x", True),
        ("cache-config", "redis,host=a,password=abc", True),
        ("cache-config", "local,size=1048576", False),
        ("grpc-server-key", "/etc/key.pem", False),
    ],
)
def test_what_is_a_secret(name: str, value: str, secret: bool) -> None:
    assert arguments.is_secret(name, value) is secret


def test_option_with_a_secret_goes_to_the_vault() -> None:
    variables: dict[str, Any] = {}
    vault: dict[str, str] = {}
    given = [("cache-config", "redis,password=abcdef"), ("http-thread-count", "8")]
    arguments.translate_arguments(given, "npu1", arguments.Translation(variables, [], vault))
    assert variables["triton_server_extra_args"] == ["--cache-config={{ vault_npu1_cache_config }}", "--http-thread-count=8"]
    assert vault == {"vault_npu1_cache_config": "redis,password=abcdef"}


@pytest.mark.parametrize(
    ("count", "entry", "said"),
    [
        (1, {}, "1 instances are not a multiple of 2 NPUs, so the managed model has 2"),
        (2, {}, ""),
        (4, {"instances": 2}, ""),
        (3, {}, "3 instances"),
    ],
)
def test_instances_of_a_model(count: int, entry: dict[str, Any], said: str) -> None:
    left_out: list[str] = []
    config = {"instance_group": [{"kind": "KIND_MODEL", "count": count}]}
    assert translation.model_entry("words", {"files": {}, "config": config}, "CA12/0.6", 2, left_out) == {"name": "words", **entry}
    assert said in " ".join(left_out)
    assert bool(left_out) is bool(said)


def test_one_compiled_file_is_an_artefact_and_several_are_not() -> None:
    item = {"1/words.rbln": {"sha256": "a"}, "1/model.py": {"sha256": "b"}}
    entry = translation.model_entry("words", {"files": item, "config": None}, "CA12/0.6", 2, [])
    assert entry["artefacts"] == {"CA12/0.6": {"sha256": "a", "path": "1/words.rbln"}}
    assert "artefacts" not in translation.model_entry(
        "words", {"files": {**item, "1/b.rbln": {"sha256": "c"}}, "config": None}, "k", 2, []
    )


@pytest.mark.parametrize("path", ["1/a.rbln", "0/deep/a.rbln", "a.rbln", "weights/a.rbln", "01/a.rbln", f"{10**18}/a.rbln"])
def test_a_compiled_file_that_artefacts_cannot_name_stays_with_its_model(path: str) -> None:
    entry = translation.model_entry("words", {"files": {path: {"sha256": "a"}}, "config": None}, "CA12/0.6", 2, [])
    assert ("artefacts" in entry) is BOUNDS["triton_models[].artefacts[*].path"].fits(path)


def test_where_the_host_reaches_the_server() -> None:
    assert options.endpoint(CONTAINERS["guide"], GUIDE) == ("172.17.0.2", 8000)
    assert options.endpoint(CONTAINERS["guide"], [*GUIDE, "--http-port=9000"]) == ("172.17.0.2", 9000)
    assert options.endpoint(CONTAINERS["host_network"], CONTAINERS["host_network"]["Config"]["Cmd"]) == ("10.0.0.5", 9000)


def test_secrets_are_masked_wherever_they_stand() -> None:
    value = {"a": ["x s3cr3t y", 1], "b": {"c": "s3cr3t"}}
    assert translation.masked(value, ["s3cr3t"]) == {"a": ["x (secret) y", 1], "b": {"c": "(secret)"}}


@pytest.mark.parametrize("name", ["x-restricted{{ lookup('pipe', 'id') }}", "x-restricted\n", "X", "", "{{ 7 }}", "#jinja2: x"])
def test_what_is_no_option_becomes_no_part_of_a_template(name: str) -> None:
    variables, left_out, vault = translate("shell", [*GUIDE, f"--{name}=value"])
    assert "triton_server_extra_args" not in variables
    assert any(line.startswith(f"argument --{name}=value: ") for line in left_out)
    assert sorted(vault) == ["vault_npu_1_hf_token"]


def test_a_name_that_is_none_is_no_variable_of_an_environment() -> None:
    item = found("shell")
    item["process"]["environment"] = {"A{{ 7 }}": "1", "B\nC": "1", "A.B-C_1": "1"}
    item["process"]["main"] = False
    variables, left_out, _vault = translation.translate(item, "npu-1", "/var/lib/npufleet")
    assert {"A.B-C_1"} == {name for name in variables["triton_server_environment"] if name[0] in "AB"}
    assert len([line for line in left_out if "not a valid name of an environment variable" in line]) == 2


def test_two_secrets_have_two_variables() -> None:
    vault: dict[str, str] = {}
    names = [str(arguments.to_vault("h", *entry, vault)) for entry in (("A_KEY", "x"), ("A.KEY", "y"), ("A_KEY", "x"))]
    assert len(set(names)) == 2 and sorted(vault.values()) == ["x", "y"]
    assert all(name.isascii() and name.isidentifier() for name in vault)


def test_several_keys_become_the_one_that_opened_the_models_and_the_others_are_told() -> None:
    argv = [
        "tritonserver",
        "--model-repository=/models",
        "--http-restricted-api=statistics,health,trace:Other=first-secret",
        "--http-restricted-api=model-repository:Admin-Key=second=secret",
        "--grpc-restricted-protocol",
        "model-repository,inference:Admin-Key=second=secret",
    ]
    variables, left_out, vault = translate("shell", argv)
    assert variables["triton_server_restricted_apis"] == ["health", "inference", "model-repository", "statistics", "trace"]
    assert (variables["triton_server_api_key_name"], vault["vault_npu_1_triton_server_api_key"]) == ("admin-key", "second=secret")
    assert "triton_server_extra_args" not in variables
    assert "another key in Other: the managed server has one key, in the header Admin-Key" in left_out
    assert "secret" not in " ".join(left_out)
    assert options.key_headers(argv) == {"Other": "first-secret", "Admin-Key": "second=secret"}
