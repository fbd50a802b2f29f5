"""Values that may be secret as digests: none can be read or guessed, what is harmless stays readable, and a difference is seen."""

from __future__ import annotations

import hashlib
import json

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import secret

KEY, OTHER = secret.new_key(), secret.new_key()
SECRET = "Xy7" + "kQ-9z"


@pytest.mark.parametrize("name", ["HF_TOKEN", "LICENSE_KEY", "CUSTOM", "RBLN_NOTE", "AWS_SECRET_ACCESS_KEY", "PATH_TO", "WEBHOOK"])
@pytest.mark.parametrize("value", [SECRET, f"http://me:{SECRET}@host", f"a {SECRET}", f"/{SECRET}", f"{SECRET}==", f"1,{SECRET}"])
def test_no_value_of_an_environment_that_may_be_secret_is_shown(name: str, value: str) -> None:
    shown = secret.seal_values({name: value}, KEY)
    assert list(shown) == [name] and SECRET not in shown[name]
    assert shown == secret.seal_values({name: value}, KEY) != secret.seal_values({name: value + "x"}, KEY)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RBLN_DEVICES", "0,1"), ("DEBUG", "true"), ("MODE", ""), ("TRITON_CLOUD_CREDENTIAL_PATH", "/etc/npufleet/x.json"),
     ("N", "200"), ("max-size", "50m"), ("LD_LIBRARY_PATH", "/usr/lib:/opt/lib"), ("count", 1048576), ("debug", True),
     ("none", None)],
)  # fmt: skip
def test_what_nobody_takes_for_a_secret_stays_readable(name: str, value: object) -> None:
    assert secret.seal_values({name: value}, KEY) == {name: value}


@pytest.mark.parametrize("value", ["1234", "true", "0", 12345678])
def test_a_secret_may_look_like_a_number(value: object) -> None:
    assert str(secret.seal_values({"PIN_PASSWORD": value}, KEY)["PIN_PASSWORD"]).startswith("digest:")


def test_digest_is_nothing_to_try_out_guesses_with() -> None:
    digest = secret.seal("1234", KEY)
    assert digest != secret.seal("1234", OTHER)
    assert digest.split(":")[1] not in hashlib.sha256(b"1234").hexdigest()
    assert len({secret.new_key() for _time in range(100)}) == 100


COMMANDS = [
    ["tritonserver", f"--http-restricted-api=model-repository,shared-memory:admin={SECRET}"],
    ["tritonserver", f"--grpc-restricted-protocol=health:key={SECRET}=="],
    ["tritonserver", "--http-restricted-api", f"model-repository:admin={SECRET}"],
    ["tritonserver", "--grpc-restricted-protocol", f"health:a={SECRET}", "--log-verbose=0"],
    ["tritonserver", f"--cache-config=redis,host=cache1,port=6379,user=a,password={SECRET}"],
    ["tritonserver", f"--cache-config=redis,password={SECRET}"],
    ["tritonserver", f"--trace-config=opentelemetry,url=http://me:{SECRET}@host"],
    ["tritonserver", f"--model-repository=s3://https://me:{SECRET}@host/bucket"],
    ["tritonserver", f"--model-repository=as://host/c?sig={SECRET}"],
    ["tritonserver", f"--some-option={SECRET}"],
    ["tritonserver", "--some-option", SECRET],
    ["tritonserver", f"--some-option={SECRET}=="],
    ["tritonserver", SECRET],
    ["bash", "-c", f"export A={SECRET}; exec tritonserver"],
    ["sh", f"--x\n={SECRET}"],
    [f"A={SECRET} x"],
]


@pytest.mark.parametrize("words", COMMANDS)
def test_no_value_of_a_command_that_may_be_secret_is_shown(words: list[str]) -> None:
    shown = secret.seal_command(words, KEY)
    assert SECRET not in json.dumps(shown) and len(shown) == len(words)
    assert (
        shown == secret.seal_command(words, KEY) != secret.seal_command([word.replace(SECRET, SECRET + "x") for word in words], KEY)
    )


def test_numbers_of_a_restricted_api_are_a_key() -> None:
    (shown,) = secret.seal_command(["--http-restricted-api=health:admin=1234"], KEY)
    assert shown.startswith("--http-restricted-api=health:admin=digest:")


def test_harmless_options_stay_readable() -> None:
    words = [
        "tritonserver", "--model-repository=/var/lib/npufleet/served", "--model-control-mode=explicit", "--load-model=*",
        "--load-model=digits", "--exit-on-error=true", "--http-port=8000", "--log-verbose=0", "--disable-auto-complete-config",
        "--response-cache-byte-size=104857600", "--backend-config=python,shm-default-byte-size=67108864",
        "--cache-config=local,size=1048576", "--metrics-config=summary_latencies=true",
        "--model-repository=s3://bucket/models", "--log-format", "default",
    ]  # fmt: skip
    assert secret.seal_command(words, KEY) == words
    shown = secret.seal_command(["sh", "-c", f'A={SECRET}; exec "$@"', "fleet", *words], KEY)
    assert shown[:2] + shown[4:] == ["sh", "-c", *words]


def test_unit_shows_limits_and_order_alone() -> None:
    text = f'# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\nEnvironment="A={SECRET}"\n{SECRET}\nExecStart=/bin/x {SECRET}'
    lines = secret.seal_unit(text, KEY).splitlines()
    assert lines[:3] == ["# Written by npufleet", "[Service]", "LimitMEMLOCK=infinity"]
    assert lines[3].startswith("Environment=digest:") and SECRET not in "".join(lines)
    assert secret.seal_unit(text, KEY) != secret.seal_unit(text + "\n", KEY)


@pytest.mark.parametrize(
    ("address", "bare"),
    [
        ("https://fleet:hunter2@index.example.com/simple/", "https://index.example.com/simple/"),
        ("http://me:a/b#c@proxy:3128", "http://proxy:3128"),
        ("http://me:a?b@c@proxy:3128/x", "http://proxy:3128/x"),
        ("http://10.0.0.1:8000/v2/models/a@b", "http://10.0.0.1:8000/v2/models/a@b"),
        ("https://host/x?a=b@c", "https://host/x?a=b@c"),
    ],
)
def test_address_without_its_login(address: str, bare: str) -> None:
    assert secret.replace_logins(address) == bare


def test_what_a_server_repeats_of_its_secrets_is_taken_out() -> None:
    raw = ["tritonserver", f"--http-restricted-api=health:k={SECRET}", "--http-port=8000"]
    said = f"error: '{raw[1]}' is no option, found {SECRET}, see --http-port=8000"
    told = secret.remove_values(said, raw, secret.seal_command(raw, KEY))
    assert SECRET not in told and told.endswith("see --http-port=8000")


def test_logins_and_signatures_of_addresses_are_found_at_any_depth() -> None:
    options = {
        "suppliers": [
            {"proxies": {"http": "http://site:pr0xy-secret@proxy.example.com:3128", "no_proxy": "localhost"}, "user": "fleet"}
        ],
        "blobs": {"0" * 64: {"url": "https://store.example.com/a.rbln?sv=1&sig=s1gnature", "size": 5}},
        "plain": ["https://example.com/simple/", "https://example.com/?a", "", None],
    }
    assert secret.address_secrets(options) == ["site:pr0xy-secret@", "sv=1&sig=s1gnature"]
