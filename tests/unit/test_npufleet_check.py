"""npufleet-check against a small Triton: what it proves, over TLS and with a key too, loads, and how it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.inference import packing, questions, runner
from ansible_collections.npufleet.triton.plugins.module_utils.inference.load import judge_latency, percentile
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import Question, TooLarge, refuse_too_large
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files
from helpers import ROOT
from small_triton import SmallTriton, certificates, small_triton

COMMAND = ROOT / "bin/npufleet-check"
SECRET = "s3cret-of-the-api"


@pytest.fixture(scope="module")
def command() -> Any:
    """The command as a module."""
    loader = SourceFileLoader("npufleet_check", str(COMMAND))
    spec = importlib.util.spec_from_loader("npufleet_check", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode, list(sys.path)
    loader.exec_module(module)
    sys.dont_write_bytecode, sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    with small_triton() as small:
        yield small


class Ended(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


class Site:
    """A directory with the check file of model `double`, and the command called with it."""

    def __init__(self, command: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.command, self.place, self.capsys = command, place, capsys
        self.checks()

    def checks(self, *more: dict[str, Any], **changes: Any) -> None:
        entry = {
            "name": "row",
            "protocols": ["http", "grpc", "raw"],
            "inputs": {"IN": {"numbers": [[1, 2, 3, 4]], "dtype": "FP32"}},
            "expect": {"OUT": {"dtype": "FP32", "shape": [1, 4], "values": {"numbers": [[2, 4, 6, 8]]}}},
            **changes,
        }
        whole = [{key: value for key, value in each.items() if value is not None} for each in (entry, *more)]
        (self.place / "double.yml").write_text(yaml.safe_dump({"model": "double", "checks": whole}))

    def __call__(self, triton: SmallTriton | None, *words: str) -> Ended:
        urls = ["--url", f"127.0.0.1:{triton.http_port}", "--grpc-url", f"127.0.0.1:{triton.grpc_port}"] if triton else []
        try:
            code = self.command.main([*urls, "--checks", str(self.place), "--timeout", "60", *words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = self.capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return Ended(code, said.out, said.err)


@pytest.fixture
def site(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(command, tmp_path, capsys)


def test_every_model_that_is_ready_is_proven_over_each_protocol(site: Site, triton: SmallTriton) -> None:
    ended = site(triton)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "ok     double/http/row",
        "ok     double/grpc/row",
        "ok     double/raw/row",
        "3 of 3 checks passed",
    ]
    assert sorted(triton.asked) == ["grpc", "grpc", "http"]


def test_wrong_answers_end_with_1_and_are_in_both_reports(site: Site, triton: SmallTriton, tmp_path: Path) -> None:
    triton.answer = lambda array: np.where(array == 3, np.nan, array * 2).astype(np.float32)
    ended = site(triton, "--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml"))
    assert ended.code == 1
    assert "0 of 3 checks passed" in ended.out
    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["proven"], [check["ok"] for check in written["checks"]]) == (False, [False] * 3)
    assert written["checks"][0]["why"] == "OUT: 1 of 4 values are off, the worst is nan, expected 6 +- 0"
    (suite,) = xml.parse(tmp_path / "r.xml").getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("double", "3", "3")
    assert "the worst is nan" in str(suite[0][0].get("message"))


def test_result_on_standard_output_stands_there_alone(site: Site, triton: SmallTriton) -> None:
    ended = site(triton, "--json", "-")
    assert json.loads(ended.out)["proven"] is True
    assert "3 of 3 checks passed" in ended.err


def test_model_without_a_check_file_is_not_proven(site: Site, triton: SmallTriton) -> None:
    triton.models = ["double", "words"]
    ended = site(triton)
    assert (ended.code, "FAILED words/check file: the check file is missing, expected " in ended.out) == (1, True)
    assert "--allow-unchecked" in ended.out
    ended = site(triton, "--allow-unchecked")
    assert (ended.code, "not checked, because they have no check file: words" in ended.out) == (0, True)
    assert site(triton, "--models", "double").code == 0
    # What nobody was asked is no proof.
    assert site(triton, "--models", "words", "--allow-unchecked").code == 2


def test_nothing_that_answers_is_another_end_than_a_wrong_answer(site: Site) -> None:
    with small_triton() as gone:
        pass
    for words in ([], ["--models", "double"]):
        ended = site(gone, *words)
        assert ended.code == 3
        assert f"no Triton answers http at 127.0.0.1:{gone.http_port}" in ended.out + ended.err
    with small_triton() as half:
        half.grpc_port = gone.grpc_port
        assert site(half).code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "ftp://x"], "--url is ftp://, expected one of http, https"),
        (["--url", "http://me:pw@x"], "--url has a login, expected host:port"),
        (["--url", ""], "--url has no host, expected host:port"),
        (["--url", "x:port"], "--url has port 'port', expected a number from 1 to 65535"),
        (["--url", "x:0"], "--url has port '0', expected a number from 1 to 65535"),
        (["--url", "::1"], "--url is ::1, expected an IPv6 address in brackets, [::1]"),
        (["--url", "a b"], "--url is 'a b', expected host:port"),
        (["--url", "x?y"], "--url is 'x?y', expected host:port"),
        (["--url"], "--url: expected one argument; see --help"),
        (["--grpc-url", "https://x"], "--grpc-url is https://, expected one of grpc, grpcs"),
        (["--grpc-url", ""], "--grpc-url has no host"),
        (["--grpc-url", "x:99999"], "--grpc-url has port '99999'"),
        (["--metrics-url", "grpc://x"], "--metrics-url is grpc://, expected one of http, https"),
        (["--metrics-url", "x:y/metrics"], "--metrics-url has port 'y'"),
        (
            ["--ca", "/none", "--cert", "/none"],
            "--ca is '/none', expected a file; --cert is '/none', expected a file; --cert or --key is missing",
        ),
        (["--ca", ""], "--ca is '', expected a file"),
        (["--ca", __file__, "--url", "https://x"], f"--ca is {__file__}, expected certificates as PEM"),
        (["--cert", __file__, "--key", __file__, "--url", "https://x"], "--cert and --key are "),
        (["--key", __file__], "--cert or --key is missing, expected both"),
        (["--ca", "{ca}"], "--ca, --cert and --key are set, but no address begins with https:// or grpcs://"),
        (
            ["--cert", "{client}", "--key", "{ca_key}", "--url", "https://x"],
            "expected a certificate and its own key without a passphrase",
        ),
        (["--header", "a=b"], "--header 1: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (["--header", "a=b:c"], "--header 1: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (["--header", "=env:HOME"], "--header 1: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (["--header", "a b=env:HOME"], "--header 1: expected NAME=env:VARIABLE or NAME=file:PATH"),
        (["--header", "a=env:NO_SUCH_VARIABLE"], "--header 1: the environment variable NO_SUCH_VARIABLE is not set"),
        (["--header", "a=file:/none"], "--header 1: /none: No such file or directory"),
        (["--header", "a=file:/dev/null"], "--header 1: /dev/null is empty, expected one line of ASCII"),
        (["--header", "a=file:" + __file__], f"--header 1: {__file__} is not a valid header value"),
        (["--header", "a=env:HOME", "--header", "A=env:HOME"], "--header 2 is A again, expected each header once"),
        (["--models", "a,,b"], "--models is '', expected a name without / ? #"),
        (["--models", "a,a"], "--models is 'a,a', expected each name once"),
        (["--models", "a/b"], "--models is 'a/b', expected a name without / ? #"),
        (["--checks", "/none", "--models", "double"], "--checks is '/none', expected a directory"),
        (["--checks", __file__], "--checks is "),
        (["--golden", "/none", "--models", "double"], "--golden is '/none', expected a directory"),
        (["--timeout", "0"], "--timeout is '0', expected seconds above 0"),
        (["--timeout", "nan"], "--timeout is 'nan', expected seconds above 0"),
        (["--timeout", "1e9"], "--timeout is '1e9', expected seconds above 0 and at most 86400 (a day)"),
        (["--host-index", "-1"], "--host-index is '-1', expected a whole number of at least 0"),
        (["--host-index", "x"], "--host-index is 'x', expected a whole number of at least 0"),
        (["--json", "/none/r.json"], "--json: '/none/r.json' cannot be written: No such file or directory"),
        (["--json", "/"], "--json: '/' cannot be written: it is not a file path"),
        (["--json", ""], "--json: '' cannot be written: it is not a file path"),
        (["--junit", "/proc/r.xml"], "--junit: '/proc/r.xml' cannot be written: "),
        (["--json", "-", "--junit", "-"], "--junit is '-', the file of --json, expected another file"),
        (["--json", "/tmp/r", "--junit", "/tmp/../tmp/r"], "--junit is '/tmp/../tmp/r', the file of --json"),
        (["--allow-unchecked=yes"], "--allow-unchecked: ignored explicit argument 'yes'"),
        (["--no-latency=1"], "--no-latency: ignored explicit argument '1'"),
        (["--speed", "1"], "unrecognized arguments: --speed 1"),
        (["--head", "a=env:HOME"], "unrecognized arguments: --head a=env:HOME"),
        (["digits"], "unrecognized arguments: digits"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_is_asked(
    site: Site, triton: SmallTriton, tls: dict[str, str], words: list[str], said: str
) -> None:
    # The server's address comes first, and a word of the case may replace it.
    ended = site(triton, *(word.format(**tls) for word in words))
    assert (ended.code, ended.out, triton.headers) == (2, "", [])
    assert (ended.err.startswith("npufleet-check: "), ended.err.count("\n")) == (True, 1), ended.err
    assert said in ended.err


def test_links_and_pipes_are_written_to_and_stay(site: Site, triton: SmallTriton, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r.json")
    os.mkfifo(tmp_path / "pipe")
    # Open for both, so that neither end waits for the other
    reading = os.open(tmp_path / "pipe", os.O_RDWR)
    assert site(triton, "--json", str(tmp_path / "link"), "--junit", str(tmp_path / "pipe")).code == 0
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "r.json").read_text())["proven"]
    assert (tmp_path / "pipe").is_fifo()
    assert os.read(reading, 65536).startswith(b"<testsuites")
    os.close(reading)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["double.yml", "link", "pipe", "r.json"]


def test_malformed_check_file_is_refused_before_anything_is_asked(site: Site, triton: SmallTriton) -> None:
    site.checks(latency={"clients": 1})
    ended = site(triton)
    assert (ended.code, triton.asked) == (2, [])
    assert "double.yml: checks[0].latency is without a length, expected exactly one of seconds, requests" in ended.err


def test_server_that_does_not_say_its_models_needs_names(site: Site, triton: SmallTriton) -> None:
    triton.key = SECRET
    ended = site(triton)
    assert ended.code == 3
    assert "the server does not list its models: This API is restricted" in ended.err


# Nothing that could be judged


@pytest.mark.parametrize("named", [[], ["--models", "double"]])
def test_ports_that_are_exchanged_are_told_in_our_own_words(site: Site, triton: SmallTriton, named: list[str]) -> None:
    words = ["--url", f"127.0.0.1:{triton.grpc_port}", "--grpc-url", f"127.0.0.1:{triton.http_port}"]
    ended = site(None, *words, *named)
    assert ended.code == 3
    for protocol, kind, port in (("http", "HTTP", triton.grpc_port), ("grpc", "gRPC", triton.http_port)):
        why = f"no Triton answers {protocol} at 127.0.0.1:{port}: the port does not speak {kind}; Triton's ports are 8000"
        assert why in ended.out + ended.err


def test_late_answers_alone_are_no_wrong_ones(site: Site, triton: SmallTriton) -> None:
    triton.pause = 1.0
    ended = site(triton, "--timeout", "0.2")
    assert (ended.code, ended.out.count("no answer within 0.2 s; double gets no further request over ")) == (3, 3)
    # A check's own limit is part of what it wants.
    site.checks(timeout=0.2, protocols=["grpc"])
    assert site(triton).code == 1


def test_an_answer_that_drips_in_has_one_deadline(site: Site) -> None:
    """Each piece comes in time, and the whole does not."""

    class Drips(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_words: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            with contextlib.suppress(OSError):
                for _piece in range(100):
                    self.wfile.write(b" ")
                    time.sleep(0.1)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Drips)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.checks(protocols=["http"])
    began = time.monotonic()
    ended = site(None, "--url", f"127.0.0.1:{server.server_address[1]}", "--models", "double", "--timeout", "1")
    took = time.monotonic() - began
    server.shutdown()
    server.server_close()
    thread.join()
    assert (ended.code, "FAILED double/http/row: no answer within 1 s" in ended.out) == (3, True), ended
    assert 1 <= took < 8


def test_a_request_that_none_holds_is_refused_before_it_is_sent(
    site: Site, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "LARGEST_REQUEST", 15)
    ended = site(triton)
    assert (ended.code, triton.asked) == (1, [])
    assert ended.out.count("the inputs have 0.0 GiB, expected less than 2 GiB, the limit of HTTP and gRPC") == 3
    monkeypatch.setattr(questions, "LARGEST_REQUEST", 16)
    assert site(triton).code == 0


@pytest.mark.parametrize(
    ("dtype", "array", "size"),
    [
        ("FP32", np.zeros((2, 3), np.float32), 24),
        ("BF16", np.zeros((2, 3), np.float32), 12),
        ("BYTES", np.array([b"abc", b""], object), 11),
    ],
)
def test_size_of_a_request(dtype: str, array: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question("m", {"IN": (dtype, array)})
    monkeypatch.setattr(questions, "LARGEST_REQUEST", size)
    refuse_too_large(question)
    monkeypatch.setattr(questions, "LARGEST_REQUEST", size - 1)
    with pytest.raises(TooLarge):
        refuse_too_large(question)


# TLS and keys


def test_tls_of_a_proxy_and_of_grpc_with_certificates_of_both_sides(site: Site, tls: dict[str, str]) -> None:
    with small_triton(tls) as triton:
        urls = ["--url", f"https://127.0.0.1:{triton.http_port}", "--grpc-url", f"grpcs://127.0.0.1:{triton.grpc_port}"]
        client = ["--cert", tls["client"], "--key", tls["client_key"]]
        assert site(None, *urls, "--ca", tls["ca"], *client).code == 0
        assert sorted(triton.asked) == ["grpc", "grpc", "http"]
        # Without the authority HTTPS is nobody's, without a certificate of its own gRPC does not let it in.
        ended = site(None, *urls, "--models", "double", *client)
        assert (ended.code, "certificate verify failed" in ended.out) == (3, True)
        ended = site(None, *urls, "--ca", tls["ca"])
        assert (ended.code, "ok     double/http/row" in ended.out, "FAILED double/grpc/row" in ended.out) == (1, True, True)
        # Plain requests to a port with TLS are no answer either.
        assert site(triton, "--models", "double").code == 3


def test_pem_in_the_document_becomes_files_for_the_run_alone(tls: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """As the release image's container gets it: contents, no paths."""
    pem = {name: Path(tls[given]).read_text() for name, given in (("ca", "ca"), ("cert", "client"), ("key", "client_key"))}
    check = {
        "name": "row",
        "protocols": ["http", "grpc", "raw"],
        "inputs": {"IN": packing.pack(np.ones((1, 4), np.float32))},
        "expect": {"OUT": {"shape": [1, 4]}},
    }
    with small_triton(tls) as triton:
        server = {"address": "127.0.0.1", "http_port": triton.http_port, "grpc_port": triton.grpc_port}
        server.update(http_tls={"ca": pem["ca"]}, grpc_tls=pem)
        document = {
            "host": "a",
            "host_index": 0,
            "server": server,
            "timeout": 5,
            "checks": [{"model": "double", "checks": [check]}],
        }
        runner.main(document)
    said = capsys.readouterr().out
    assert [(result["ok"], result["why"]) for result in json.loads(said)["checks"]] == [(True, "")] * 3
    assert "PRIVATE KEY" not in said
    assert server["grpc_tls"] is pem


def test_key_of_a_restricted_api_goes_with_every_request_and_into_no_output(
    site: Site, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton.key = SECRET
    monkeypatch.setenv("KEY_OF_API", SECRET)
    ended = site(triton, "--header", "triton-key=env:KEY_OF_API", "--json", str(tmp_path / "r.json"))
    assert ended.code == 0, ended
    assert SECRET not in ended.out + ended.err + (tmp_path / "r.json").read_text()
    (tmp_path / "key").write_text(SECRET + "\n")
    assert site(triton, "--header", f"triton-key=file:{tmp_path}/key").code == 0
    (tmp_path / "key").write_text("another")
    ended = site(triton, "--header", f"triton-key=file:{tmp_path}/key", "--models", "double")
    assert (ended.code, "restricted" in ended.out, "another" in ended.out) == (1, True, False)


# Loads


def load(**limits: Any) -> dict[str, Any]:
    return {"protocols": ["grpc"], "expect": None, "latency": {"clients": 2, "requests": 100, **limits}}


def test_load_within_its_limits_is_measured(site: Site, triton: SmallTriton, tmp_path: Path) -> None:
    triton.pause = 0.002
    site.checks(**load(p50_ms=600_000, p95_ms=600_000, p99_ms=600_000, infer_per_s=0.001))
    ended = site(triton, "--json", str(tmp_path / "r.json"))
    assert ended.code == 0, ended.out
    (result,) = json.loads((tmp_path / "r.json").read_text())["checks"]
    found = result["latency"]
    assert (found["clients"], found["requests"], result["ms"]) == (2, 100, found["p50_ms"])
    assert 2 <= found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert found["infer_per_s"] == pytest.approx(100 / found["seconds"], rel=0.1)
    # One answer of each client comes before it, unmeasured.
    assert len(triton.asked) == 102
    assert re.search(r"ok +double/grpc/row \(\S+ ms\) 100 requests, p99 \S+ ms, \S+ infer/s", ended.out)


@pytest.mark.parametrize("protocol", ["http", "grpc", "raw"])
def test_load_that_misses_its_limits_says_each(site: Site, triton: SmallTriton, protocol: str) -> None:
    triton.pause = 0.004
    site.checks(**{**load(p50_ms=1.5, p99_ms=600_000, infer_per_s=100000), "protocols": [protocol]})
    ended = site(triton)
    assert ended.code == 1
    why = r"p50 is \S+ ms, expected at most 1.5 ms, 2 clients, 100 requests; infer/s is \S+, expected at least 100000, 2 clients"
    assert re.search(why, ended.out)
    assert "p99 found" not in ended.out


def test_load_of_seconds_ends_and_a_batch_counts_as_its_rows(site: Site, triton: SmallTriton, tmp_path: Path) -> None:
    triton.pause = 0.01
    limits = {"clients": 1, "seconds": 0.3, "p99_ms": 600_000}
    rows = [[1, 2, 3, 4]] * 5
    site.checks(
        **{**load(), "latency": limits, "rows": {"first": 0, "count": 5, "batch": True}},
        inputs={"IN": {"numbers": rows, "dtype": "FP32"}},
    )
    assert site(triton, "--json", str(tmp_path / "r.json")).code == 0
    (result,) = json.loads((tmp_path / "r.json").read_text())["checks"]
    found = result["latency"]
    assert found["infer_per_s"] == pytest.approx(5 * found["requests"] / found["seconds"], rel=0.1)


def test_wrong_answer_ends_a_load_before_it_begins_and_an_error_while_it_runs(site: Site, triton: SmallTriton) -> None:
    wanted = {"OUT": {"values": {"numbers": [[2, 4, 6, 8]]}}}
    site.checks(**{**load(p99_ms=600_000), "expect": wanted})
    triton.answer = lambda array: array
    ended = site(triton)
    assert (ended.code, "OUT: 4 of 4 values are off" in ended.out, len(triton.asked) <= 2) == (1, True, True)
    triton.asked.clear()

    def fails_later(array: Any) -> Any:
        if len(triton.asked) > 20:
            raise ValueError("the NPU is gone")
        return array * 2

    triton.answer = fails_later
    ended = site(triton)
    assert ended.code == 1
    assert re.search(r"FAILED double/grpc/row .*: request \d+ of the load failed: the NPU is gone$", ended.out, re.MULTILINE)
    assert len(triton.asked) < 100, "the load went on to its end"


def test_loads_can_be_left_out(site: Site, triton: SmallTriton) -> None:
    site.checks({**load(p50_ms=0.001), "name": "fast", "inputs": {"IN": {"numbers": [[1]], "dtype": "FP32"}}})
    ended = site(triton, "--no-latency")
    assert (ended.code, len(triton.asked), "fast" in ended.out) == (0, 3, False)
    # What is left then is nothing: no proof.
    triton.asked.clear()
    site.checks(**load(p50_ms=1000))
    ended = site(triton, "--no-latency")
    assert (ended.code, triton.asked, "FAILED double/checks: no check ran" in ended.out) == (1, [], True)


def test_server_that_hangs_up_has_not_refused(site: Site, triton: SmallTriton) -> None:
    def hang_up(_array: Any) -> Any:
        raise ConnectionAbortedError

    triton.answer = hang_up
    site.checks(protocols=["http"], expect=None, error={"status": "INVALID_ARGUMENT"})
    ended = site(triton)
    assert (ended.code, set(triton.asked)) == (1, {"http"})
    assert re.search(r"FAILED double/http/row .*: no answer: .*, expected an error: status 'INVALID_ARGUMENT'", ended.out), (
        ended.out
    )


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [(range(1, 101), 99, 99), (range(1, 101), 50, 50), (range(1, 201), 99, 198), ([3], 99, 3), ([1, 9], 50, 1), ([1, 9], 95, 9)],
)
def test_percentiles_are_values_that_were_measured(values: Any, share: int, found: int) -> None:
    assert percentile(list(values), share) == found


def test_missed_limits_name_what_was_asked_and_whether_the_client_was_the_limit() -> None:
    figures = {
        "clients": 4,
        "requests": 812,
        "p50_ms": 5.0,
        "p95_ms": 9.0,
        "p99_ms": 12.1,
        "infer_per_s": 270.0,
        "client_cores": 0.4,
    }
    assert judge_latency(figures, {"p99_ms": 10, "p50_ms": 5, "infer_per_s": 270}) == [
        "p99 is 12.1 ms, expected at most 10 ms, 4 clients, 812 requests"
    ]
    busy = {**figures, "clients": 1, "client_cores": 0.97}
    assert judge_latency(busy, {"infer_per_s": 300}) == [
        "infer/s is 270, expected at least 300, 1 client, 812 requests",
        "the client itself used 0.97 CPU cores, so it was the bottleneck: use fewer clients",
    ]
    assert judge_latency(busy, {"p99_ms": 20}) == []


@pytest.mark.parametrize(
    ("latency", "wrong"),
    [
        ({"seconds": 1}, "latency is without a limit, expected at least one of p50_ms, p95_ms, p99_ms, infer_per_s"),
        (
            {"seconds": 1, "requests": 200, "p99_ms": 1},
            "latency is set with seconds and requests, expected exactly one of seconds, requests",
        ),
        ({"requests": 99, "p99_ms": 1}, "requests is 99, expected at least 100 for p99_ms"),
        ({"requests": 19, "p95_ms": 1}, "requests is 19, expected at least 20 for p95_ms"),
        ({"seconds": 601, "p50_ms": 1}, "seconds is 601, expected at most 600"),
        ({"seconds": 1, "p50_ms": 0}, "p50_ms is 0, expected a number above 0"),
        ({"seconds": 1, "p50_ms": 1, "clients": 65}, "clients is 65, expected at most 64"),
        ({"seconds": 1, "p90_ms": 1}, "p90_ms is an unknown key, expected one of clients, seconds, requests, p50_ms"),
    ],
)
def test_malformed_limits_are_refused(site: Site, latency: dict[str, Any], wrong: str) -> None:
    site.checks(**{**load(), "latency": latency})
    with pytest.raises(check_files.Refusal) as refused:
        check_files.read_checks(["double"], [str(site.place)], [], 0)
    assert any(wrong in reason for reason in refused.value.reasons), refused.value.reasons


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"protocols": ["stream"]}, "latency is set for protocol stream"),
        ({"ms": 5}, "latency is set together with ms, expected no ms together with it"),
        ({"instances": True}, "latency is set together with instances, expected no instances together with it"),
    ],
)
def test_what_does_not_go_with_a_load(site: Site, changes: dict[str, Any], wrong: str) -> None:
    site.checks(**{**load(p99_ms=1), "expect": {"OUT": {"dtype": "FP32"}}, **changes})
    with pytest.raises(check_files.Refusal) as refused:
        check_files.read_checks(["double"], [str(site.place)], [], 0)
    assert any(wrong in reason for reason in refused.value.reasons), refused.value.reasons


# Any machine: what is not installed there cannot be imported.
ELSEWHERE = """
import runpy, sys
sys.modules.update(dict.fromkeys(("ansible", "google.protobuf.text_format", "requests", "PIL")))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_runs_as_a_program_without_ansible(triton: SmallTriton, tmp_path: Path) -> None:
    (tmp_path / "double.yml").write_text(
        "model: double\nchecks: [{name: row, protocols: [http], inputs: {IN: {numbers: [[1]], dtype: FP32}}, "
        "expect: {OUT: {shape: [1, 1]}}}]\n"
    )
    words = ["--url", f"127.0.0.1:{triton.http_port}", "--checks", str(tmp_path)]
    command = [sys.executable, "-I", "-c", ELSEWHERE, str(COMMAND), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 of 1 checks passed"), done.stderr


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_interrupt_is_one_line(triton: SmallTriton, site: Site, protocol: str) -> None:
    triton.pause = 5.0
    site.checks(protocols=[protocol])
    words = ["--url", f"127.0.0.1:{triton.http_port}", "--grpc-url", f"127.0.0.1:{triton.grpc_port}", "--checks", str(site.place)]
    with subprocess.Popen(
        # Where the tests run in the background a shell has told them to pass interrupts over. Not by preexec_fn: of a process with
        # a server of gRPC a fork that runs Python may abort.
        ["env", "--default-signal=INT", sys.executable, str(COMMAND), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as asked:
        until = time.monotonic() + 60
        while not triton.asked and time.monotonic() < until:
            time.sleep(0.02)
        asked.send_signal(signal.SIGINT)
        out, err = asked.communicate(timeout=60)
    assert (asked.returncode, out, err) == (130, "", "npufleet-check: interrupted\n")


def test_nobody_reads_what_it_prints(triton: SmallTriton, site: Site) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    site.checks(protocols=["http"])
    words = ["--url", f"127.0.0.1:{triton.http_port}", "--checks", str(site.place)]
    done = subprocess.run([sys.executable, str(COMMAND), *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
