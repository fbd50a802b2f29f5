"""Where large files come from, with real servers, a real rclone and real tar files: whole, in parts, and not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import stores
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download as subject
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import object_stores
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import source as limits
from hostile_server import hostile

CONTENT = bytes(range(256)) * 20_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SECRETS = {"s3_access_key": stores.ACCESS, "s3_secret_key": stores.SECRET}
needs_rclone = pytest.mark.skipif(not shutil.which("rclone"), reason="no rclone on this machine: `make rclone`")


def bring(origin: dict[str, Any], target: Path, way: dict[str, Any] | None = None, secrets: dict[str, str] | None = None) -> bytes:
    subject.fetch(origin, DIGEST, str(target), way or {}, secrets or {})
    return target.read_bytes()


# The web


def test_size_and_content(tmp_path: Path) -> None:
    with stores.serving({"a.rbln": CONTENT}) as store:
        origin = {"url": store.url + "/a.rbln"}
        assert subject.size(origin, DIGEST, {}, {}) == len(CONTENT)
        assert bring(origin, tmp_path / DIGEST) == CONTENT


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / DIGEST).write_bytes(CONTENT[:70_001])
    with stores.serving({"a.rbln": CONTENT}) as store:
        assert bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST) == CONTENT
        assert store.ranges_asked == ["bytes=70001-"]
        assert bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST) == CONTENT
        assert store.ranges_asked[1:] == [f"bytes={len(CONTENT)}-"]


def test_a_connection_that_breaks_off_is_opened_again_where_it_was(tmp_path: Path) -> None:
    with stores.serving({"a.rbln": CONTENT}) as store:
        store.cuts = [1_000_000, 500_000]
        assert bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST) == CONTENT
        assert store.ranges_asked == ["", "bytes=1000000-", "bytes=1500000-"]


def test_one_that_gives_nothing_more_is_given_up_and_what_came_stays(tmp_path: Path) -> None:
    with stores.serving({"a.rbln": CONTENT}) as store:
        store.cuts = [1_000_000, 0, 0, 0, 0, 0]
        with pytest.raises(subject.SourceError, match=r"broke off after 1000000 bytes .* run again to resume the download"):
            bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST)
    assert (tmp_path / DIGEST).read_bytes() == CONTENT[:1_000_000]


def test_a_server_without_range_begins_anew(tmp_path: Path) -> None:
    (tmp_path / DIGEST).write_bytes(b"x" * 5000)
    with stores.serving({"a.rbln": CONTENT}) as store:
        store.ranges = False
        assert bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST) == CONTENT


def test_more_than_there_is_begins_anew(tmp_path: Path) -> None:
    (tmp_path / DIGEST).write_bytes(CONTENT + b"more")
    with stores.serving({"a.rbln": CONTENT}) as store:
        assert bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST) == CONTENT


@pytest.mark.parametrize(
    ("path", "login", "words"),
    [
        ("/a.rbln", "", "status 401: it requires a login, and none is set"),
        ("/a.rbln", "other", "status 401: it refuses the login of other"),
        ("/gone", "fleet", "status 404, expected a file"),
    ],
)
def test_refusals_are_told_at_once_for_size_and_content(tmp_path: Path, path: str, login: str, words: str) -> None:
    with stores.serving({"a.rbln": CONTENT}) as store:
        store.login = "fleet:secret"
        for call in (subject.size, lambda *asked: subject.fetch(asked[0], asked[1], str(tmp_path / "x"), asked[2], asked[3])):
            store.asked.clear()
            with pytest.raises(subject.SourceError, match=words):
                call({"url": store.url + path}, DIGEST, {"user": login}, {"password": "secret"})
            assert len(store.asked) == 1


def test_nobody_there(tmp_path: Path) -> None:
    with stores.serving({}) as store:
        url = store.url + "/a.rbln"
    with pytest.raises(subject.SourceError, match=r"broke off after 0 bytes .*refused"):
        bring({"url": url}, tmp_path / DIGEST)


def test_a_link_laid_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    for make in (os.symlink, os.link):
        other = tmp_path / "other"
        other.write_bytes(b"not ours")
        make(other, tmp_path / DIGEST)
        with stores.serving({"a.rbln": CONTENT}) as store:
            assert bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST) == CONTENT
        assert other.read_bytes() == b"not ours"
        (tmp_path / DIGEST).unlink()


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / DIGEST).write_bytes(CONTENT[:100])
    monkeypatch.setattr(subject, "copy", full)
    with stores.serving({"a.rbln": CONTENT}) as store:
        words = rf"{tmp_path} is full \(No space left on device\) after 100 bytes, which were removed: make room there"
        with pytest.raises(subject.SourceError, match=words):
            bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST)
    assert not (tmp_path / DIGEST).exists()


def test_signature_and_login_of_an_address_are_not_shown() -> None:
    assert subject.display_name({"url": "https://u:p@a.example.com/x?sig=secret"}) == "https://a.example.com/x"


# A source that lies


@contextmanager
def telling(*answers: Any) -> Iterator[tuple[str, list[str]]]:
    """(address, ranges asked for) of a server that gives these answers, the last one again and again."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.headers.get("Range", ""))
            answer = answers[min(len(asked), len(answers)) - 1]
            with suppress(OSError):
                for piece in answer(asked[-1]) if callable(answer) else [answer]:
                    self.wfile.write(piece)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/a.rbln", asked
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def said(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(_range: str) -> Iterator[bytes]:
    yield said(200, Transfer_Encoding="chunked")
    while True:
        yield b"10000\r\n" + b"x" * (1 << 16) + b"\r\n"


def test_more_than_was_announced_is_refused(tmp_path: Path) -> None:
    endless = (said(200), b"x" * 5000, b"x" * 5000)
    for answer in (chunked, lambda _range: endless):
        with telling(answer) as (url, asked), pytest.raises(subject.SourceError, match="more than the announced 1000 bytes"):
            bring({"url": url, "size": 1000}, tmp_path / DIGEST)
        assert len(asked) == 1 and (tmp_path / DIGEST).stat().st_size == 0


def test_no_more_than_the_length_of_an_answer_is_taken(tmp_path: Path) -> None:
    with telling(said(200, b"0123456789 and more", Content_Length="10")) as (url, _asked):
        assert bring({"url": url}, tmp_path / DIGEST) == b"0123456789"


def test_a_file_that_changes_its_size_is_refused(tmp_path: Path) -> None:
    with telling(said(200, b"01234", Content_Length="10"), said(206, b"5", Content_Range="bytes 5-5/11")) as (url, _asked):
        with pytest.raises(subject.SourceError, match=r"announces 11 bytes, expected the 10 that were announced before"):
            bring({"url": url}, tmp_path / DIGEST)
        with pytest.raises(subject.SourceError, match=r"announces 11 bytes, expected the 9"):
            bring({"url": url, "size": 9}, tmp_path / DIGEST)


def test_a_file_that_changes_is_begun_again(tmp_path: Path) -> None:
    answers = [
        said(200, b"01234", Content_Length="10", ETag='"a"'),
        said(206, b"56789", Content_Range="bytes 5-9/10", ETag='"b"'),
        said(200, b"abcdefghij", Content_Length="10", ETag='"b"'),
    ]
    with telling(*answers) as (url, asked):
        assert bring({"url": url}, tmp_path / DIGEST) == b"abcdefghij"
    assert asked == ["", "bytes=5-", ""]


@pytest.mark.parametrize(
    "given",
    ["bytes ten-20/30", "bytes 7-9/10", "bytes 5-3/10", "bytes 5-20/10", "bytes 5-9", "lines 5-9/10", "", "bytes \u0665-9/10"],
)
def test_a_range_that_makes_no_sense_is_refused(tmp_path: Path, given: str) -> None:
    (tmp_path / DIGEST).write_bytes(b"01234")
    wrong = pytest.raises(subject.SourceError, match=r"Content-Range .*, expected a range from byte 5")
    with telling(said(206, b"56789", Content_Range=given)) as (url, asked), wrong:
        bring({"url": url}, tmp_path / DIGEST)
    assert asked == ["bytes=5-"]


def of_416(given: str) -> list[bytes]:
    """Each whole answer breaks off, and each range is said to be none."""
    return [said(416, Content_Range="bytes */3") if given else said(200, b"01234", Content_Length="10")]


def without_range(_given: str) -> list[bytes]:
    """Each answer begins again and breaks off."""
    return [said(200, b"01234", Content_Length="10")]


def of_another_tag(given: str) -> list[bytes]:
    """Each answer is of another file."""
    again = said(206, b"5", Content_Range="bytes 5-5/10", ETag=f'"{time.monotonic()}"')
    return [again if given else said(200, b"01234", Content_Length="10", ETag=f'"{time.monotonic()}"')]


@pytest.mark.parametrize("answer", [of_416, without_range, of_another_tag], ids=lambda answer: str(answer.__name__))
def test_a_source_that_begins_again_and_again_is_given_up(tmp_path: Path, answer: Any) -> None:
    with telling(answer) as (url, asked), pytest.raises(subject.SourceError, match=r"started the file more than|broke off"):
        bring({"url": url}, tmp_path / DIGEST)
    assert len(asked) <= 10


def test_a_source_that_breaks_off_too_often_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def piece(given: str) -> list[bytes]:
        at = int(given[len("bytes=") : -1]) if given else 0
        return [said(206, b"x" * 1_000_000, Content_Range=f"bytes {at}-{at + 999_999}/100000000")]

    monkeypatch.setattr(limits, "MAX_ATTEMPTS", 5)
    with (
        telling(piece) as (url, asked),
        pytest.raises(subject.SourceError, match=r"broke off 5 times, .* after 5000000 "),
    ):
        bring({"url": url}, tmp_path / DIGEST)
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("a byte of the body at a time", r"bytes arrived within 0 s, expected at least 32768"),
        ("a chunk of a byte at a time", r"bytes arrived within 0 s, expected at least 32768"),
        ("a byte of the head at a time", r"the exchange did not end within 0\.5 s"),
        ("silence", r"the exchange did not end within 0\.5 s"),
    ],
)
def test_a_source_that_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, why: str) -> None:
    monkeypatch.setattr(limits, "INTERVAL_SECONDS", 0.5)
    with hostile(mode) as server, pytest.raises(subject.SourceError, match=rf"it broke off after \d+ bytes \({why}|\d+ {why}"):
        bring({"url": server.url, "size": 200_000_000}, tmp_path / DIGEST)
    assert server.requests <= 3


def test_a_large_file_has_the_time_that_its_size_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.time, "monotonic", lambda: 1000.0)
    assert limits.Source(limits.MIN_RATE * 100).deadline == 1000.0 + limits.MAX_TRIES * limits.INTERVAL_SECONDS + 100
    late = limits.Source(limits.MIN_RATE * 100)
    monkeypatch.setattr(limits.time, "monotonic", lambda: 1000.0 + limits.MAX_TRIES * limits.INTERVAL_SECONDS + 100)
    with pytest.raises(subject.SourceError, match=r"did not arrive within 280 s, it broke off after 9 bytes \(why\)"):
        late.count_interruption("why", 0, 9)


# Bundles


@pytest.fixture(params=["directory", "tar", "tar.gz"])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    home = tmp_path / "bundle/blobs/sha256"
    home.mkdir(parents=True)
    (home / DIGEST).write_bytes(CONTENT)
    (tmp_path / "bundle/readme").write_text("no blob")
    if request.param == "directory":
        return tmp_path / "bundle"
    path = tmp_path / f"bundle.{request.param}"
    with tarfile.open(path, "w:gz" if request.param == "tar.gz" else "w") as archive:
        archive.add(tmp_path / "bundle", arcname=".")
    return path


def test_bundle_whole_and_in_part(bundle: Path, tmp_path: Path) -> None:
    assert subject.blobs_in_bundle(str(bundle)) == {DIGEST: len(CONTENT)}
    origin = {"bundle": str(bundle), "url": "http://nowhere.invalid/"}
    assert subject.size(origin, DIGEST, {}, {}) == len(CONTENT)
    (tmp_path / DIGEST).write_bytes(CONTENT[:4000])
    assert bring(origin, tmp_path / DIGEST) == CONTENT


def test_bundle_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar")
    for path in (tmp_path / "x.tar", tmp_path / "gone", tmp_path):
        with pytest.raises(subject.SourceError, match=f"{path} is no complete bundle .*Correct model_repository_bundle"):
            subject.blobs_in_bundle(str(path))
    assert subject.blobs_in_bundle("") == {}


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2", ""])
@pytest.mark.parametrize("left", [0.0, 0.001, 0.5, 0.97])
def test_a_truncated_bundle_is_told(tmp_path: Path, kind: str, left: float) -> None:
    content = os.urandom(300_000)
    digest = hashlib.sha256(content).hexdigest()
    home = tmp_path / "bundle/blobs/sha256"
    home.mkdir(parents=True)
    (home / digest).write_bytes(content)
    path = tmp_path / f"bundle.tar{kind and '.' + kind}"
    with tarfile.open(path, f"w:{kind}") as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "bundle", arcname=".")
    os.truncate(path, int(os.path.getsize(path) * left))
    asks: list[Any] = [
        lambda: subject.blobs_in_bundle(str(path)),
        lambda: subject.size({"bundle": str(path)}, digest, {}, {}),
        lambda: subject.fetch({"bundle": str(path)}, digest, str(tmp_path / digest), {}, {}),
    ]
    for ask in asks:
        with pytest.raises(subject.SourceError, match=rf"{path} is no complete bundle \(.+\), expected .*copy it again"):
            ask()


def test_a_bundle_that_became_another_is_told(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(subject.SourceError, match="has no blobs/sha256/0123"):
        subject.fetch({"bundle": str(bundle)}, "0123", str(tmp_path / "x"), {}, {})
    (tmp_path / DIGEST).write_bytes(CONTENT + b"more")
    assert bring({"bundle": str(bundle)}, tmp_path / DIGEST) == CONTENT


# Object stores


def s3(store: stores.Store) -> dict[str, Any]:
    return {"s3": {"provider": "Other", "endpoint": store.url, "region": "lab-1"}}


@needs_rclone
def test_s3_whole_and_in_part(tmp_path: Path) -> None:
    with stores.serving({"models/with space/a.rbln": CONTENT}, stores.S3) as store:
        origin = {"url": "s3://models/with space/a.rbln"}
        assert subject.size(origin, DIGEST, s3(store), SECRETS) == len(CONTENT)
        (tmp_path / DIGEST).write_bytes(CONTENT[:70_001])
        assert bring(origin, tmp_path / DIGEST, s3(store), SECRETS) == CONTENT
        assert [header for header in store.ranges_asked if header] == [f"bytes=70001-{len(CONTENT) - 1}"]


@needs_rclone
def test_s3_that_breaks_off(tmp_path: Path) -> None:
    with stores.serving({"models/a.rbln": CONTENT}, stores.S3) as store:
        store.cuts = [1_000_000] * 2
        assert bring({"url": "s3://models/a.rbln"}, tmp_path / DIGEST, s3(store), SECRETS) == CONTENT
        # Neither time nor the right to list the bucket is needed
        assert [path for _method, path, _range in store.asked if "prefix=" in path] == []


@needs_rclone
@pytest.mark.parametrize(
    ("url", "secrets", "words"),
    [
        ("s3://models/gone", SECRETS, "the object does not exist"),
        ("s3://models/a.rbln", {**SECRETS, "s3_secret_key": "wrong-secret-of-ours"}, "rclone: .*403"),
    ],
)
def test_s3_that_refuses(url: str, secrets: dict[str, str], words: str) -> None:
    with (
        stores.serving({"models/a.rbln": CONTENT}, stores.S3) as store,
        pytest.raises(subject.SourceError, match=words) as error,
    ):
        subject.size({"url": url}, DIGEST, s3(store), secrets)
    assert secrets["s3_secret_key"] not in str(error.value)


@needs_rclone
def test_gs(tmp_path: Path) -> None:
    with stores.serving({"models/a.rbln": CONTENT}, stores.Google) as store:
        way = {"gs": {"endpoint": store.url + "/storage/v1/", "anonymous": "true"}}
        assert subject.size({"url": "gs://models/a.rbln"}, DIGEST, way, {}) == len(CONTENT)
        assert bring({"url": "gs://models/a.rbln"}, tmp_path / DIGEST, way) == CONTENT


@pytest.mark.parametrize(
    ("says", "sends", "words"),
    [
        ("yes", "true", "rclone: the answer has more than"),
        ("while :; do printf x; sleep 0.05; done", "true", r"rclone: the exchange did not end within 0\.5 s"),
        ("echo '{'", "true", "expected JSON"),
        ("echo []", "true", "the object does not exist"),
        ('echo \'{"Size": "7"}\'', "true", "expected a number"),
        ("echo '{\"Size\": 1e999}'", "true", "expected JSON"),
        ("echo '{\"Size\": 1000}'", "yes", "it sends more than the announced 1000 bytes"),
        ("echo '{\"Size\": 100000}'", "while :; do printf x; sleep 0.05; done", "it broke off after .* bytes arrived within 0 s"),
        ("echo '{\"Size\": 1000}'", "exec >&- 2>&-; sleep 60", "rclone did not end within"),
    ],
)
def test_an_object_store_that_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, sends: str, words: str) -> None:
    program = tmp_path / "bin/rclone"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nif [ "$1" = lsjson ]; then {says}; else {sends}; fi\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(limits, "INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(object_stores, "INTERVAL_SECONDS", 0.5)
    with pytest.raises(subject.SourceError, match=words):
        bring({"url": "s3://models/a.rbln"}, tmp_path / DIGEST)


def test_no_rclone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        subject.SourceError, match="rclone, which downloads from object stores, is missing on this machine: `apt-get install"
    ):
        subject.size({"url": "s3://models/a.rbln"}, DIGEST, {}, {})


def test_keys_are_in_the_environment_and_not_in_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    program = tmp_path / "bin/rclone"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {told}; env | grep ^RCLONE_ | sort >> {told}; echo \'{{"Size": 7}}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("AWS_CA_BUNDLE", "/site.pem")
    way = {"s3": {"provider": "Minio", "endpoint": "https://minio.example.com", "region": "here"}}
    assert subject.size({"url": "s3://models/a.rbln"}, DIGEST, way, SECRETS) == 7
    command, *environment = told.read_text().splitlines()
    assert command.startswith("lsjson --stat ") and command.endswith(" s3:models/a.rbln")
    assert stores.SECRET not in command and stores.ACCESS not in command
    assert environment == [
        "RCLONE_CA_CERT=/site.pem",
        f"RCLONE_CONFIG_S3_ACCESS_KEY_ID={stores.ACCESS}",
        "RCLONE_CONFIG_S3_ENDPOINT=https://minio.example.com",
        "RCLONE_CONFIG_S3_ENV_AUTH=false",
        "RCLONE_CONFIG_S3_PROVIDER=Minio",
        "RCLONE_CONFIG_S3_REGION=here",
        f"RCLONE_CONFIG_S3_SECRET_ACCESS_KEY={stores.SECRET}",
        "RCLONE_CONFIG_S3_TYPE=s3",
    ]
