"""The state of every host after a converge, read back from kernel, engine, server and Prometheus."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from conftest import KEY, LAB, NPU_HOSTS, OUTPUT, ask, connect, inspect, page, playbook

NPUS = LAB.get("all", {}).get("vars", {}).get("lab_npus", 0)


def test_there_are_hosts_to_test():
    assert len(NPU_HOSTS) >= 2


def test_driver_is_the_one_of_the_row_in_the_kernel(npu):
    assert npu.file("/sys/module/rebellions/version").content_string.strip() == "1.1.67"
    assert npu.package("rebellions").version == "1.1.67"


def test_driver_and_kernel_are_held(npu):
    held = npu.check_output("apt-mark showhold").split()
    assert "rebellions" in held
    assert f"linux-image-{npu.check_output('uname -r')}" in held


def test_module_is_loaded_at_boot(npu):
    assert npu.file("/etc/modules-load.d/npufleet.conf").content_string == "rebellions\n"


def test_every_card_on_the_bus_is_listed_normal(npu):
    bus = npu.check_output("lspci -d 1eff:").splitlines()
    listed = json.loads(npu.check_output("rbln-stat -j"))["devices"]
    assert len(bus) == len(listed) == NPUS
    assert {device["status"] for device in listed} == {"normal"}
    assert {device["name"] for device in listed} == {"RBLN-CA12"}


def test_device_nodes_are_there(npu):
    for name in [*(f"rbln{number}" for number in range(NPUS)), "rsd0"]:
        assert npu.run("test -c /dev/%s", name).rc == 0, name


def test_engine_keeps_what_was_configured_before(npu):
    daemon = json.loads(npu.file("/etc/docker/daemon.json").content_string)
    assert daemon["log-driver"] == "json-file"
    assert daemon["log-opts"] == {"max-size": "50m", "max-file": "5"}
    before = {"default-runtime", "runtimes"} & set(daemon)
    assert before in (set(), {"default-runtime", "runtimes"})
    assert npu.check_output("docker info --format '{{.LoggingDriver}}'") == "json-file"


@pytest.mark.parametrize("unit", ["docker.service", "containerd.service"])
def test_units_have_their_memlock_limit(npu, unit):
    assert "LimitMEMLOCK=infinity" in npu.file(f"/etc/systemd/system/{unit}.d/50-npufleet.conf").content_string
    assert npu.check_output("systemctl show %s --property NeedDaemonReload --value", unit) == "no"


def test_container_has_the_guides_flags(npu):
    facts = inspect(npu)
    host = facts["HostConfig"]
    assert facts["State"]["Running"] is True
    assert host["Privileged"] is True
    assert host["ShmSize"] == 1073741824
    assert {ulimit["Name"]: (ulimit["Soft"], ulimit["Hard"]) for ulimit in host["Ulimits"]} == {
        "memlock": (-1, -1),
        "stack": (67108864, 67108864),
    }
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "5"}}
    assert facts["Config"]["StopTimeout"] == 45


def test_container_publishes_its_three_ports(npu):
    bindings = inspect(npu)["HostConfig"]["PortBindings"]
    assert {port: bound[0]["HostPort"] for port, bound in bindings.items()} == {
        "8000/tcp": "8000",
        "8001/tcp": "8001",
        "8002/tcp": "8002",
    }


# What a stranger asks: shows the status, and tries to have code of his own run
STRANGER = """
import base64, json, sys, urllib.error, urllib.request
code = base64.b64encode(b"open('/tmp/stranger', 'w').close()").decode()
body = {"parameters": {"config": json.dumps({"backend": "python", "max_batch_size": 0}), "file:1/model.py": code}}
request = urllib.request.Request("http://127.0.0.1:8000" + sys.argv[1], json.dumps(body).encode(), method=sys.argv[2])
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.mark.parametrize(
    ("method", "resource"),
    [
        ("POST", "/v2/repository/models/stranger/load"),
        ("POST", "/v2/repository/models/digits/unload"),
        ("POST", "/v2/repository/index"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/trace/setting"),
        ("GET", "/v2/logging"),
    ],
)
def test_doors_are_closed_to_who_has_no_key(npu, method, resource):
    assert npu.check_output("python3 -c %s %s %s", STRANGER, resource, method) == "403"
    assert npu.run("docker exec triton test -e /tmp/stranger").rc == 1


def test_key_is_the_hosts_own_and_roots_alone(npu):
    file, place = npu.file(KEY), npu.file(str(Path(KEY).parent))
    assert (file.user, oct(file.mode), place.user, oct(place.mode)) == ("root", "0o600", "root", "0o700")
    key = file.content_string.strip()
    assert len(key) >= 43
    assert key not in json.dumps(inspect(npu))
    assert npu.run("grep --recursive --quiet --fixed-strings %s /var/lib/npufleet /etc/systemd /root", key).rc == 1
    assert npu.run("grep --recursive --files-with-matches --fixed-strings %s /etc/npufleet", key).stdout.split() == [KEY]
    others = [host for host in NPU_HOSTS if host != npu.inventory_name]
    assert key not in [connect(other).file(KEY).content_string.strip() for other in others]


def test_services_of_clouds_are_off(npu, lock):
    assert lock["options"]
    assert {f"--{option}=false" for option in lock["options"]} <= set(inspect(npu)["Config"]["Cmd"])


def test_store_is_mounted_read_only(npu):
    mounts = {mount["Destination"]: mount for mount in inspect(npu)["Mounts"]}
    assert mounts["/var/lib/npufleet"]["RW"] is False
    assert npu.run("docker exec triton touch /var/lib/npufleet/served/x").rc != 0


def test_stack_limit_holds_inside(npu):
    assert npu.check_output("docker exec triton sh -c 'ulimit -s'") == str(67108864 // 1024)


def test_image_is_the_locked_one(npu, lock):
    assert inspect(npu)["Image"] == lock["id"]
    assert npu.check_output("docker image inspect --format '{{.Id}}' %s", lock["reference"]) == lock["id"]


def test_image_carries_no_login(npu, lock):
    secret = LAB["all"]["vars"]["lab_artefact_password"]
    assert secret not in npu.check_output("docker history --no-trunc --format json %s", lock["reference"])
    assert secret not in npu.check_output("docker image inspect %s", lock["reference"])
    assert secret not in json.dumps(inspect(npu))
    assert npu.check_output("docker image inspect --format {{.Id}} %s", lock["reference"]) == lock["id"]
    # Of the same ID is the same content, which takes long to read
    if npu.inventory_name == NPU_HOSTS[0]:
        # Shorter lines, because grep keeps a whole line in memory
        found = npu.run("docker save %s | tr '\\0' '\\n' | grep --text --count --fixed-strings %s", lock["reference"], secret)
        assert found.stdout.strip() == "0", found.stderr


def test_served_models_are_ready_and_of_the_stored_release(npu):
    index = {model["name"]: model for model in ask(npu, "/v2/repository/index", "POST")}
    assert {name: (model["version"], model["state"]) for name, model in index.items()} == {
        "digits": ("1", "READY"),
        "digits_guide": ("1", "READY"),
    }
    for name in index:
        served = ask(npu, f"/v2/models/{name}/config")["parameters"]
        link = npu.check_output("readlink /var/lib/npufleet/served/%s", name)
        record = json.loads(npu.file(f"/var/lib/npufleet/releases/{name}/{link.split('/')[-1]}.json").content_string)
        assert served["npufleet_release"]["string_value"] == record["release"]
        assert served["npufleet_source"]["string_value"] == record["source"]
        assert link.endswith(record["release"][:12])


def test_every_blob_is_what_its_name_says(npu):
    lines = npu.check_output("sha256sum /var/lib/npufleet/blobs/sha256/*").splitlines()
    assert lines
    for line in lines:
        digest, path = line.split()
        assert path.endswith(digest)


def test_source_digests_are_equal_on_all_hosts():
    status = playbook("status.yml")
    assert status.code == 0, status.output
    hosts = json.loads((OUTPUT / "status.json").read_text())["hosts"]
    images = {host["actual"]["image"]["id"] for host in hosts if "image" in host["actual"]}
    assert len(images) == 1


def test_instances_are_spread_over_all_npus(npu):
    group = ask(npu, "/v2/models/digits/config")["instance_group"]
    assert [(entry["kind"], entry["count"]) for entry in group] == [("KIND_MODEL", NPUS)]
    used = {context["npu"] for context in json.loads(npu.check_output("rbln-stat -j"))["contexts"]}
    assert len(used) == NPUS


def test_a_real_answer(npu):
    """One handwritten zero, asked by hand over HTTP, without the project's own client."""
    import numpy
    from conftest import ROOT

    image = numpy.load(ROOT / "files/golden/digits/images.npy")[0]
    config = ask(npu, "/v2/models/digits/config")
    body = {
        "inputs": [
            {"name": "INPUT__0", "datatype": "FP32", "shape": [1, *image.shape], "data": image.flatten().tolist()},
        ]
    }
    script = (
        "import json, sys, urllib.request as u; "
        "print(u.urlopen('http://127.0.0.1:8000/v2/models/digits/infer', data=sys.argv[1].encode()).read().decode())"
    )
    answer = json.loads(npu.check_output("python3 -c %s %s", script, json.dumps(body)))
    scores = answer["outputs"][0]["data"]
    assert len(scores) == int(config["output"][0]["dims"][0]) == 10
    assert scores.index(max(scores)) == 0


def test_prometheus_scrapes_every_server(ops):
    answer = json.loads(page(ops, 9090, "/api/v1/query?query=up"))["data"]["result"]
    ups = {entry["metric"]["host"]: entry["value"][1] for entry in answer if entry["metric"]["job"] == "npufleet-triton"}
    assert ups == dict.fromkeys(NPU_HOSTS, "1")


def test_lock_pins_the_archive_that_was_kept(lock):
    from conftest import CACHE

    archive = CACHE / "images" / f"{lock['id'].removeprefix('sha256:')}.tar"
    digest = hashlib.sha256()
    with archive.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    assert lock["archive"] == f"sha256:{digest.hexdigest()}"
    assert lock["versions"]["rebel-compiler"].startswith("0.6.2+lab")
