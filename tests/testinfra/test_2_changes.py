"""What happens to a converged fleet: nothing on a second run, drift named and repaired. Models in every mode: models/."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import KEY, LEASE, NPU_HOSTS, OUTPUT, ROOT, ask, connect, inspect, playbook

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""


@pytest.fixture(scope="module")
def first():
    return connect(FIRST)


def test_a_second_run_changes_nothing():
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert set(run.changed().values()) == {0}, run.output
    # The plan and two grouping tasks at most: a host without a plan takes no part in anything else.
    assert all(counts["ok"] <= 2 for counts in run.recap.values()), run.output


def test_check_mode_on_a_converged_fleet_reports_nothing():
    run = playbook("site.yml", "--check", "--diff")
    assert run.code == 0, run.output
    assert set(run.changed().values()) == {0}, run.output


def test_status_is_zero_when_in_sync():
    assert playbook("status.yml").code == 0


def test_drift_of_every_kind_is_named_and_one_run_repairs_it(first):
    """A killed container on the last host; on the first one a container with another ulimit, and an edited config."""
    last = connect(NPU_HOSTS[-1])
    killed = inspect(last)["Id"]
    last.check_output("docker kill triton")
    facts = inspect(first)
    image, arguments = facts["Image"], shlex.join(facts["Config"]["Cmd"])
    first.check_output("docker rm --force triton")
    first.check_output(
        "docker run --detach --name triton --privileged --shm-size 1g --ulimit memlock=-1 --ulimit stack=33554432 "
        "--restart unless-stopped --stop-timeout 45 --log-driver json-file --log-opt max-size=50m --log-opt max-file=5 "
        "--publish 0.0.0.0:8000:8000 --publish 0.0.0.0:8001:8001 --publish 0.0.0.0:8002:8002 "
        "--volume /var/lib/npufleet:/var/lib/npufleet:ro --volume /usr/local/bin/rbln-stat:/usr/local/bin/rbln-stat:ro "
        f"--volume /etc/npufleet/server:/etc/npufleet/server:ro {image} {arguments}"
    )
    release = first.check_output("readlink /var/lib/npufleet/served/digits")
    first.check_output("sed -i 's/max_batch_size: 4/max_batch_size: 2/' /var/lib/npufleet/served/digits/config.pbtxt")

    differ = {FIRST, NPU_HOSTS[-1]}
    status = playbook("status.yml")
    assert status.code == 2, status.output
    report = {row["host"]: row["report"] for row in json.loads((OUTPUT / "status.json").read_text())["hosts"]}
    assert {host for host, lines in report.items() if lines} == differ, report
    for host, *words in (
        (NPU_HOSTS[-1], "server container", "exited (137)", "running"),
        (FIRST, "server container.ulimits", "33554432", "67108864"),
        (FIRST, "models digits", "config.pbtxt was changed"),
    ):
        assert any(all(word in line for word in words) for line in report[host]), (words, report[host])
    check = playbook("site.yml", "--check", "--diff")
    assert check.code == 0, check.output
    assert {host for host, changed in check.changed().items() if changed} == differ, check.output

    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert {host for host, changed in run.changed().items() if changed} == differ, run.output
    assert run.output.count("PLAY [Roll out in batches]") == 2, run.output
    assert playbook("status.yml").code == 0
    assert inspect(last)["Id"] == killed
    assert {ulimit["Name"]: ulimit["Hard"] for ulimit in inspect(first)["HostConfig"]["Ulimits"]}["stack"] == 67108864
    assert first.run("docker inspect triton-previous").rc != 0
    assert first.check_output("readlink /var/lib/npufleet/served/digits") != release
    assert ask(first, "/v2/models/digits/config")["max_batch_size"] == 4


def test_a_key_that_is_lost_is_made_anew_and_the_server_started_with_it(first):
    before, started = inspect(first)["Id"], inspect(first)["State"]["StartedAt"]
    lost = first.file(KEY).content_string
    first.check_output("rm %s", KEY)
    status = playbook("status.yml")
    assert status.code == 2, status.output
    report = {host["host"]: host["report"] for host in json.loads((OUTPUT / "status.json").read_text())["hosts"]}
    for words in ("server key is missing, expected", "server key in use is another key, expected"):
        assert any(words in line for line in report[FIRST]), report[FIRST]
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert first.file(KEY).content_string != lost
    assert first.file(KEY).content_string.strip() not in run.output
    assert (inspect(first)["Id"], inspect(first)["State"]["StartedAt"] != started) == (before, True)
    assert {model["state"] for model in ask(first, "/v2/repository/index", "POST")} == {"READY"}
    assert playbook("status.yml").code == 0


def test_a_container_that_does_not_serve_gives_way_to_the_one_before_and_stops_the_rollout(first):
    before = inspect(first)["Id"]
    run = playbook("site.yml", "-e", '{"triton_server_extra_args": ["--no-such-option"]}')
    assert run.code == 2, run.output
    assert f"{FIRST}: the new container does not serve what it should (the previous server serves again)" in run.output
    assert "unrecognized option" in run.output or "no-such-option" in run.output
    assert inspect(first)["Id"] == before
    assert inspect(first)["State"]["Running"] is True
    assert first.run("docker inspect triton-previous").rc != 0
    assert "no further batch starts" in run.output
    assert not first.file(LEASE).exists, "the watchdog is still held off"
    others = {host: counts["changed"] for host, counts in run.recap.items() if host != FIRST}
    assert set(others.values()) == {0}, run.output
    assert playbook("status.yml").code == 0


def test_the_inventorys_batches_are_the_ones_that_run(tmp_path):
    """A value of the inventory, not only an extra variable, has to reach `serial`, which has no host of its own."""
    for name in NPU_HOSTS:
        connect(name).check_output("rm /etc/modules-load.d/npufleet.conf")
    variables = tmp_path / "hosts.yml"
    variables.write_text("npu_hosts: {vars: {npufleet_rollout_serial: 2}}\n")
    run = playbook("site.yml", "--inventory", str(variables))
    assert run.code == 0, run.output
    assert run.output.count("PLAY [Roll out in batches]") == -(-len(NPU_HOSTS) // 2), run.output


def test_another_container_is_not_for_models_yml(first):
    before = inspect(first)["Id"]
    run = playbook("models.yml", "--limit", FIRST, "-e", "triton_server_shm_size=2g")
    assert run.code == 2, run.output
    assert "container.shm_size" in run.output
    assert "Run playbooks/site.yml" in run.output
    assert inspect(first)["Id"] == before


def test_a_wrong_golden_label_turns_the_check_red(tmp_path: Path):
    for name in ("checks", "golden"):
        shutil.copytree(ROOT / "files" / name, tmp_path / name)
    path = tmp_path / "checks" / "digits.yml"
    path.write_text(path.read_text().replace("          0, 1, 2,", "          7, 1, 2,", 1))
    directories = {"inference_check_checks_dir": [f"{tmp_path}/checks"], "inference_check_golden_dir": [f"{tmp_path}/golden"]}
    run = playbook("check.yml", "-e", json.dumps(directories))
    assert run.code == 2, run.output
    results = [json.loads(entry.read_text()) for entry in (OUTPUT / "check").glob("*.json")]
    failed = [check["name"] for result in results for check in result["checks"] if not check["ok"]]
    assert failed == ["digits/http/digit 0"], failed


def test_the_check_is_green_with_the_true_labels():
    run = playbook("check.yml")
    assert run.code == 0, run.output
    results = [json.loads(path.read_text()) for path in (OUTPUT / "check").glob("*.json")]
    assert len(results) == len(NPU_HOSTS)
    assert all(len(result["checks"]) >= 20 for result in results)


def test_an_unreachable_host_is_told_and_drawn(tmp_path: Path):
    """Also when no other host is asked: the report is for that moment."""
    page = OUTPUT / "report/index.html"
    page.unlink(missing_ok=True)
    away = tmp_path / "away.yml"
    away.write_text(f"npu_hosts: {{hosts: {{{FIRST}: {{ansible_host: 127.0.0.1, ansible_port: 1}}}}}}\n")
    for name in ("status.yml", "check.yml"):
        run = playbook(name, "--inventory", str(away), "--limit", FIRST)
        assert run.code == 4, run.output
        assert f"report: {page}" in run.output
    found = {host["host"]: host for host in json.loads((OUTPUT / "status.json").read_text())["hosts"]}
    # Those that were not asked are as they were.
    assert set(NPU_HOSTS) <= set(found)
    assert (found[FIRST]["state"], found[FIRST]["plan"]) == ("unreachable", [])
    assert "Connection refused" in found[FIRST]["report"][0]
    assert "Connection refused" in json.loads((OUTPUT / f"check/{FIRST}.json").read_text())["msg"]
    assert "Connection refused" in page.read_text()
    for name in ("status.yml", "check.yml"):
        run = playbook(name)
        assert run.code == 0, run.output
    assert "Connection refused" not in page.read_text()
    assert page.read_text().count("data:image/png;base64,") >= 10
