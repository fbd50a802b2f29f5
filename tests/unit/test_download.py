"""Where large files come from, with real servers, a real rclone and real tar files: whole, in parts, and not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import stores
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download as subject

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
        with pytest.raises(subject.SourceError, match=r"broke off after 1000000 bytes .* run again, it goes on from there"):
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
        ("/a.rbln", "", "found 401, it wants a login, and none is set"),
        ("/a.rbln", "other", "found 401, it refuses the login of other"),
        ("/gone", "fleet", "found 404, wanted a file"),
    ],
)
def test_refusals_are_told_at_once_for_size_and_content(tmp_path: Path, path: str, login: str, words: str) -> None:
    with stores.serving({"a.rbln": CONTENT}) as store:
        store.login = "fleet:secret"
        for call in (subject.size, lambda *asked: subject.fetch(*asked[:2], str(tmp_path / "x"), *asked[2:])):
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
    monkeypatch.setattr(subject, "_copy", full)
    with stores.serving({"a.rbln": CONTENT}) as store:
        words = rf"{tmp_path} is full \(No space left on device\) after 100 bytes, which were removed: make room there"
        with pytest.raises(subject.SourceError, match=words):
            bring({"url": store.url + "/a.rbln"}, tmp_path / DIGEST)
    assert not (tmp_path / DIGEST).exists()


def test_signature_and_login_of_an_address_are_not_shown() -> None:
    assert subject.shown({"url": "https://u:p@a.example.com/x?sig=secret"}) == "https://a.example.com/x"


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
    assert subject.bundled(str(bundle)) == {DIGEST: len(CONTENT)}
    origin = {"bundle": str(bundle), "url": "http://nowhere.invalid/"}
    assert subject.size(origin, DIGEST, {}, {}) == len(CONTENT)
    (tmp_path / DIGEST).write_bytes(CONTENT[:4000])
    assert bring(origin, tmp_path / DIGEST) == CONTENT


def test_bundle_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar")
    for path in (tmp_path / "x.tar", tmp_path / "gone", tmp_path):
        with pytest.raises(subject.SourceError, match=f"found no whole bundle {path} .*correct model_repository_bundle"):
            subject.bundled(str(path))
    assert subject.bundled("") == {}


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
        lambda: subject.bundled(str(path)),
        lambda: subject.size({"bundle": str(path)}, digest, {}, {}),
        lambda: subject.fetch({"bundle": str(path)}, digest, str(tmp_path / digest), {}, {}),
    ]
    for ask in asks:
        with pytest.raises(subject.SourceError, match=rf"found no whole bundle {path} \(.+\), wanted .*copy it anew"):
            ask()


def test_a_bundle_that_became_another_is_told(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(subject.SourceError, match="found no 0123 in bundle"):
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
        ("s3://models/gone", SECRETS, "found no such object"),
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


def test_no_rclone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(subject.SourceError, match="found no rclone here, wanted it for object stores: `apt-get install rclone`"):
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
