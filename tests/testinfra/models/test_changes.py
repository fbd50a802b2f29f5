"""A model changes, is rolled back by hand, and changes again, on three hosts at once, each in another mode of control."""

from __future__ import annotations

import json
import re
import shutil
import time
from typing import Any

import pytest
from conftest import ROOT, ask, connect, inspect, page
from fleet import HOSTS, SLOW_LOAD, STORE, TRANSACTION, Fleet, address
from test_3_reboot import wait_for

# The fixture `place`
pytest_plugins = ["fleet"]


@pytest.fixture(scope="module")
def changed(place: Fleet) -> dict[str, str]:
    """Variables by which alpha is of another edition, and digits has one more parameter."""
    repository = place.directory / "repository"
    shutil.copytree(ROOT / "model_repository/digits", repository / "digits")
    config = repository / "digits/config.pbtxt"
    config.write_text(config.read_text() + '\nparameters { key: "edition" value { string_value: "second" } }\n')
    return {"models_repository": place.edited(alpha=[]), "npufleet_model_repository": str(repository)}


@pytest.fixture(scope="module")
def before(place: Fleet) -> dict[str, Any]:
    """{mode: what is so before anything changes}."""
    return {mode: _seen(host) for mode, host in place.hosts.items()}


def _seen(host: Any) -> dict[str, Any]:
    log = host.run("docker logs triton 2>&1").stdout
    return {
        "started": inspect(host)["State"]["StartedAt"],
        "loads": {model: log.count(f"successfully loaded '{model}'") for model in ("alpha", "beta", "digits")},
    }


def _edition(host: Any) -> str | None:
    return ask(host, "/v2/models/digits/config")["parameters"].get("edition", {}).get("string_value")


def _history(host: Any, count: int) -> set[tuple[str, str, str]]:
    lines = host.check_output(f"tail -{count} {STORE}/history.jsonl").splitlines()
    return {(line["model"], line["what"], line["result"]) for line in map(json.loads, lines)}


def _instances(host: Any, model: str) -> int:
    """How many instances of the served release tell what they are."""
    release = ask(host, f"/v2/models/{model}/config")["parameters"]["npufleet_release"]["string_value"]
    lines = page(host, 8002, "/metrics").splitlines()
    return sum(line.startswith("rbln_model_info{") and f'release="{release}"' in line for line in lines)


def test_a_second_run_changes_nothing(place: Fleet, before: dict[str, Any]) -> None:
    run = place.run("site.yml")
    assert (run.code, set(run.changed().values())) == (0, {0}), run.output
    for mode, host in place.hosts.items():
        assert f"--model-control-mode={mode}" in inspect(host)["Config"]["Cmd"]
        assert _seen(host) == before[mode]


def test_one_host_has_fetched_its_large_file_itself_with_the_login_of_the_server(place: Fleet) -> None:
    """And the others got it from the controller (molecule/models/inventory/hosts.yml)."""
    journal = connect("ops1").check_output("journalctl --unit npufleet-lab-artefacts --output cat").splitlines()
    asked = {line.split()[0] for line in journal if re.search(r'"GET \S+\.rbln HTTP/1.1" 200', line)}
    assert [mode for mode, name in HOSTS.items() if address(name) in asked] == ["poll"]


def test_a_changed_model_goes_live_and_no_other_is_loaded_again(
    place: Fleet, before: dict[str, Any], changed: dict[str, str]
) -> None:
    run = place.run("models.yml", **changed)
    assert run.code == 0, run.output
    place.wait_until_answered(edition=2, model="alpha")
    for mode, host in place.hosts.items():
        assert _edition(host) == "second"
        assert {model["state"] for model in ask(host, "/v2/repository/index", "POST")} == {"READY"}
        assert _instances(host, "digits") == 1, f"{mode}: the metrics of its instance went away with those of the one before it"
        seen = _seen(host)
        if mode == "none":
            assert seen["started"] != before[mode]["started"]
        else:
            assert seen["started"] == before[mode]["started"]
            assert seen["loads"] == {**before[mode]["loads"], **{m: before[mode]["loads"][m] + 1 for m in ("alpha", "digits")}}
    run = place.run("models.yml", **changed)
    assert (run.code, set(run.changed().values())) == (0, {0}), run.output


def test_a_rollback_by_hand_holds_until_it_is_forgotten(place: Fleet, before: dict[str, Any], changed: dict[str, str]) -> None:
    run = place.run("rollback.yml", **changed, rollback_to="0042-ffffffffffff")
    assert run.code == 2, run.output
    assert "model digits: found no release 0042-ffffffffffff here" in run.output
    run = place.run("rollback.yml", **changed, rollback_to="previous", rollback_models=["digits"], rollback_why="labels")
    assert run.code == 0, run.output
    for mode, host in place.hosts.items():
        assert f"{HOSTS[mode]}: digits went from " in run.output
        assert _edition(host) is None
        assert _history(host, 1) == {("digits", "rollback", "proven")}
        loads = _seen(host)["loads"]
        assert mode == "none" or loads["beta"] == before[mode]["loads"]["beta"]
    place.wait_until_answered(edition=2, model="alpha")

    run = place.run("models.yml", **changed)
    assert (run.code, set(run.changed().values())) == (0, {0}), run.output
    assert run.output.count("model digits is held at") >= len(HOSTS)
    assert place.run("status.yml", **changed).code == 0
    run = place.run("history.yml")
    assert run.code == 0, run.output
    assert "digits is held at" in run.output
    assert "labels" in run.output

    assert place.run("rollback.yml", **changed, rollback_forget=True).code == 0
    place.repair()
    place.wait_until_answered(edition=1)
    for mode, host in place.hosts.items():
        assert _edition(host) is None, mode


def test_two_controllers_at_once_change_one_after_the_other(place: Fleet) -> None:
    first = place.begin(f"test -e {TRANSACTION}", "models.yml", models_repository=place.edited(alpha=[SLOW_LOAD]))
    second = place.run("models.yml", models_repository=place.edited(edition=3, alpha=[]))
    assert first.wait(600) == 0
    assert second.code == 0, second.output
    place.wait_until_answered(edition=3, model="alpha")
    for host in place.hosts.values():
        lines = [json.loads(line) for line in host.check_output(f"tail -2 {STORE}/history.jsonl").splitlines()]
        assert [(entry["model"], entry["what"], entry["result"]) for entry in lines] == [("alpha", "deploy", "proven")] * 2
        assert lines[0]["to"] == lines[1]["from"]
    place.repair()


@pytest.mark.parametrize(("answer", "within", "code", "edition"), [("restored", 300, 2, 1), ("accepted", 300, 0, 2), ("", 3, 0, 1)])
def test_what_is_proven_is_kept_when_it_is_accepted(place: Fleet, answer: str, within: int, code: int, edition: int) -> None:
    """And put back where it is not wanted, or where nobody answers until its deadline: that is the host's own doing."""
    host = place.hosts["explicit"]
    variables = {"models_repository": place.edited(alpha=[]), "answer": answer, "within": within}
    run = place.run("../tests/testinfra/models/accept.yml", limit=HOSTS["explicit"], **variables)
    assert run.code == code, run.output
    refused = "the change was not accepted (the previous releases serve again): the traffic is slower"
    assert (refused in " ".join(run.output.split())) is (code == 2), run.output
    wait_for(lambda: not host.file(TRANSACTION).exists)
    wait_for(lambda: place.clients.answered("explicit", "alpha", time.monotonic() - 5, edition))
    last = json.loads(host.check_output(f"tail -1 {STORE}/history.jsonl"))
    assert (last["model"], last["what"]) == ("alpha", "deploy" if edition == 2 else "put back")
    place.repair()


def test_a_model_that_fits_alone_is_unloaded_first(place: Fleet) -> None:
    """Two instances have no room beside one of the release before."""
    began = time.monotonic()
    alone = {"limit": HOSTS["explicit"], "models_switch": "unload_first"}
    run = place.run("models.yml", **alone, models_instances=2)
    assert run.code == 0, run.output
    place.wait_until_answered(edition=1)
    assert _instances(place.hosts["explicit"], "digits") == 2
    now = time.monotonic()
    assert place.clients.heard("explicit", "digits", began, now).errors, "nothing was unloaded"
    assert not place.clients.heard("explicit", "alpha", began, now).errors
    run = place.run("models.yml", **alone)
    assert run.code == 0, run.output


def test_a_host_moves_to_another_mode_and_back(place: Fleet) -> None:
    moved, host = HOSTS["none"], place.hosts["none"]
    others = {entry: inspect(place.hosts[entry])["State"]["StartedAt"] for entry in ("poll", "explicit")}
    for mode in ("explicit", "none"):
        if mode == "explicit":
            run = place.run("models.yml", limit=moved, triton_server_model_control_mode=mode)
            assert run.code == 2, run.output
            assert "Run playbooks/site.yml" in run.output
        run = place.run("site.yml", limit=moved, triton_server_model_control_mode=mode)
        assert run.code == 0, run.output
        assert f"--model-control-mode={mode}" in inspect(host)["Config"]["Cmd"]
        place.wait_until_answered(edition=1)
        assert {other: inspect(place.hosts[other])["State"]["StartedAt"] for other in others} == others
    assert place.run("status.yml").code == 0


def test_a_dead_process_and_what_it_left_are_gone_with_a_restart_where_nobody_watches(place: Fleet) -> None:
    host, orphan = place.hosts["none"], "/dev/shm/triton_python_backend_shm_region_orphan"
    before = inspect(host)
    host.check_output("systemctl stop npufleet-watchdog")
    try:
        host.check_output("docker exec triton touch %s", orphan)
        # Not the shell that this is said to
        host.check_output("pkill -9 --full '[s]tub.*/served/alpha/'")
        run = place.run("recover.yml", limit=HOSTS["none"])
    finally:
        host.check_output("systemctl start npufleet-watchdog")
    assert run.code == 0, run.output
    assert "serves again and is proven, after the step restart" in run.output
    after = inspect(host)
    assert (after["Id"], after["State"]["StartedAt"] != before["State"]["StartedAt"]) == (before["Id"], True)
    assert host.run("docker exec triton test -e %s", orphan).rc == 1
    place.wait_until_answered(model="alpha")
