"""Changes of two hosts behind a load balancer while clients send requests at a fixed rate: none of them fails."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import (
    INVENTORY,
    LAB,
    LEASE,
    OUTPUT,
    ROOT,
    Run,
    connect,
    environment,
    inspect,
    lose_power,
    playbook,
    playbook_process,
)
from open_loop import HTTP_PORT, SMALLEST, HttpConnections, OpenLoop, Span, number_of
from test_3_reboot import wait_for

HOSTS = ("npu1", "npu2")
MORE = ("--inventory", str(ROOT / "molecule/rollout/inventory/hosts.yml"))
TRAFFIC = "/var/lib/npufleet/traffic.json"
# The record of the last rollouts on each host, newest first
ROLLOUTS = "/var/lib/npufleet/rollouts.json"
RATES = {"http": 20.0, "grpc": 20.0, "stream": 1.0}
OPTION = {"triton_server_extra_args": ["--http-thread-count=9"]}
# Releases that pass their checks, whose numbers are small
EXECUTE = "        responses = []\n"
CLIENTS = f"max(abs(pb_utils.get_input_tensor_by_name(r, 'X').as_numpy()).max() for r in requests) >= {SMALLEST}"
FAILS = f"{EXECUTE}        if {CLIENTS}:\n            raise ValueError('a fault')\n"
SLOW = f"{EXECUTE}        if {CLIENTS}:\n            threading.Event().wait(0.4)\n"


def address(host: str) -> str:
    """Return the address of a host of the lab."""
    return str(LAB["_meta"]["hostvars"][host]["ansible_host"])


class PausedRun(NamedTuple):
    """A run that pauses after its first batch, and the file with its output."""

    process: subprocess.Popen[str]
    output: Path

    def finished(self) -> Run:
        """Wait for the end of the run and return its result."""
        wait_for(lambda: self.process.poll() is not None)
        return Run(self.process.returncode, self.output.read_text())


class Rollout:
    """The hosts, their balancer and its clients."""

    def __init__(self, directory: Path, clients: OpenLoop) -> None:
        self.directory, self.clients = directory, clients
        self.hosts = {name: connect(name) for name in HOSTS}
        self.balancer = connect("lb1")
        # Variables that an earlier test has changed for good
        self.current: dict[str, Any] = {}

    def run(self, name: str, **variables: Any) -> Run:
        return playbook(name, *MORE, "-e", json.dumps({**self.current, **variables}))

    @contextlib.contextmanager
    def paused(self, name: str, **variables: Any) -> Iterator[PausedRun]:
        """Start a playbook and yield its run when it pauses. After the block, a run that has not ended is killed."""
        output = self.directory / f"output-{time.monotonic_ns()}"
        process = playbook_process(name, *MORE, "-e", json.dumps({**self.current, **variables}), output=output)
        try:
            wait_for(lambda: "Pausing for" in output.read_text() or process.poll() is not None)
            assert process.poll() is None, f"the run was over before its pause: {output.read_text()}"
            yield PausedRun(process, output)
        finally:
            if process.poll() is None:
                lose_power(process)

    def edited(self, edition: int, execute: str = EXECUTE) -> dict[str, str]:
        """Return variables with another edition of alpha."""
        repository = self.directory / f"models-{time.monotonic_ns()}"
        shutil.copytree(ROOT / "tests/faults/models", repository)
        file = repository / "alpha/1/model.py"
        text = file.read_text()
        for old, new in (("EDITION = 1", f"EDITION = {edition}"), (EXECUTE, execute)):
            assert text.count(old) == 1
            text = text.replace(old, new)
        file.write_text(text)
        return {"rollout_repository": str(repository)}

    def servers(self) -> dict[str, dict[str, Any]]:
        """Return {host: its server on the balancer}."""
        return self.module("balancer_info", "")["servers"]

    def module(self, name: str, arguments: str) -> dict[str, Any]:
        """Return the result of a module on the balancer."""
        command = ["ansible", "lb1", "-i", str(INVENTORY), "-b", "-m", f"npufleet.triton.{name}", "-a", arguments]
        json_results = {**environment(), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        done = subprocess.run(command, cwd=ROOT, env=json_results, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])

    def states(self) -> dict[str, tuple[str, str, int]]:
        return {name: (found["state"], found["health"], found["weight"]) for name, found in self.servers().items()}

    def runs(self) -> dict[str, str]:
        """Return which container of each host answers."""
        found = {name: inspect(host) for name, host in self.hosts.items()}
        return {name: container["Id"] + container["State"]["StartedAt"] for name, container in found.items()}

    def assert_same_containers(self, before: dict[str, str]) -> None:
        """Assert that the containers of `before` still answer. Show how a container ended otherwise."""
        shown = "--format '{{.Action}} {{.Actor.Attributes.exitCode}}'"
        ended = f"docker events --since 10m --until 0s --filter event=die --filter event=oom {shown}"
        for name, found in self.runs().items():
            host = self.hosts[name]
            assert found == before[name], f"{name}: {host.check_output(ended)} {host.run('docker logs --tail 5 triton').stderr}"

    def editions(self) -> dict[str, int]:
        """Return {host: the edition of alpha with which its own server answers}."""
        return {name: HttpConnections(address(name), HTTP_PORT, None).double(number_of(0)) for name in HOSTS}

    def records(self) -> list[dict[str, Any]]:
        """Return the records of rollouts on the controller, oldest first."""
        return [json.loads(path.read_text()) for path in sorted((OUTPUT / "rollouts").glob("*.json"))]

    def newest_entry(self, host: str) -> dict[str, Any]:
        """Return the last rollout in the record of a host."""
        return json.loads(self.hosts[host].file(ROLLOUTS).content_string)[0]

    def left_over(self) -> list[str]:
        """Return the files with which a run still limits the traffic of a host, or has its lease."""
        return [f"{name}: {path}" for name, host in self.hosts.items() for path in (TRAFFIC, LEASE) if host.file(path).exists]


FULL = dict.fromkeys(HOSTS, ("ready", "up", 100))


@pytest.fixture(scope="session")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollout]:
    """The hosts as they are, with clients that send requests from now on."""
    with OpenLoop(address("lb1"), RATES) as clients:
        found = Rollout(tmp_path_factory.mktemp("rollout"), clients)
        wait_for(lambda: len(clients.samples) > 50)
        yield found


def assert_all_answered(span: Span, *editions: int, at_least: int = 100) -> None:
    assert not span.failed, f"{len(span.failed)} of {len(span.samples)} failed: {span.failed[:20]}"
    assert not span.wrong
    assert len(span.samples) >= at_least
    assert span.editions == set(editions)


def changed(record: dict[str, Any]) -> list[list[str]]:
    """Return the hosts of each batch of a record that has ended."""
    return [sorted(batch["hosts"]) for batch in record["batches"]]


def answers_over_http(span: Span) -> list[int]:
    """Return the editions that answered over HTTP. Streams that stay open do not influence the choice of their servers."""
    return [sample.edition for sample in span.samples if sample.kind == "http" and not sample.error]


def test_a_second_run_changes_nothing(rollout: Rollout) -> None:
    with rollout.clients.span() as span:
        run = rollout.run("site.yml")
    assert (run.code, set(run.changed().values())) == (0, {0}), run.output
    assert rollout.states() == FULL
    # This run takes a second or two.
    assert_all_answered(span, 1, at_least=20)


def test_a_changed_model_loses_no_request_and_is_judged_by_those_of_clients(rollout: Rollout) -> None:
    before = rollout.runs()
    with rollout.clients.span() as span:
        run = rollout.run("models.yml", **rollout.edited(2))
    assert run.code == 0, run.output
    assert_all_answered(span, 1, 2)
    for name in HOSTS:
        assert re.search(rf"{name}: good \(0 of \d+ requests failed", run.output), run.output
    rollout.assert_same_containers(before)
    assert span.closed == 0
    assert rollout.states() == FULL


def test_a_changed_option_of_the_server_drains_one_host_after_the_other(rollout: Rollout) -> None:
    before = rollout.runs()
    rollout.current = OPTION
    with rollout.clients.span() as span:
        run = rollout.run("site.yml")
    assert run.code == 0, run.output
    # The new containers serve the release of the inventory again.
    assert_all_answered(span, 1, 2)
    assert all(entry not in before.values() for entry in rollout.runs().values())
    assert span.closed <= len(HOSTS)
    assert rollout.states() == FULL
    assert not any(host.file(TRAFFIC).exists for host in rollout.hosts.values())


@pytest.mark.parametrize("fault", ["fails", "slow"])
def test_a_bad_release_is_stopped_on_the_first_host_and_restored(rollout: Rollout, fault: str) -> None:
    before = rollout.runs()
    with rollout.clients.span() as span:
        run = rollout.run("models.yml", **rollout.edited(3, {"fails": FAILS, "slow": SLOW}[fault]))
    assert run.code == 2, run.output
    assert "the verdict about the requests of clients is bad" in run.output, run.output
    assert "the previous releases serve again" in " ".join(run.output.split()), run.output
    rollout.assert_same_containers(before)
    tasks = re.findall(r"^TASK \[(?:\S+ : )?(.*?)\]", run.output, re.MULTILINE)
    restored, proven, back = (
        len(tasks) - 1 - tasks[::-1].index(task)
        for task in ("Restore the previous state", "Prove the server by inference", "Return the host to the traffic")
    )
    assert restored < proven < back or proven < restored < back, tasks
    unary = [sample for sample in span.samples if sample.kind != "stream"]
    if fault == "fails":
        assert 0 < len(span.failed) <= 0.3 * len(unary), span.failed
        assert {2, 3}.isdisjoint(span.editions)
    else:
        assert_all_answered(span, 1, 3)
    assert rollout.states() == FULL
    assert not any(host.file(TRAFFIC).exists for host in rollout.hosts.values())
    with rollout.clients.span() as after:
        wait_for(lambda: len(after.samples) > 150)
    assert_all_answered(after, 1)


def test_the_drain_of_an_operator_stays_through_a_rollout_and_a_reload(rollout: Rollout) -> None:
    rollout.module("balancer_server", "name=npu2 state=drained reason='fan is loud'")
    try:
        with rollout.clients.span() as span:
            before = rollout.runs()
            run = rollout.run("site.yml", triton_server_extra_args=["--http-thread-count=10"])
            assert run.code == 2, run.output
            assert "npufleet_allow_outage" in run.output
            rollout.assert_same_containers(before)
            run = rollout.run("models.yml", **rollout.edited(4))
            assert run.code == 0, run.output
            assert "npu2 stays drained on lb1: fan is loud" in run.output
            assert "npu2: not judged (0 requests, expected at least 20" in run.output
            rollout.balancer.check_output("systemctl reload haproxy")
        assert_all_answered(span, 1, 4)
        servers = rollout.servers()
        assert servers["npu1"]["state"] == "ready"
        assert (servers["npu2"]["state"], servers["npu2"]["drained"]["kind"]) == ("drained", "operator")
        assert servers["npu2"]["drained"]["reason"] == "fan is loud"
    finally:
        rollout.module("balancer_server", "name=npu2 state=ready up_within=60")
    with rollout.clients.span() as span:
        run = rollout.run("site.yml")
    assert run.code == 0, run.output
    assert_all_answered(span, 1, 4)
    assert rollout.states() == FULL


def test_first_batch_gets_its_full_share_during_the_pause(rollout: Rollout) -> None:
    before = rollout.runs()
    # The pause is long enough for the observations on a busy machine.
    variables = {"npufleet_rollout_pause": 25, "npufleet_judge_seconds": 5, **rollout.edited(5)}
    with rollout.clients.span() as span, rollout.paused("models.yml", **variables) as paused:
        with rollout.clients.span() as pause:
            wait_for(lambda: len(answers_over_http(pause)) >= 100)
        assert rollout.editions() == {"npu1": 5, "npu2": 1}
        assert rollout.states() == FULL
        assert rollout.left_over() == []
        record = rollout.records()[-1]
        assert (record["pause"], record["planned"], changed(record)) == ("25", [["npu1"], ["npu2"]], [["npu1"]])
        # The change of npu2 has not begun, so the run has paused up to here.
        assert rollout.newest_entry("npu2")["run"] != record["run"]
        run = paused.finished()
    assert run.code == 0, run.output
    assert "a pause after the first batch for 25 s" in " ".join(run.output.split()), run.output
    assert run.output.count("Pausing for") == 1, run.output
    assert_all_answered(span, 1, 5)
    # The canary weight would give npu1 a fifth of the requests.
    answers = answers_over_http(pause)
    assert 0.3 < answers.count(5) / len(answers) < 0.7, answers
    rollout.assert_same_containers(before)
    assert (span.closed, rollout.states()) == (0, FULL)
    assert rollout.editions() == dict.fromkeys(HOSTS, 5)
    record = rollout.records()[-1]
    assert changed(record) == [["npu1"], ["npu2"]]
    for batch, name in zip(record["batches"], HOSTS):
        assert batch["hosts"][name]["verdict"]["verdict"] == "good", record
        assert rollout.newest_entry(name)["run"] == record["run"]


def test_rollout_killed_in_its_pause_continues_with_the_other_host(rollout: Rollout) -> None:
    # The hosts are drained and not judged. With the option, they return to the edition of the inventory.
    variables = {"triton_server_extra_args": ["--http-thread-count=13"], "npufleet_rollout_pause": 600, "npufleet_judge_seconds": 0}
    before = rollout.runs()
    with rollout.clients.span() as span:
        with rollout.paused("site.yml", **variables) as paused:
            lose_power(paused.process)
        killed = rollout.runs()
        assert {name for name in HOSTS if killed[name] != before[name]} == {"npu1"}
        assert rollout.states() == FULL
        assert rollout.left_over() == []
        run = rollout.run("site.yml", **variables)
    assert run.code == 0, run.output
    assert_all_answered(span, 1, 5)
    assert span.closed <= len(HOSTS)
    assert rollout.states() == FULL
    assert rollout.left_over() == []
    after = rollout.runs()
    assert after["npu1"] == killed["npu1"]
    assert after["npu2"] != killed["npu2"]
    # The second run neither drains nor changes npu1, and does not pause, because it has one batch.
    assert run.changed()["npu1"] == 0, run.output
    assert "[npu2 -> lb1" in run.output and "[npu1 -> lb1" not in run.output, run.output
    assert "Pausing for" not in run.output, run.output
    first, second = rollout.records()[-2:]
    assert (first["pause"], first["planned"], changed(first)) == ("600", [["npu1"], ["npu2"]], [["npu1"]])
    assert (second["pause"], second["planned"], changed(second)) == ("", [["npu2"]], [["npu2"]])
    # The newest entry of npu1 belongs to the killed run, so the second run has not held npu1.
    for name, record, batches in (("npu1", first, 2), ("npu2", second, 1)):
        host, entry = record["batches"][0]["hosts"][name], rollout.newest_entry(name)
        assert (host["failure"], host["in_flight"] is not None) == ("", True), record
        assert (entry["run"], entry["batch"], entry["batches"]) == (record["run"], 1, batches)
        assert entry["ended"] and not entry["failure"], entry
    history = rollout.run("history.yml", **variables)
    assert history.code == 0, history.output
    words = " ".join(history.output.split())
    for record, text in ((first, "1 host in 1 batch, 1 host not changed, pause 600"), (second, "1 host in 1 batch")):
        assert f"{record['began']} site.yml by {record['by']}: {text}" in words, history.output
    for text in ("batch 1: npu1: changed;", "batch 1: npu2: changed;", "not changed: npu2"):
        assert text in words, history.output
    for name, text in (("npu1", "batch 1 of 2: changed"), ("npu2", "batch 1 of 1: changed")):
        entry = rollout.newest_entry(name)
        assert f"rollout {entry['began']} site.yml by {entry['by']}, {text}" in words, history.output


def test_the_next_run_completes_the_drain_of_a_killed_rollout(rollout: Rollout) -> None:
    option = {"triton_server_extra_args": ["--http-thread-count=11"]}
    npu1 = rollout.hosts["npu1"]
    before = rollout.runs()
    with rollout.clients.span() as span:
        process = playbook_process("site.yml", *MORE, "-e", json.dumps(option))
        wait_for(lambda: npu1.file(TRAFFIC).exists or process.poll() is not None)
        wait_for(lambda: rollout.servers()["npu1"]["state"] == "drained" or process.poll() is not None)
        assert process.poll() is None, "the run was over before the host was drained"
        lose_power(process)
        assert rollout.servers()["npu1"]["drained"]["kind"] == "rollout"
        status = rollout.run("status.yml", **option)
        assert status.code == 2, status.output
        assert "npu1" in status.output
        run = rollout.run("site.yml", **option)
    assert run.code == 0, run.output
    assert_all_answered(span, 1)
    assert rollout.states() == FULL
    assert not any(host.file(TRAFFIC).exists for host in rollout.hosts.values())
    assert all(entry not in before.values() for entry in rollout.runs().values())
    assert rollout.run("status.yml", **option).code == 0


def test_the_commands_of_a_site_drain_and_undrain(rollout: Rollout) -> None:
    """docs/examples/drain.sh changes the balancer, as it would change one that npufleet does not manage."""
    if rollout.balancer.run("command -v socat").rc:
        rollout.balancer.check_output("apt-get install -y -qq --no-install-recommends socat")
    shell = rollout.directory / "shell"
    client = " ".join(LAB["all"]["vars"]["lab_docker"])
    shell.write_text(f'#!/bin/sh\nexec {client} exec -i {LAB["_meta"]["hostvars"]["lb1"]["lab_container"]} sh -c "$1"\n')
    calls = rollout.directory / "calls"
    hook = rollout.directory / "hook"
    hook.write_text(f"""#!/bin/sh
echo "$1 $NPUFLEET_HOST ${{NPUFLEET_WEIGHT:-}}" >> {calls}
BALANCER={shell} exec {ROOT}/docs/examples/drain.sh "$1"
""")
    for file in (shell, hook):
        file.chmod(0o755)
    commands = {name: [str(hook), name] for name in ("drain", "undrain", "is_drained")}
    option = {"triton_server_extra_args": ["--http-thread-count=12"], "npufleet_judge_seconds": 2, "npufleet_drain_timeout": 60}
    # Unlike npufleet, this site does not close a stream that stays open.
    rollout.clients.streaming.clear()
    try:
        with rollout.clients.span() as span:
            run = rollout.run("site.yml", npufleet_drain_hook="command", npufleet_drain_commands=commands, **option)
    finally:
        rollout.clients.streaming.set()
    assert run.code == 0, run.output
    assert_all_answered(span, 1)
    asked = [line.split() for line in calls.read_text().splitlines()]
    for name in HOSTS:
        steps = [(what, weight) for what, host, weight in asked if host == name and what != "is_drained"]
        assert steps == [("drain", "0"), ("undrain", "25"), ("undrain", "100")], asked
    assert rollout.states() == FULL
