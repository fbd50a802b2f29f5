"""No secret outlives redaction: known values in any form and place, and what looks like a secret; and the rest stays readable."""

from __future__ import annotations

import base64
import html
import json
import random
import string
import time
import urllib.parse
from collections.abc import Callable

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.redact import MARK, Redactor
from ansible_collections.npufleet.triton.plugins.module_utils.secret import looks_secret
from ansible_collections.npufleet.triton.plugins.plugin_utils.host_secrets import secret_values

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda value: json.dumps(value),
    "json in json": lambda value: json.dumps(json.dumps({"a": value})),
    "json, not ascii": lambda value: json.dumps(value, ensure_ascii=False),
    "url": lambda value: urllib.parse.quote(value, safe=""),
    "url path": urllib.parse.quote,
    "url form": urllib.parse.quote_plus,
    "url, small letters": lambda value: "".join(
        f"%{byte:02x}" if byte > 127 or not chr(byte).isalnum() else chr(byte) for byte in value.encode()
    ),
    "url login": lambda value: f"https://someone:{urllib.parse.quote(value, safe='')}@host/x",
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 of user:secret": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
    "base64 of u1:secret:x": lambda value: base64.b64encode(f"u1:{value}:x".encode()).decode(),
    "base64 of abc:secret": lambda value: base64.b64encode(f"abc:{value}".encode()).decode(),
    "base64 for urls": lambda value: base64.urlsafe_b64encode(f"u:{value}".encode()).decode(),
    "hexadecimal": lambda value: value.encode().hex(),
    "html": html.escape,
    "shell": lambda value: "'" + value.replace("'", "'\\''") + "'",
    "python": repr,
}
CONTEXTS = ["{}", "a line before\n{}\nand one after", "time=1 level=info msg={} x=2", 'dockerd: "{}", more', "<{}>", "({})", "[{}]"]


def secrets(count: int, alphabet: str) -> list[str]:
    chance = random.Random(20)
    return ["".join(chance.choices(alphabet, k=chance.randint(6, 40))).strip() or "x" * 6 for _number in range(count)]


VALUES = [secret for secret in secrets(25, string.ascii_letters + string.digits + string.punctuation + " ") if len(secret) > 5]
VALUES += [*secrets(10, string.ascii_lowercase), "pässwörd-日本語-1", 'quote"back\\slash', "tab\tnew\nline x", "a%20b+c/d=e"]


def readable(value: str) -> list[str]:
    """How a reader could get the value back."""
    return [encode(value) for name, encode in ENCODINGS.items() if not name.startswith(("base64 of", "url login", "base64 for"))]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_known_value_in_no_form_and_place_survives(encoding: str) -> None:
    for value in VALUES:
        for context in CONTEXTS:
            planted = context.format(ENCODINGS[encoding](value))
            for content in (planted, {"log": [planted], planted: 1}):
                cleaned = Redactor([value]).clean(content)
                cleaned = cleaned if isinstance(cleaned, str) else json.dumps(cleaned, ensure_ascii=False)
                left = [secret for secret in readable(value) if secret in cleaned]
                assert left == [], (value, planted, cleaned)
                assert MARK in cleaned


@pytest.mark.parametrize("lead", ["", "a", "ab", "abc"])
def test_base64_is_taken_out_as_a_whole(lead: str) -> None:
    whole = base64.b64encode(f"{lead}:hunter2hunter2:tail".encode()).decode()
    assert Redactor(["hunter2hunter2"]).clean(f"x {whole} y") == f"x {MARK} y"


def test_value_that_is_a_part_of_another() -> None:
    assert Redactor(["abcdef", "abcdef-ghijkl"]).clean("abcdef-ghijkl abcdef") == f"{MARK} {MARK}"


def test_short_values_are_not_searched_for() -> None:
    assert Redactor(["abc", ""]).clean("abc abcdef") == "abc abcdef"


SECRET = "Xy7" + "kQ-9z"
FORMS = [
    "DB_PASSWORD={}",
    "export API_KEY='{}'",
    'Environment="TOKEN={} and more"',
    "password: {}",
    'password: "{}"',
    "db_passwd = {}",
    "ansible_become_pass={}",
    "  - secret: {} # comment",
    '{{"password": "{}", "user": "a"}}',
    '{{"a": {{"apiKey": "{}"}}}}',
    'msg="login failed" token={} user=a',
    r'msg="{{\"password\":\"{}\"}}"',
    "https://user:{}@host:8480/simple/",
    "pip install --extra-index-url=https://{}@host/simple",
    "Authorization: Basic {}",
    "curl -H 'Authorization: Bearer {}' http://x",
    "set-cookie: session={}; Path=/",
    "tool --password {} --verbose",
    "tool --api-key={} --verbose",
    "--http-restricted-api=model-repository:admin={}",
    '{{"auths": {{"repo": {{"auth": "{}"}}}}}}',
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n{}\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----\\n",
    "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n{}",
    "{}\nBBBBBBBBBBBBBBBBBBBBBBBBBBB\n-----END RSA PRIVATE KEY-----\nlog",
    "GET /x?access_key={}&b=1",
    "LICENSE_KEY={}",
    "OPENAI_KEY: {}",
    'Environment="SIGNING_KEY={}"',
    "AZURE_STORAGE_KEY={}",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.windows.net",
    "tool --license-key {} --verbose",
    "https://a.blob.core.windows.net/c/m.rbln?sv=2024-01-01&sp=r&sig={}",
    r'{{"url": "https://a.blob.core.windows.net/c?sv=1\u0026sig={}"}}',
    "https://s3.example.com/b/m?X-Amz-Credential=a&X-Amz-Signature={}&x=1",
    "posting to https://hooks.slack.com/services/T0/B0/{} failed",
    "https://discord.com/api/webhooks/12345/{}",
    "https://site.webhook.office.com/webhookb2/{}/IncomingWebhook/x",
    "https://chat.example.com/hooks/{}",
    "https://api.telegram.org/bot12:{}/sendMessage",
    "alert_webhook_url: https://alerts.example.com/in/{}",
    "http://user:a/{}@proxy:3128",
    "http://user:a#{}@proxy:3128/",
    "http://user:a?{}@proxy:3128/",
    "tritonserver --grpc-restricted-protocol health:admin={} --log-verbose=0",
    '["tritonserver", "--http-restricted-api", "health:admin={}"]',
    "--cache-config=redis,host=cache1,password={}",
]


@pytest.mark.parametrize("form", FORMS)
def test_what_looks_like_a_secret_is_taken_out(form: str) -> None:
    line = form.format(SECRET)
    cleaned = Redactor([]).clean(f"before\n{line}\nafter\n" if "PRIVATE KEY" not in form else line)
    assert SECRET not in cleaned and MARK in cleaned
    assert Redactor([]).clean(cleaned) == cleaned, "cleaning twice is cleaning once"


DATA = [
    {"Env": ["PATH=/bin", "API_TOKEN=Xy7kQ-9z with spaces"]},
    {"Cmd": ["server", "--password", "Xy7kQ-9z"]},
    {"password": "Xy7kQ-9z"},
    {"password": ["Xy7kQ-9z", {"x": "Xy7kQ-9z"}]},
    {"secret": {"a": "Xy7kQ-9z"}},
    {"auths": {"repo.example": {"auth": "Xy7kQ-9z"}}},
    {"registry-mirrors": ["https://user:Xy7kQ-9z@mirror/"]},
    {"unit": "[Service]\nEnvironment=HTTPS_PROXY=http://u:Xy7kQ-9z@proxy:3128\n"},
    {"log": 'said {"api_key": "Xy7kQ-9z"}'},
    {"pin_password": 12345678},
    {"Env": ["OPENAI_KEY=Xy7kQ-9z", "X=1"]},
    {"Cmd": ["tritonserver", "--http-restricted-api", "health,metadata:admin=Xy7kQ-9z"]},
    {"HttpHeaders": {"X-Anything": "Xy7kQ-9z"}},
    {"server": {"headers": {"X-Anything": "Xy7kQ-9z"}}},
]


@pytest.mark.parametrize("data", DATA)
def test_secrets_in_data(data: dict) -> None:
    cleaned = Redactor([]).clean(data)
    assert cleaned.keys() == data.keys()
    text = json.dumps(cleaned)
    assert "Xy7kQ-9z" not in text and "12345678" not in text and MARK in text


HARMLESS = [
    "max_num_batched_tokens: 4096",
    "tokenizer: /models/llama",
    "no_log: true",
    '"password": null,',
    "I1121 15:00:00.1 1 model_lifecycle.cc:461] loading: digits:1",
    "http://10.0.0.1:8000/v2/models/stats?x=a@b",
    "pam_unix(sshd:auth): authentication failure; user=ops",
    "Token::parse failed",
    "sha256:4849cbb59891a4ada7690753cde3ddb29137f26de1009c90c0df416890863582",
    "0000:81:00.0 Processing accelerators [1200]: Device [1eff:1120]",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "primary_key: id",
    "ssh public_key=abc",
    'parameters { key: "npufleet_release" }',
    "http://10.0.0.1:8000/v2/models/a@b/versions",
    "https://example.com/docs?signal=a",
    "host_key_checking = False",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    redactor = Redactor(["hunter2hunter2"])
    redactor.learn(text)
    assert redactor.clean(text) == text
    assert redactor.count == 0


def test_secret_of_one_place_is_searched_for_in_every_place() -> None:
    contents = [{"Env": ["API_TOKEN=sk-12345abcde"]}, "E model.py:3] got 401 with sk-12345abcde", "enabled=disabled"]
    redactor = Redactor([])
    for content in contents:
        redactor.learn(content)
    assert all("12345abcde" not in str(redactor.clean(content)) for content in contents)


def test_ordinary_words_are_not_learned() -> None:
    redactor = Redactor([])
    redactor.learn("password: required\ntoken=disabled")
    assert redactor.clean("logging is required, metrics are disabled") == "logging is required, metrics are disabled"


def test_places_are_counted() -> None:
    redactor = Redactor(["hunter2hunter2"])
    redactor.clean("hunter2hunter2 and hunter2hunter2")
    redactor.clean({"password": "x", "b": "password=y"})
    assert redactor.count == 4


@pytest.mark.parametrize(
    "line",
    ["a" * 400000, "token" * 40000, "token=" * 40000, '"' * 200000, "://" * 60000, "eyJ" * 60000, "password " * 20000,
     "-----BEGIN PRIVATE KEY-----" * 10000, "AAAAAAAAAAAAAAAAA " * 20000, "authorization" * 20000, "\n" * 100000],
    ids=lambda line: line[:12].strip(),
)  # fmt: skip
def test_time_grows_with_the_length_of_a_line_and_not_faster(line: str) -> None:
    def work(text: str) -> float:
        """The processor's seconds, which do not count what else the machine does."""
        begin = time.process_time()
        Redactor(["hunter2hunter2", "another-one"]).clean(text)
        return time.process_time() - begin

    eighth = min(work(line[: len(line) // 8]) for _time in range(3))
    # Eight times as much for work that grows with the length, 64 times for work that grows with its square
    assert work(line) < 24 * eighth + 0.1


# What is known from the inventory


@pytest.mark.parametrize(
    "name",
    ["ansible_become_password", "ansible_ssh_pass", "npufleet_artefact_password", "API_KEY", "hf_token", "vault_x", "client_secret",
     "private_key", "dbPasswd", "auth", "AWS_SECRET_ACCESS_KEY", "passphrase", "LICENSE_KEY", "OPENAI_KEY", "SIGNING_KEY",
     "AZURE_STORAGE_KEY", "accountKey", "slack_webhook", "AZURE_STORAGE_CONNECTION_STRING"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["npufleet_root", "compass", "passive", "tokens", "tokenizer", "key", "author", "bypass", "npufleet_no_log", "monkey",
     "public_key", "primary_key"],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not looks_secret(name)


def test_values_of_variables() -> None:
    variables = {
        "ansible_become_password": "become-1",
        "npufleet_artefact_password": "",
        "short_password": "abc",
        "pin_password": 12345678,
        "registries": [{"user": "someone", "password": "registry-1"}],
        "triton_server_environment": {"HF_TOKEN": "hf-token-1", "MODE": "verbose"},
        "all_secrets": {"deep": ["deep-1"]},
        "triton_image_index_url": "https://me:index%2F1@host/simple",
        "triton_server_extra_args": ["--http-restricted-api=health:admin=restricted-1"],
        "ansible_ssh_private_key_file": "/home/me/.ssh/id",
        "npufleet_no_log": True,
        "use_password": True,
        "npufleet_https_proxy": "http://me:proxy/1#2@proxy.example.com:3128",
        "inference_check_headers": {"X-Anything": "header-1"},
        "triton_models": [{"artefacts": {"a": {"url": "https://a.example.com/m?sp=r&sig=signature%2B1"}}}],
        "alert_webhook_url": "https://alerts.example.com/in/webhook-1",
        "notify": "https://hooks.slack.com/services/T0/B0/slack-1",
    }
    assert secret_values(variables) == {
        "become-1", "12345678", "registry-1", "hf-token-1", "deep-1", "index/1", "restricted-1", "proxy/1#2", "header-1",
        "signature+1", "https://alerts.example.com/in/webhook-1", "services/T0/B0/slack-1",
    }  # fmt: skip


def test_a_login_in_an_address_that_is_part_of_another_is_taken_out() -> None:
    cleaned = Redactor([]).clean("GET /fetch?from=https%3A%2F%2Ffleet%3AS3cret-Word%40files.example.com%2Fx HTTP/1.1")
    assert cleaned == f"GET /fetch?from=https%3A%2F%2F{MARK}%40files.example.com%2Fx HTTP/1.1"
