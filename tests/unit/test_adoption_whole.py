"""A hand-made container is compared with one of a plain `docker run`: each difference is a variable or a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.action import adoption as action
from ansible_collections.npufleet.triton.plugins.module_utils.triton import options
from ansible_collections.npufleet.triton.plugins.modules import adoption as module
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import plain_run, translation
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container as desired_container
from helpers import FakeEngine
from test_adoption import CONTAINERS, GUIDE, IMAGE, found

CASES = Path(__file__).parent / "fixtures/adoption"
(SILENT,) = json.loads((CASES / "silent.json").read_text()).values()
PORTS = json.loads((CASES / "ports.json").read_text())
NAME, RESTART, KEY = "name nifty_sinoussi", "restart policy no", "no key"
MODELS = "volume /srv/python_backend:/opt/tritonserver/python_backend"


def changed(name: str = "guide", image: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """What the module reads of a recorded container, with changes of its parts: host, config, net, mounts, and others by name."""
    given = found(name, GUIDE, False)
    inspect = dict(given["inspect"])
    for part, key in (("host", "HostConfig"), ("config", "Config"), ("net", "NetworkSettings")):
        inspect[key] = {**inspect[key], **parts.pop(part, {})}
    inspect["Mounts"] = parts.pop("mounts", inspect["Mounts"])
    return {**given, "inspect": {**inspect, **parts}, "image": {"Config": {**IMAGE["Config"], **(image or {})}}}


def lines(given: dict[str, Any]) -> list[str]:
    """What is left out beside what the recorded container itself leaves out."""
    usual = (NAME, RESTART, KEY, MODELS)
    return [line for line in translation.translate(given, "npu-1", "/var/lib/npufleet").left_out if not line.startswith(usual)]


def test_the_recorded_container_is_plain() -> None:
    assert lines(changed()) == []


def test_nothing_is_dropped_in_silence() -> None:
    given = changed(**SILENT)
    variables, left_out, _vault = translation.translate(given, "npu-1", "/var/lib/npufleet")
    for word in (
        'Healthcheck {"Interval": 10000000000, "Test": ["CMD", "curl", "-f", "localhost:8000/v2/health/ready"]}: there is no ',
        "Hostname triton.example: there is no variable",
        "StopSignal SIGINT: there is no variable",
        "Labels traefik.enable=true: there is no variable",
        "Labels traefik.http.routers.triton.rule=Host(`triton.example`): there is no variable",
        "Annotations org.example=1: there is no variable",
        "MemorySwappiness 10: there is no variable",
        "volume /srv/m:/models with z: kept in triton_server_volumes",
        "volume /srv/c:/cache with Z: kept in triton_server_volumes",
        "volume /srv/d:/data with rshared: kept in triton_server_volumes",
    ):
        assert any(line.startswith(word) for line in left_out), (word, left_out)
    assert variables["triton_server_volumes"][1:] == ["/srv/c:/cache:ro,Z", "/srv/d:/data:rw,rshared", "/srv/m:/models:rw,z"]
    assert [desired_container.volume(bind) for bind in variables["triton_server_volumes"][1:]] == variables[
        "triton_server_volumes"
    ][1:]


# Options of `docker run`, each as an engine records it
HOST_OPTIONS = {
    "--annotation": {"Annotations": {"a": "b"}},
    "--blkio-weight": {"BlkioWeight": 300},
    "--blkio-weight-device": {"BlkioWeightDevice": [{"Path": "/dev/sda", "Weight": 200}]},
    "--cgroup-parent": {"CgroupParent": "x.slice"},
    "--cidfile": {"ContainerIDFile": "/run/a.cid"},
    "--cpu-period": {"CpuPeriod": 50000},
    "--cpu-quota": {"CpuQuota": 25000},
    "--cpu-rt-runtime": {"CpuRealtimeRuntime": 1},
    "--cpu-shares": {"CpuShares": 512},
    "--cpus": {"NanoCpus": 1500000000},
    "--cpuset-mems": {"CpusetMems": "0"},
    "--device-cgroup-rule": {"DeviceCgroupRules": ["c 1:3 mr"]},
    "--device-read-bps": {"BlkioDeviceReadBps": [{"Path": "/dev/sda", "Rate": 1}]},
    "--dns": {"Dns": ["10.0.0.2"]},
    "--dns-option": {"DnsOptions": ["ndots:1"]},
    "--dns-search": {"DnsSearch": ["example.com"]},
    "--group-add": {"GroupAdd": ["44"]},
    "--init": {"Init": True},
    "--ipc host": {"IpcMode": "host"},
    "--isolation": {"Isolation": "hyperv"},
    "--kernel-memory": {"KernelMemory": 1 << 20},
    "--link": {"Links": ["/db:/triton/db"]},
    "--memory-reservation": {"MemoryReservation": 1 << 20},
    "--memory-swap": {"MemorySwap": 3 << 20},
    "--memory-swappiness": {"MemorySwappiness": 0, "OomScoreAdj": -5},
    "--oom-kill-disable": {"OomKillDisable": True},
    "--oom-score-adj": {"OomScoreAdj": 500},
    "--pid host": {"PidMode": "host"},
    "--pids-limit": {"PidsLimit": 100},
    "--runtime": {"Runtime": "runsc"},
    "--security-opt": {"SecurityOpt": ["seccomp=unconfined"]},
    "--storage-opt": {"StorageOpt": {"size": "10G"}},
    "--sysctl": {"Sysctls": {"net.core.somaxconn": "1024"}},
    "--userns": {"UsernsMode": "host"},
    "--uts": {"UTSMode": "host"},
    "--volume-driver": {"VolumeDriver": "nfs"},
    "--volumes-from": {"VolumesFrom": ["other"]},
    "--mount with a subpath": {"Mounts": [{"Type": "volume", "Target": "/x", "VolumeOptions": {"Subpath": "a"}}]},
    "--mount that is not recursive": {"Mounts": [{"Type": "bind", "Target": "/x", "BindOptions": {"NonRecursive": True}}]},
    "systempaths=unconfined": {"Privileged": False, "MaskedPaths": [], "Devices": [{"PathOnHost": "/dev/rbln0",
                               "PathInContainer": "/dev/rbln0", "CgroupPermissions": "rwm"}]},
    "an option of the future": {"QuantumLimits": {"qubits": 3}},
}  # fmt: skip
CONFIG_OPTIONS = {
    "--domainname": {"Domainname": "example.com"},
    "--expose": {"ExposedPorts": {"9000/tcp": {}}},
    "--entrypoint": {"Entrypoint": ["/start.sh"]},
    "--health-cmd": {"Healthcheck": {"Test": ["CMD-SHELL", "true"]}},
    "--hostname": {"Hostname": "triton"},
    "--label": {"Labels": {"a": "b"}},
    "--mac-address": {"MacAddress": "02:42:ac:11:00:02"},
    "--network none": {"NetworkDisabled": True},
    "--stop-signal": {"StopSignal": "SIGINT"},
    "--user": {"User": "1000"},
    "--workdir": {"WorkingDir": "/srv"},
    "an option of the future": {"Mood": "sunny"},
}


@pytest.mark.parametrize("option", HOST_OPTIONS)
def test_each_option_of_the_host_configuration_has_a_line(option: str) -> None:
    assert lines(changed(host=HOST_OPTIONS[option])), option


@pytest.mark.parametrize("option", CONFIG_OPTIONS)
def test_each_option_of_the_configuration_has_a_line(option: str) -> None:
    assert len(lines(changed(config=CONFIG_OPTIONS[option]))) == 1, option


def test_what_an_engine_fills_in_has_no_line() -> None:
    """As Docker 20.10 to 29 record a plain `docker run -it --privileged`, whose image has options of its own."""
    base = {"Labels": {"maintainer": "NVIDIA"}, "StopSignal": "SIGTERM", "Healthcheck": {"Test": ["CMD", "true"]},
            "ExposedPorts": {"80/tcp": {}}, "Volumes": {"/x": {}}, "OnBuild": None, "Shell": ["/bin/bash", "-c"]}  # fmt: skip
    host = {
        "AutoRemove": False, "Annotations": None, "BlkioDeviceReadBps": [], "BlkioDeviceReadIOps": None, "CgroupnsMode": "private",
        "ConsoleSize": [40, 120], "ContainerIDFile": "", "CpuCount": 0, "CpuPercent": 0, "CpuRealtimePeriod": 0,
        "IOMaximumIOps": 0, "Init": None, "Isolation": "", "KernelMemory": 0, "MaskedPaths": None, "MemorySwappiness": None,
        "OomKillDisable": None, "PidsLimit": None, "ReadonlyPaths": None, "StorageOpt": None, "Sysctls": None, "UTSMode": "",
    }  # fmt: skip
    inherited = {name: base[name] for name in ("Labels", "StopSignal", "Healthcheck", "Volumes")}
    config = {**inherited, "OnBuild": None, "AttachStdin": True, "AttachStdout": True, "Domainname": "", "NetworkDisabled": False,
              "ExposedPorts": {"80/tcp": {}, "8000/tcp": {}}}  # fmt: skip
    network = {"IPAMConfig": None, "Links": None, "Aliases": None, "MacAddress": "02:42", "DriverOpts": None, "GwPriority": 0,
               "NetworkID": "ab", "EndpointID": "cd", "Gateway": "172.17.0.1", "DNSNames": None}  # fmt: skip
    other = {
        "AppArmorProfile": "unconfined", "Args": ["x"], "Created": "2026", "Driver": "overlay2", "ExecIDs": ["a"],
        "HostnamePath": "/x", "ImageManifestDescriptor": {"a": 1}, "Platform": "linux", "ProcessLabel": "", "RestartCount": 3,
    }  # fmt: skip
    assert lines(changed(image=base, host=host, config=config, net={"Networks": {"bridge": network}}, **other)) == []
    hidden = {
        "Privileged": False,
        "MaskedPaths": ["/proc/asound", "/proc/kcore", "/sys/firmware"],
        "ReadonlyPaths": ["/proc/bus", "/proc/sys"],
    }
    assert [line for line in lines(changed(host=hidden)) if "Paths" in line] == []
    assert [name for name, _value in plain_run.differences(changed(future={"a": 1})["inspect"], IMAGE, "runc", ())][-1] == "future"


def test_options_that_switch_off_what_the_image_has_are_told() -> None:
    base = {"StopSignal": "SIGQUIT", "Labels": {"a": "1", "b": "2"}, "Healthcheck": {"Test": ["CMD", "true"]}}
    found_lines = lines(changed(image=base, config={"Labels": {"a": "1", "b": "3"}, "Healthcheck": {"Test": ["NONE"]}}))
    assert [line.partition(":")[0] for line in found_lines] == ['Healthcheck {"Test"', "Labels b=3", "StopSignal none"]


def test_values_that_look_like_secrets_have_no_line_of_their_own() -> None:
    config = {
        "Labels": {"traefik.http.middlewares.a.basicauth.users": "me:$apr1$s3cr3t", "api-token": "s3cr3t-token"},
        "Healthcheck": {"Test": ["CMD", "curl", "http://me:s3cr3t-word@localhost:8000"]},
    }
    told = lines(changed(config=config, host={"Annotations": {"password": "s3cr3t"}}))
    assert len(told) == 4 and "s3cr3t" not in " ".join(told)
    (line,) = lines(changed(config={"Labels": {"a": "x" * 10000}}))
    assert len(line) < 300


def test_networks_beside_the_first_and_what_was_asked_of_them_are_told() -> None:
    mine = {"IPAddress": "10.1.0.2", "IPAMConfig": {"IPv4Address": "10.1.0.2"}, "Aliases": ["triton", "97eda807eacc"]}
    told = lines(
        changed(host={"NetworkMode": "serving"}, net={"Networks": {"serving": mine, "storage": {"IPAddress": "10.2.0.2"}}})
    )
    assert [line.partition(": there")[0] for line in told if line.startswith("network ")] == [
        "network serving: the managed container has default",
        "network serving Aliases triton",
        'network serving IPAMConfig {"IPv4Address": "10.1.0.2"}',
        "network storage",
    ]


def mount(**more: Any) -> dict[str, Any]:
    return {"Type": "bind", "Source": "/srv/a", "Destination": "/a", "Mode": "", "RW": True, "Propagation": "rprivate", **more}


@pytest.mark.parametrize(
    ("given", "kept", "told"),
    [
        (mount(), "/srv/a:/a:rw", ""),
        (mount(Mode="ro", RW=False), "/srv/a:/a:ro", ""),
        (mount(Mode="ro,Z", RW=False), "/srv/a:/a:ro,Z", "with Z"),
        (mount(Mode="z,rslave", Propagation="rslave"), "/srv/a:/a:rw,z,rslave", "with z, rslave"),
        # By --mount
        (mount(Propagation="rshared"), "/srv/a:/a:rw,rshared", "with rshared"),
        (mount(Type="volume", Name="data", Mode="z", Propagation=""), "data:/a:rw", ""),
        (mount(Type="volume", Name="data", Mode="nocopy", Propagation=""), "data:/a:rw,nocopy", "with nocopy"),
        (mount(Type="tmpfs", Source="", Propagation=""), "", "tmpfs volume at /a"),
        (mount(Type="image"), "", "image volume at /a"),
        (mount(Type="npipe"), "", "npipe volume at /a"),
        (mount(Destination="/usr/bin/rbln-smi", Source="/usr/bin/rbln-smi"), "", ""),
        (mount(Destination="/usr/bin/rbln-smi", Source="/opt/mine"), "", "volume /opt/mine:/usr/bin/rbln-smi: the managed"),
        (mount(Destination="/var/lib/npufleet", Source="/other"), "", "volume /other:/var/lib/npufleet: the managed"),
    ],
)  # fmt: skip
def test_mounts_keep_their_options(given: dict[str, Any], kept: str, told: str) -> None:
    variables, left_out, _vault = translation.translate(changed(mounts=[given]), "npu-1", "/var/lib/npufleet")
    assert variables.get("triton_server_volumes", [""])[1:] == ([kept] if kept else [])
    found_lines = [line for line in left_out if not line.startswith((NAME, RESTART, KEY))]
    assert len(found_lines) == bool(told) and all(told in line for line in found_lines), left_out


# Ports


@pytest.mark.parametrize("case", [name for name in PORTS if "net" in PORTS[name] and "host" in PORTS[name]])
def test_a_port_that_the_engine_chose_is_the_port(case: str) -> None:
    variables, left_out, _vault = translation.translate(changed(**PORTS[case]), "npu-1", "/var/lib/npufleet")
    assert variables["npufleet_http_port"] == 32768
    assert variables["triton_server_listen_address"] == ""
    assert not [line for line in left_out if line.startswith("http ")]


def test_a_server_on_a_network_of_ipv6_is_reached_there() -> None:
    inspect = changed(**PORTS["a network of IPv6 alone"])["inspect"]
    assert options.endpoint(inspect, GUIDE) == ("2001:db8::2", 8000)
    both = {"a": {"IPAddress": "", "GlobalIPv6Address": "2001:db8::2"}, "b": {"IPAddress": "10.0.0.2"}}
    assert options.endpoint(changed(net={"Networks": both})["inspect"], GUIDE) == ("10.0.0.2", 8000)
    assert options.endpoint(changed(net={"Networks": {}})["inspect"], GUIDE) == ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("asked", "chosen", "port", "address"),
    [
        # -P: nothing was asked for
        ({}, [("0.0.0.0", "32770"), ("::", "32771")], 32770, "0.0.0.0"),
        # A range
        ({"8000/tcp": [{"HostIp": "", "HostPort": "9000-9010"}]}, [("0.0.0.0", "9003"), ("::", "9003")], 9003, ""),
        ({"8000/tcp": [{"HostIp": "10.0.0.5", "HostPort": ""}]}, [("10.0.0.5", "40000")], 40000, "10.0.0.5"),
        ({"8000/tcp": [{"HostIp": "::1", "HostPort": "0"}]}, [("::1", "40001")], 40001, "::1"),
        ({"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]}, [("0.0.0.0", "8000"), ("::", "8000")], 8000, ""),
    ],
)  # fmt: skip
def test_ports_of_every_form(asked: Any, chosen: list[tuple[str, str]], port: int, address: str) -> None:
    ports = {"8000/tcp": [{"HostIp": ip, "HostPort": number} for ip, number in chosen]}
    given = changed(host={"PortBindings": asked, "PublishAllPorts": not asked}, net={"Ports": ports})
    variables = translation.translate(given, "npu-1", "/var/lib/npufleet").variables
    assert (variables["npufleet_http_port"], variables["triton_server_listen_address"]) == (port, address)


def test_a_port_that_nobody_knows_is_not_published() -> None:
    given = changed(host={"PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": ""}]}}, net={"Ports": {"8000/tcp": None}})
    assert any(line.startswith("http was not published") for line in lines(given))
    others = changed(host={"PortBindings": {}}, net={"Ports": {"6006/tcp": [{"HostIp": "0.0.0.0", "HostPort": "32769"}]}})
    assert "port 6006/tcp: no service of Triton uses it" in lines(others)


# Options of tritonserver


@pytest.mark.parametrize(
    ("arguments", "pairs", "strange"),
    [
        (["--model-rep", "/a", "--http-po=9000"], [("model-repository", "/a"), ("http-port", "9000")], []),
        (["--disable", "--exit-on", "false"], [("disable-auto-complete-config", ""), ("exit-on-error", "false")], []),
        (["--http-r=trace:a=b"], [("http-restricted-api", "trace:a=b")], []),
        # Exact names first, whatever begins like them
        (["--grpc-use-ssl=1", "--rate-limit=off"], [("grpc-use-ssl", "1"), ("rate-limit", "off")], []),
        # Of 24.01, which has no model-config-name
        (["--model-con=explicit"], [("model-control-mode", "explicit")], []),
        (["--http-m=1"], [("http-max-input-size", "1")], []),
        # Ambiguous, and of a later release
        (["--http=1", "--new-one=2"], [("http", "1"), ("new-one", "2")], []),
        (["--log-info=1", "--", "--log-error=1"], [("log-info", "1")], ["--log-error=1"]),
    ],
)  # fmt: skip
def test_beginnings_of_options_stand_for_them(arguments: list[str], pairs: list[tuple[str, str]], strange: list[str]) -> None:
    assert options.options(arguments) == (pairs, strange)


def test_a_server_with_abbreviated_options_is_read_like_any_other() -> None:
    argv = ["tritonserver", "--model-rep", "/models", "--http-po", "9000", "--allow-met=false", "--http-res=trace:admin-key=s3cr3t"]
    variables, _left_out, vault = translation.translate({**found("guide", argv)}, "npu-1", "/var/lib/npufleet")
    assert options.endpoint(CONTAINERS["guide"], argv) == ("172.17.0.2", 9000)
    assert options.repositories(argv, "/") == ["/models"] and options.key_headers(argv) == {"admin-key": "s3cr3t"}
    assert variables["triton_server_allow_metrics"] is False
    assert "triton_server_extra_args" not in variables and "s3cr3t" in vault.values()


def test_options_that_the_managed_server_has_otherwise_are_told() -> None:
    argv = [*GUIDE, "--http-address=10.9.8.7", "--grpc-address=0.0.0.0", "--http-restricted-api=model-repository,warp:k=s3cr3t",
            "--grpc-restricted-protocol=s3cr3t"]  # fmt: skip
    given = changed()
    given["process"] = {**given["process"], "argv": argv, "user": "1000"}
    told = lines(given)
    for word in (
        "--http-address=10.9.8.7: the managed server listens on every address",
        "--http-restricted-api of warp: the managed server can only restrict ",
        "--grpc-restricted-protocol of another API: the managed server can only restrict ",
        "user 1000 of the server process",
    ):
        assert any(line.startswith(word) for line in told), (word, told)
    assert len(told) == 4 and "s3cr3t" not in " ".join(told)


# Processes


def test_a_command_that_does_more_than_to_start_the_server_is_told() -> None:
    told = translation.translate(found("shell", GUIDE), "npu-1", "/var/lib/npufleet").left_out
    given = changed(config={"Cmd": ["/opt/bin/tritonserver", "--id=a"]})
    given["process"]["main"] = True
    assert "command sh: only the start of tritonserver is adopted, see `docker inspect` for the rest" in told
    assert lines(given) == []
    assert any(line.startswith("command /start.sh:") for line in lines(changed(config={"Entrypoint": ["/start.sh"]})))


def test_other_processes_are_told_or_in_the_way() -> None:
    given = {**changed(), "others": [{"pid": 7, "program": "python3 exporter.py"}, {"pid": 8, "program": "a\x1b[31m{{ 7 }}"}]}
    assert lines(given) == [
        "process 7 (python3 exporter.py) beside the server: the managed container does not start it",
        "process 8 (a??31m?? 7 ??) beside the server: the managed container does not start it",
    ]
    assert action.obstacles(given) == []
    (reason,) = action.obstacles({**given, "others": [{"pid": 9, "program": "tritonserver"}]})
    assert reason == "another tritonserver (process 9) runs in it: move that server to another container"


PARENTS = {1: 0, 100: 1, 101: 100, 110: 1, 111: 110, 112: 111, 120: 100, 130: 1, 140: 111}
COMMANDS = {
    # The container's own command keeps it, hands started a shell in it and there the server with a stub
    100: ["bash", "-c", "while true; do sleep 60; done"], 101: ["sleep", "60"], 110: ["bash"], 111: ["tritonserver", "--id=a"],
    112: ["triton_python_backend_stub"], 120: ["python3", "/srv/exporter.py", "--token=s3cr3t"], 130: ["/usr/sbin/sshd", "-D"],
    140: [],
}  # fmt: skip


def test_processes_that_are_no_part_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def raw(path: str) -> bytes:
        pid = int(path.split("/")[2])
        if path.endswith("status"):
            return f"PPid:\t{PARENTS[pid]}\n".encode()
        return b"".join(word.encode() + b"\0" for word in COMMANDS[pid])

    monkeypatch.setattr(module, "raw", raw)
    engine = FakeEngine({"/containers/abc/top": {"Titles": ["UID", "PID"], "Processes": [["0", str(pid)] for pid in COMMANDS]}})()
    inspect = {"Id": "abc", "State": {"Pid": 100}, "Config": {"Cmd": COMMANDS[100]}}
    assert module.others_of(engine, inspect, 111) == [
        {"pid": 120, "program": "python3 exporter.py"},
        {"pid": 130, "program": "sshd"},
    ]
