"""daemon.json: options of another driver go with it, and flags of dockerd that contradict the file are found beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError  # noqa: F401  (loads Ansible before its plugins)
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import engine
from ansible_collections.npufleet.triton.plugins.module_utils.engine import daemon_config as subject
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import flag_reasons
from test_concern_engine import OPTIONS, WANTED, host

# As Debian's and Docker's packages have it
DEBIAN = """[Service]
EnvironmentFile=-{default}
ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS
ExecReload=/bin/kill -s HUP $MAINPID
"""


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories of units below tmp_path: `etc` counts before `lib`."""
    for name in ("etc/docker.service.d", "lib"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(subject, "UNIT_PATHS", (str(tmp_path / "etc"), str(tmp_path / "lib")))
    (tmp_path / "lib/docker.service").write_text(DEBIAN.format(default=tmp_path / "default"))
    return tmp_path


@pytest.mark.parametrize(
    ("current", "wanted", "merged"),
    [
        (
            {"log-driver": "gelf", "log-opts": {"gelf-address": "udp://logs.example:12201"}},
            OPTIONS,
            OPTIONS,
        ),
        ({"log-driver": "gelf", "log-opts": {"gelf-address": "x"}}, {"log-driver": "none"}, {"log-driver": "none"}),
        ({"log-opts": {"tag": "a"}}, {"log-driver": "json-file"}, {"log-driver": "json-file", "log-opts": {"tag": "a"}}),
        ({"log-opts": {"tag": "a"}}, {"log-driver": "gelf"}, {"log-driver": "gelf"}),
        ({"log-driver": "gelf", "log-opts": {"a": ""}}, {"mtu": 9}, {"log-driver": "gelf", "log-opts": {"a": ""}, "mtu": 9}),
        (
            {"storage-driver": "devicemapper", "storage-opts": ["dm.basesize=20G"]},
            {"storage-driver": "overlay2"},
            {"storage-driver": "overlay2"},
        ),
        (
            {"storage-opts": ["dm.basesize=20G", "overlay2.size=9G"]},
            {"storage-driver": "overlay2"},
            {"storage-driver": "overlay2", "storage-opts": ["overlay2.size=9G"]},
        ),
        (
            {"cluster-store": "etcd://a", "cluster-store-opts": {"kv.path": "x"}},
            {"cluster-store": "consul://b"},
            {"cluster-store": "consul://b"},
        ),
        (
            {"runtimes": {"own": {"runtimeType": "io.x"}, "other": {"path": "/o"}}},
            {"runtimes": {"own": {"path": "/own"}}},
            {"runtimes": {"own": {"path": "/own"}, "other": {"path": "/o"}}},
        ),
        (
            {"default-ulimits": {"nofile": {"Name": "nofile", "Soft": 9, "Hard": 9}}},
            {"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 5}}},
            {"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 5}}},
        ),
        (
            {"builder": {"gc": {"enabled": True}}, "features": {"buildkit": True}},
            {"builder": {"gc": {"defaultKeepStorage": "9GB"}}, "features": {"cdi": True}},
            {"builder": {"gc": {"enabled": True, "defaultKeepStorage": "9GB"}}, "features": {"buildkit": True, "cdi": True}},
        ),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_options_that_depend_on_a_driver_go_with_it(
    current: dict[str, Any], wanted: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert subject.merge(current, wanted) == merged
    assert subject.merge(merged, wanted) == merged, "a second run changes nothing"


def test_the_plan_shows_options_that_go() -> None:
    gelf = {"log-driver": "gelf", "log-opts": {"gelf-address": "udp://x"}}
    (entry,) = engine.diff({**WANTED, "daemon": {"log-driver": "none"}}, host(daemon=gelf, running=None))[:1]
    assert entry["current"] == gelf and entry["desired"] == {"log-driver": "none"}


def names(words: str) -> set[str]:
    return {option for option, _flag in subject.parse_flags([(word, "f") for word in ["dockerd", *words.split()]])}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("-H fd:// --containerd=/run/x", {"hosts", "containerd"}),
        ("-Htcp://:1 -D -llevel -s overlay2 -g /x", {"hosts", "debug", "log-level", "storage-driver", "graph"}),
        ("-Dl debug", {"debug", "log-level"}),
        ("--log-driver journald --log-opt=tag=x --log-opt a=b", {"log-driver", "log-opts"}),
        ("--label a=b --insecure-registry=c --registry-mirror d", {"labels", "insecure-registries", "registry-mirrors"}),
        ("--config-file /etc/docker/daemon.json --config-file=/etc/docker//daemon.json", set()),
        ("--config-file=/etc/other.json", {"config-file"}),
        ("--config-file /etc/other.json --icc=false", {"config-file", "icc"}),
        ("", set()),
    ],
)
def test_flags_have_the_names_of_the_file(words: str, found: set[str]) -> None:
    assert names(words) == found


def test_flags_of_the_package_are_in_nobodys_way(units: Path) -> None:
    assert set(subject.read_flags()) == {"hosts", "containerd"}
    assert engine.diff(WANTED, host(flags=subject.read_flags())) == []


def test_flags_of_an_environment_file_collide(units: Path) -> None:
    (units / "default").write_text(
        '# DOCKER_OPTS="--icc"\nDOCKER_OPTS="--log-driver=gelf --log-opt gelf-address=udp://s3cret -D"\n'
    )
    flags = subject.read_flags()
    assert flags["log-driver"] == f"--log-driver in {units / 'default'}"
    assert "s3cret" not in str(flags)
    plan = engine.diff(WANTED, host(flags=flags))
    (entry,) = plan
    assert (entry["name"], entry["action"]) == ("flags", "inspect")
    assert entry["current"] == f"--log-driver in {units / 'default'}, --log-opt in {units / 'default'}"
    (reason,) = flag_reasons(plan)
    assert "--log-opt" in reason and "docker_engine_daemon_options" in reason
    # What the file does not set may be a flag
    assert engine.diff({**WANTED, "daemon": {}}, host(daemon={}, flags=flags)) == []


@pytest.mark.parametrize(
    ("drop_ins", "found"),
    [
        ({"a.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --debug \\\n  --data-root /srv\n"}, {"debug", "data-root"}),
        # A later file of the same name counts less, and a later name more
        ({"b.conf": "[Service]\nEnvironment=DOCKER_OPTS=--icc\n", "a.conf": "[Service]\nEnvironment=DOCKER_OPTS=--ipv6\n"},
         {"hosts", "containerd", "icc"}),
        ({"a.conf": "[Service]\nEnvironment='DOCKER_OPTS=--mtu 9000' X=1\n"}, {"hosts", "containerd", "mtu"}),
        ({"a.conf": "[Service]\nEnvironment=A=b\nEnvironment=\nEnvironment=\"DOCKER_OPTS=-D\"\n[Unit]\nExecStart=/x --no\n"},
         {"hosts", "containerd", "debug"}),
        ({"a.conf": "[Service]\nExecStart=\nExecStart=-/usr/bin/dockerd --dns=${WHICH} -H fd://\nEnvironment=WHICH=1.1.1.1\n"},
         {"dns", "hosts"}),
        ({"a.conf": "[Service]\nExecStart=\nExecStart=/usr/local/bin/start-docker.sh --debug\n"}, set()),
        ({"a.conf": "[Service]\nExecStart=\n; ExecStart=/usr/bin/dockerd --no\n"}, set()),
        ({"a.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --label 'open quote\n"}, {"labels"}),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_flags_of_drop_ins_collide(units: Path, monkeypatch: pytest.MonkeyPatch, drop_ins: dict[str, str], found: set[str]) -> None:
    monkeypatch.setattr(subject, "_running_command_line", list)
    for name, content in drop_ins.items():
        (units / "etc/docker.service.d" / name).write_text(content)
    assert set(subject.read_flags()) == found


def test_sysconfig_of_red_hat_is_read_by_its_unit_alone(units: Path) -> None:
    (units / "sysconfig").write_text(
        "OPTIONS='--selinux-enabled --log-driver=journald'\nDOCKER_STORAGE_OPTIONS=\"--storage-opt a=b\"\n"
    )
    (units / "lib/docker.service").write_text("[Service]\nExecStart=/usr/bin/dockerd $OPTIONS\n")
    assert subject.read_flags() == {}
    (units / "lib/docker.service").write_text(
        f"[Service]\nEnvironmentFile=-{units}/sysconfig\nExecStart=/usr/bin/dockerd $OPTIONS $DOCKER_STORAGE_OPTIONS $GONE\n"
    )
    assert set(subject.read_flags()) == {"selinux-enabled", "log-driver", "storage-opts"}


def test_an_engine_that_comes_will_read_what_is_there_already(units: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (units / "lib/docker.service").unlink()
    assert subject.read_flags() == {"hosts": "-H in the package's docker.service"}
    place, content = subject.PACKAGED_UNIT
    monkeypatch.setattr(subject, "PACKAGED_UNIT", (place, content.replace("/etc/default/docker", str(units / "default"))))
    (units / "default").write_text("DOCKER_OPTS='--log-driver=journald'\n")
    (units / "etc/docker.service.d/a.conf").write_text("[Service]\nEnvironment=OTHER=1\n")
    assert set(subject.read_flags()) == {"hosts", "log-driver"}


@pytest.mark.parametrize(
    ("config", "flags", "found"),
    [
        # dockerd merges runtimes
        ({"runtimes": {"a": {"path": "/a"}}}, {"runtimes": "--add-runtime in f"}, []),
        # It takes entries of other maps for options
        ({"proxies": {"http-proxy": "x"}}, {"http-proxy": "--http-proxy in f"}, ["--http-proxy in f"]),
        ({"hosts": ["fd://"]}, {"hosts": "-H in f"}, ["-H in f"]),
        ({}, {"config-file": "--config-file in f"}, ["--config-file in f"]),
        ({"log-opts": {"debug": "1"}}, {"debug": "-D in f"}, []),
    ],
)
def test_clashes(config: dict[str, Any], flags: dict[str, str], found: list[str]) -> None:
    assert subject.clashes(config, flags) == found
