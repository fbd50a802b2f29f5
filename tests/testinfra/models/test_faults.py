"""Faults that roles, the engine, ssh and the watchdog have their part in, on three hosts, with clients that ask through it."""

from __future__ import annotations

import http.client
import json
import os
import select
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import LEASE
from fleet import HOSTS, INITIALIZE, SLOW_LOAD, STORE, TRANSACTION, Fleet, address
from stories import cells, judge, tells
from test_3_reboot import wait_for
from test_4_watchdog import signal, stubs

# The fixture `place`
pytest_plugins = ["fleet"]
# What a run says of a change that it took back
PUT_BACK = r"the server does not serve what it should \(the previous releases serve again\)"
PYTHON = 'backend: "python"\n'
DOUBLE = "            y = x * 2\n"
Told = dict[str, str]


@tells(transfer_killed=("alpha",))
def a_transfer_that_is_killed(place: Fleet) -> Told:
    repository = place.edited(alpha=[])
    Path(repository, "alpha/1/weights.bin").write_bytes(os.urandom(8 << 20))
    slow = ["--partial", "--inplace", "--bwlimit=400"]
    begun = f"find {STORE}/incoming -type f -size +256k | grep -q ."
    place.kill_once(begun, "models.yml", models_repository=repository, model_repository_rsync_options=slow)
    place.everywhere(f"test ! -e {TRANSACTION}")
    return dict.fromkeys(HOSTS, "")


@tells(disk_full_transfer=("alpha", r"(?i:free|space|room)"))
def a_disk_that_is_full_in_a_transfer(place: Fleet) -> Told:
    repository = place.edited(alpha=[])
    Path(repository, "alpha/1/weights.bin").write_bytes(os.urandom(4 << 20))
    # One mebibyte is free.
    used = f"used=$(df --block-size=1 --output=used {STORE} | tail -1)"
    place.everywhere(f"{used}; mount -o remount,size=$((used + 1048576)) {STORE}")
    try:
        return place.refused("models.yml", models_repository=repository)
    finally:
        place.everywhere(f"mount -o remount,size=4g {STORE}")


@tells(
    load_raises=("alpha", PUT_BACK, r"alpha.*the weights do not fit the code"),
    config_refused=("beta", PUT_BACK, r"beta.*/opt/no-such-environment"),
    no_device_memory=("digits", PUT_BACK, r"digits.*Lack of device memory"),
)
def loads_that_fail(place: Fleet) -> Told:
    # The linter cannot know what a program does with its arguments, nor what a path of the image leads to.
    raises = INITIALIZE + '        if args["model_name"]:\n            raise RuntimeError("the weights do not fit the code")\n'
    missing = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/no-such-environment" } }\n'
    repository = place.edited(alpha=[("1/model.py", INITIALIZE, raises)], beta=[("config.pbtxt", PYTHON, PYTHON + missing)])
    return place.refused("models.yml", models_repository=repository, models_instances=3)


@tells(
    wrong_golden=("alpha", PUT_BACK, r"alpha/http/double 0.*expected"),
    wrong_nan=("beta", PUT_BACK, r"beta/http/double 0.*(?i:nan)"),
    wrong_shape=("gamma", PUT_BACK, r"gamma/http/double 0.*shape"),
)
def models_that_answer_wrong(place: Fleet) -> Told:
    repository = place.edited(
        alpha=[("1/model.py", DOUBLE, "            y = x * 3\n")],
        beta=[("1/model.py", DOUBLE, '            y = x * np.float32("nan")\n')],
        gamma=[("1/model.py", DOUBLE, "            y = np.repeat(x * 2, 2, axis=1)\n")],
    )
    told = place.refused("models.yml", models_repository=repository)
    for host in place.hosts.values():
        history = [json.loads(line) for line in host.check_output(f"tail -6 {STORE}/history.jsonl").splitlines()]
        assert [(event["model"], event["what"], event["result"]) for event in history] == [
            *((model, "deploy", "failed") for model in ("alpha", "beta", "gamma")),
            *((model, "put back", "proven") for model in ("alpha", "beta", "gamma")),
        ]
        assert not host.file(TRANSACTION).exists
        assert not host.file(LEASE).exists, "the watchdog is still held off"
    return told


@tells(editions={1, 2}, interrupted=("alpha",))
def a_controller_that_is_interrupted(place: Fleet) -> Told:
    """The hosts go on by themselves, to the end: no other run touches them, and the next one finds nothing to tell."""
    repository = place.edited(alpha=[SLOW_LOAD])
    place.kill_once(f"test -e {TRANSACTION}", "models.yml", models_repository=repository)
    place.everywhere(f"test -e {TRANSACTION}")
    for host in place.hosts.values():
        wait_for(lambda h=host: not h.file(TRANSACTION).exists and not h.file(LEASE).exists)
        last = json.loads(host.check_output(f"tail -1 {STORE}/history.jsonl"))
        assert (last["model"], last["what"], last["result"]) == ("alpha", "deploy", "proven")
    place.wait_until_answered(edition=2, model="alpha")
    status = place.run("status.yml", models_repository=repository)
    assert status.code == 0, status.output
    return place.told(status)


# Seconds for the watchdog to act: its own limits are minutes, and a busy machine takes as long again
REPAIRED = 1800
# Asked for this, the models never answer (tests/faults/models/alpha/1/model.py).
HANGS = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [-1000]}]}


@tells(
    stub_killed=("alpha", r"alpha.*no process of.*expected.*Action: "),
    stub_hung=("beta", r"beta.*requests waiting and none answered for.*expected.*Action: "),
)
def stubs_that_die_and_hang(place: Fleet) -> Told:
    began, told = time.monotonic(), dict.fromkeys(HOSTS, "")
    harms: list[Callable[[str], Any]] = [
        lambda mode: _kill(place.hosts[mode], "alpha_0_0"),
        lambda mode: _ask_for_ever(HOSTS[mode]),
    ]
    for harm in harms:
        since = {mode: host.check_output("date +%s") for mode, host in place.hosts.items()}
        with ExitStack() as harmed:
            for mode in HOSTS:
                harmed.enter_context(harm(mode))
            for mode, host in place.hosts.items():
                journal = f"journalctl --unit npufleet-watchdog --output cat --since @{since[mode]} | grep Action:"
                wait_for(lambda h=host, j=journal: h.run(j).rc == 0, REPAIRED)
                told[mode] += host.check_output(journal) + "\n"
        place.wait_until_answered()
    for mode in HOSTS:
        for model in ("alpha", "beta"):
            assert place.clients.heard(mode, model, began, time.monotonic()).errors, f"{mode}: nobody noticed {model}"
    return told


@contextmanager
def _kill(host: Any, instance: str) -> Iterator[None]:
    """End a stub, and see that it is gone."""
    before = stubs(host, instance)
    signal(host, "KILL", instance)
    wait_for(lambda: not set(before) & set(stubs(host, instance)))
    yield


@contextmanager
def _ask_for_ever(host: str) -> Iterator[None]:
    """Ask for what is never answered, until requests wait and none is done. The request stays, or the fault might."""
    url, body = f"http://{address(host)}", json.dumps(HANGS).encode()
    while True:
        asking = http.client.HTTPConnection(address(host), 8000, timeout=REPAIRED)
        with closing(asking):
            asking.request("POST", "/v2/models/beta/infer", body)
            looks = [_waiting_and_done(url, "beta")]

            def hangs_or_is_refused(looks: list[Any] = looks, asking: Any = asking) -> bool:
                looks.append(_waiting_and_done(url, "beta"))
                hangs = looks[-1][0] > 0 and looks[-1][1] == looks[-2][1]
                return hangs or bool(select.select([asking.sock], [], [], 0)[0])

            wait_for(hangs_or_is_refused)
            if not select.select([asking.sock], [], [], 0)[0]:
                yield
                return


def _waiting_and_done(url: str, model: str) -> tuple[float, float]:
    """(requests that wait for a model, requests that it has done), as its server counts them."""
    with urllib.request.urlopen(f"{url}:8002/metrics", timeout=60) as answer:
        page = answer.read().decode()
    lines = [line for line in page.splitlines() if f'model="{model}"' in line]
    names = ("nv_inference_pending_request_count", "nv_inference_request_success")
    waits, done = (sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names)
    return waits, done


@pytest.mark.parametrize(("fault", "mode"), cells("lab"))
def test_cell(fault: str, mode: str, place: Fleet) -> None:
    judge(fault, mode, place)


def test_after_all_of_it_nothing_differs(place: Fleet) -> None:
    status = place.run("status.yml")
    assert status.code == 0, status.output
