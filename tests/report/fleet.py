#!/usr/bin/env python3
"""Write the files that status.yml and check.yml would write for an invented fleet, and render its report with report.yml."""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.npufleet.triton.plugins.plugin_utils.report import picture  # noqa: E402

DIGITS = numpy.load(ROOT / "files/golden/digits/images.npy")
MODELS = ("digits", "digits_guide", "resnet50")
# Further models of larger fleets
MORE = [
    f"{name}_{size}" for name in ("bert-base-korean", "e5", "ocr", "ranker", "unet", "whisper", "yolov8-640") for size in "smlx"
]
# The troubles that a host can have. A host without a trouble is in sync and proven.
TROUBLE = ("drift", "wrong answer", "unreachable", "failed", "sick card", "model down", "unchecked", "old")
HOSTILE = "</script><img src=x onerror=document.title='taken'>"


def digest(words: str) -> str:
    return random.Random(words).randbytes(32).hex()


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def picture_of(number: int, model: str) -> str:
    """Return a picture as a data URI, as in check results: a digit, or colours for the model of photographs."""
    if model == "resnet50":
        side = numpy.linspace(0, 255, 32)
        red, green = numpy.meshgrid(side, side)
        pixels = numpy.stack([red, green, numpy.full((32, 32), 25 * number)], axis=2).astype("uint8")
        size = {"width": 32, "height": 32, "channels": 3}
    else:
        pixels = (DIGITS[number] * 255 / 16).astype("uint8")
        size = {"width": 8, "height": 8, "channels": 1}
    uri = picture.data_uri({**size, "pixels": base64.b64encode(pixels.tobytes()).decode()})
    assert uri is not None
    return uri


def checks(chance: random.Random, wrong: bool, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    results = []
    for model in MODELS:
        for protocol, slow in (("http", 0.9), ("grpc", 0.6)):
            shared = {"model": model, "protocol": protocol, "ok": True, "why": ""}
            first = chance.randrange(0, 4) * 10
            for digit in range(10):
                answer = {"expected": digit, "got": digit, "label": digit, "picture": picture_of(first + digit, model)}
                name = f"{model}/{protocol}/digit {digit}"
                results.append({**shared, "name": name, "ms": round(slow + chance.random() * 0.4, 2), **answer})
            results.append({**shared, "name": f"{model}/{protocol}/largest batch", "ms": 2.1, "expected": [1, 7], "got": [1, 7]})
    for model in more:
        results.append({"model": model, "protocol": "grpc", "ok": True, "why": "", "name": f"{model}/grpc/finite", "ms": 12.5})
    if wrong:
        results[7].update(ok=False, got=1, label=1, why="OUTPUT__0: label is 1, expected 7")
    return results


def actual(models: tuple[str, ...], sick: bool, down: bool) -> dict[str, Any]:
    cards = [
        {
            "npu": number,
            "device": f"rbln{number}",
            "name": "RBLN-CA22",
            "status": "fault" if sick and number == 1 else "normal",
            "firmware": "2.0.1",
            "bus_id": f"0000:{0x81 + number:x}:00.0",
            "memory_total": 16877879296,
            "memory_used": 134217728 * (number + 1),
        }
        for number in range(4)
    ]
    served = {
        model: {"1": {"state": "READY", "reason": "", "release": digest(model)}}
        if not (down and model == "resnet50")
        else {"1": {"state": "UNAVAILABLE", "reason": "Internal: failed to load: no memory on rbln1", "release": None}}
        for model in models
    }
    return {
        "driver": {
            "module": "2.0.1",
            "package": {"version": "2.0.1", "held": True},
            "kernel": "5.15.0-119-generic",
            "tool": {"version": "2.0.1", "devices": cards},
        },
        "engine": {"running": {"version": "27.3.1"}},
        "image": {"id": "sha256:" + digest("image"), "contents": ["rebel-compiler==0.9.4", "tritonclient==2.51.0"]},
        "models": {"served": {model: {"release": "0003-" + digest(model)[:12]} for model in models}},
        "server": {"version": "2.51.0", "state": "running", "served": served},
    }


DRIFT = [
    {
        "concern": "server",
        "name": "container.ulimits",
        "current": {"memlock": "-1:-1", "stack": "33554432:33554432"},
        "desired": {"memlock": "-1:-1", "stack": "67108864:67108864"},
        "action": "replace",
    },
    {
        "concern": "models",
        "name": "digits",
        "current": "config.pbtxt was changed",
        "desired": "0004-04b87ec34adc",
        "action": "release",
    },
]


def host(name: str, trouble: str, now: datetime, place: Path, more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the status of one host, and write its check results below `place`."""
    chance = random.Random(name)
    when = now - timedelta(days=3) if trouble == "old" else now - timedelta(minutes=4)
    status = {"host": name, "when": stamp(when), "release": "24.10", "state": "in sync", "plan": [], "report": [], "actual": {}}
    if trouble == "unreachable":
        why = f"Failed to connect to the host via ssh: connect to host {name} port 22: No route to host"
        status.update(state="unreachable", report=[why])
    elif trouble == "failed":
        status.update(
            state="failed",
            report=[f"{name} is refused, nothing was changed:\n  - npufleet_npus is 0, expected a whole number from 1 to 256"],
        )
    else:
        status["actual"] = actual((*MODELS, *more), trouble == "sick card", trouble == "model down")
        status["models"] = {model: {"source": digest("source" + model), "release": digest(model)} for model in (*MODELS, *more)}
    plan = {
        "drift": DRIFT,
        "sick card": [{"concern": "driver", "name": "cards", "current": "rbln1 fault", "desired": "normal", "action": "inspect"}],
        "model down": [
            {"concern": "server", "name": "resnet50", "current": "UNAVAILABLE", "desired": "READY", "action": "load"},
        ],
    }.get(trouble)
    if plan:
        status.update(state="drift", plan=plan, report=["one line for each"] * len(plan))
    result: dict[str, Any] = {
        "host": name,
        "when": stamp(when + timedelta(minutes=1)),
        "msg": "",
        "checks": checks(chance, trouble == "wrong answer", more),
    }
    if trouble == "unreachable":
        result.update(msg=status["report"][0], checks=[])
    if trouble == "model down":
        for check in result["checks"]:
            if check["model"] == "resnet50":
                check.update(ok=False, ms=None, why="Request for unknown model: 'resnet50' has no available versions")
                for key in ("got", "label", "picture"):
                    check.pop(key, None)
    if trouble != "unchecked":
        (place / "check" / f"{name}.json").write_text(json.dumps(result))
    return status


def hostile(name: str, now: datetime, place: Path) -> dict[str, Any]:
    """Return the status of a host whose texts all try to be markup, and write such check results below `place`."""
    status = host(name, "drift", now, place)
    status["release"] = HOSTILE
    status["plan"] = [dict.fromkeys(("concern", "name", "current", "desired", "action"), HOSTILE)]
    status["actual"]["driver"]["module"] = '"><script>document.title="taken"</script>'
    status["actual"]["driver"]["tool"]["devices"][0].update(
        device=HOSTILE, status="' onmouseover=alert(1) x='", firmware="{{ 7 * 7 }}"
    )
    status["actual"]["server"]["served"] = {HOSTILE: {HOSTILE: {"state": HOSTILE, "reason": HOSTILE, "release": HOSTILE}}}
    path = place / "check" / f"{name}.json"
    result = json.loads(path.read_text())
    for key in ("name", "model", "protocol", "why", "expected", "got"):
        result["checks"][0][key] = HOSTILE
    result["checks"][0].update(ok=False, picture="data:image/png;base64,AAAA\"><script>document.title='taken'</script>")
    result["checks"][1]["picture"] = "https://example.com/picture.png"
    path.write_text(json.dumps(result))
    return status


def make(place: Path, troubles: list[str], extra: str = "", models: int = len(MODELS), monitoring: Sequence[int] = ()) -> Path:
    """Write the files of a fleet into `place`, and return its page.

    The fleet has one host for each entry of `troubles` (empty for no trouble), and for `extra` a host with hostile texts. `models`
    is the number of models. `monitoring` has the ports of Prometheus on the monitoring hosts.
    """
    now = datetime.now(timezone.utc)
    (place / "check").mkdir(parents=True)
    names = [f"npu{number}" for number in range(1, len(troubles) + 1)]
    more = MORE[: models - len(MODELS)]
    hosts = [host(name, trouble, now, place, more) for name, trouble in zip(names, troubles)]
    if extra:
        hosts.append(hostile(extra, now, place))
        names.append(extra)
    (place / "status.json").write_text(json.dumps({"when": stamp(now), "hosts": hosts}))
    # The results of a host that is no longer in the inventory
    (place / "check" / "gone.json").write_text(json.dumps({"host": "gone", "checks": checks(random.Random(1), True)}))
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    monitors = {f"mon{number}": {**local, "monitoring_prometheus_port": port} for number, port in enumerate(monitoring, 1)}
    inventory: dict[str, Any] = {"npu_hosts": {"hosts": dict.fromkeys(names)}}
    if monitors:
        inventory["monitoring_hosts"] = {"hosts": monitors}
    (place / "hosts.json").write_text(json.dumps(inventory))
    return draw(place)


def draw(place: Path) -> Path:
    """Render the files in `place` with playbooks/report.yml, and return the page."""
    page = place / "index.html"
    files = {
        "npufleet_status_file": f"{place}/status.json",
        "inference_check_results_dir": f"{place}/check",
        "npufleet_report_file": str(page),
    }
    command = ["ansible-playbook", "-i", f"{place}/hosts.json", str(ROOT / "playbooks/report.yml"), "-e", json.dumps(files)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return page


def troubles(count: int) -> list[str]:
    """Return the troubles of `count` hosts. Each trouble occurs at least once if `count` allows, but most hosts have none."""
    chance = random.Random(count)
    chosen = [*TROUBLE, *(chance.choice(TROUBLE) if chance.random() < 0.05 else "" for _ in range(count))][:count]
    chance.shuffle(chosen)
    return chosen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path, help="a directory that does not exist yet")
    parser.add_argument("--hosts", type=int, default=3)
    options = parser.parse_args()
    print(make(options.place, troubles(options.hosts)))
    sys.exit(0)
