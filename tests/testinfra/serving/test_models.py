"""Every kind of model on a real server: proven, batched, undisturbed by a bad neighbour, and back after a hung NPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import testinfra
from conftest import LAB, NPU_HOSTS, ROOT, Run, ask, connect, inspect, playbook
from crash import crashed
from test_3_reboot import wait_for
from tritonclient import grpc as grpc_client
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

HOST = NPU_HOSTS[0] if NPU_HOSTS else ""
ADDRESS = LAB["_meta"]["hostvars"][HOST]["ansible_host"] if HOST else ""
IMAGES = (
    *("resnet50", "resnet50_guide"),
    *("image_classifier", "image_classifier_uint8", "image_bytes", "image_decode", "image_labels"),
)
MODELS = ("digits", *IMAGES, "add", "text", "stream", "types")
RELEASE = LAB["all"]["vars"]["lab_release"] if HOST else ""
RESULTS = ROOT / f"build/serving-{RELEASE}"
EXTRA = ("--limit", f"{HOST},localhost", "-e", "@molecule/serving/vars/models.yml")
FAULTS = "/var/lib/npufleet/lab-faults.json"
GOLDEN = ROOT / "files/golden"


def site(*arguments: str) -> Run:
    """These models, by a run in which Triton does not crash, or by the next one."""
    run = playbook("site.yml", *EXTRA, *arguments)
    return playbook("site.yml", *EXTRA, *arguments) if crashed(run.output) else run


@pytest.fixture(scope="module", autouse=True)
def converged() -> None:
    """These models, whatever the host had before."""
    run = site()
    assert run.code == 0, run.output


@pytest.fixture(scope="module")
def host() -> testinfra.host.Host:
    return connect(HOST)


def asked(model: str, **inputs: np.ndarray) -> triton.InferResult:
    """The answer of a model to these arrays, from a client of its own: threads do not share one."""
    sent = []
    for name, array in inputs.items():
        kind = {"f": "FP32", "O": "BYTES", "i": "INT32"}[array.dtype.kind]
        sent.append(triton.InferInput(name, list(array.shape), kind))
        sent[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(f"{ADDRESS}:8000", network_timeout=60) as client:
        return client.infer(model, sent)


def page() -> str:
    """Triton's metrics."""
    with urllib.request.urlopen(f"http://{ADDRESS}:8002/metrics", timeout=60) as answer:
        return answer.read().decode()


def metrics() -> dict[tuple[str, str, str], float]:
    """{(metric, model, NPU): sum over instances} of the backend's metrics."""
    found: dict[tuple[str, str, str], float] = {}
    for line in re.finditer(r"^(rbln_\w+)\{([^}]*)\} (\S+)$", page(), re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line[2]))
        key = (line[1], labels["model"], labels["npu"])
        found[key] = found.get(key, 0) + float(line[3])
    return found


def total(found: dict[tuple[str, str, str], float], metric: str, model: str) -> float:
    return sum(value for (name, of, _npu), value in found.items() if (name, of) == (metric, model))


def test_every_model_was_proven_in_every_way():
    checks = json.loads((RESULTS / f"check/{HOST}.json").read_text())["checks"]
    assert [check for check in checks if not check["ok"]] == []
    assert {check["model"] for check in checks} == set(MODELS)
    assert {check["protocol"] for check in checks} == {"http", "grpc", "stream", "raw"}
    assert len(checks) > 80


def test_records_and_profiles_made_the_configs(host):
    command = inspect(host)["Config"]["Cmd"]
    assert "--disable-auto-complete-config" in command
    served = ask(host, "/v2/models/resnet50/config")
    assert served["instance_group"][0]["count"] == 4
    assert served["dynamic_batching"]["max_queue_delay_microseconds"] == 3000
    assert ask(host, "/v2/models/resnet50_guide/config")["parameters"]["npus"]["string_value"] == "1"
    record = json.loads(host.check_output("cat /var/lib/npufleet/served/resnet50/1/model.rbln.json"))
    assert record["npu"] == "RBLN-" + LAB["all"]["vars"]["lab_models"]["resnet50"]["key"].split("/")[0]
    assert [bucket["inputs"][0]["shape"][0] for bucket in record["buckets"]] == [1, 2, 3, 4]


def test_what_is_served_is_a_metric(host):
    served = page()
    for model in ("digits", "resnet50"):
        release = ask(host, f"/v2/models/{model}/config")["parameters"]["npufleet_release"]["string_value"]
        lines = [line for line in served.splitlines() if line.startswith("rbln_model_info{") and f'model="{model}"' in line]
        assert {re.search(r'npu="(\d+)"', line)[1] for line in lines} == {"0", "1"}, "instances over all NPUs"
        assert all(f'release="{release}"' in line and line.endswith(" 1") for line in lines)
    assert "rbln_device_fault{" in served


def test_requests_of_many_are_joined_and_answered_apart(host):
    images = np.load(GOLDEN / "digits/images.npy").astype(np.float32)
    scores = np.load(GOLDEN / "digits/scores.npy")
    before = metrics()

    def deviation(number: int) -> float:
        row = number % len(scores)
        answer = asked("digits", INPUT__0=images[row : row + 1]).as_numpy("OUTPUT__0")
        return float(np.abs(answer[0] - scores[row]).max())

    with ThreadPoolExecutor(12) as pool:
        worst = max(pool.map(deviation, range(240)))
    assert worst < 0.01, "an answer is another request's"

    def counted(name: str) -> float:
        return total(metrics(), name, "digits") - total(before, name, "digits")

    # Counters are handed over to the server a moment after the answer.
    wait_for(lambda: counted("rbln_rows_total") == 240)
    assert counted("rbln_batches_total") < 240, "no two requests shared a batch"


def test_a_broken_image_is_its_sender_s_alone():
    good, broken = (GOLDEN / "resnet50/coffee.png").read_bytes(), b"no image"
    ready = threading.Barrier(8)

    def outcome(number: int) -> str:
        image = broken if number % 4 == 3 else good
        ready.wait(600)
        try:
            answer = asked("image_classifier", IMAGE=np.array([[image]], dtype=object))
        except InferenceServerException as error:
            return f"refused: {error.message()}"
        return answer.as_numpy("LABELS")[0, 0].decode()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(outcome, range(8)))
    for number, answer in enumerate(found):
        if number % 4 == 3:
            assert "is no JPEG or PNG image that can be read" in answer, found
            assert "Traceback" not in answer
            assert "/" not in answer.removeprefix("refused: ")
        else:
            assert answer == found[0], found
            assert not answer.startswith("refused"), found


def test_a_client_of_dali_s_example_works_but_for_the_name():
    """Its bytes as a row of UINT8, its names of input and output, its labels by the place of the highest score."""
    encoded = np.expand_dims(np.fromfile(GOLDEN / "resnet50/coffee.png", dtype="uint8"), axis=0)
    with grpc_client.InferenceServerClient(url=f"{ADDRESS}:8001") as client:
        sent = grpc_client.InferInput("INPUT", encoded.shape, "UINT8")
        sent.set_data_from_numpy(encoded)
        wanted = [grpc_client.InferRequestedOutput("OUTPUT")]
        scores = client.infer(model_name="image_classifier_uint8", inputs=[sent], outputs=wanted).as_numpy("OUTPUT")
    labels = (ROOT / "model_repository/resnet50/labels.txt").read_text().splitlines()
    assert labels[int(np.argmax(scores))] == "pole"


def faults(host: testinfra.host.Host, *listed: dict) -> None:
    """Let the stand-in's NPUs fail so, as a whole: a reader sees all of it or nothing."""
    host.check_output("printf %%s %s > /tmp/faults.json && mv /tmp/faults.json %s", json.dumps(list(listed)), FAULTS)


def ask_until(host: testinfra.host.Host, wanted: bool) -> str:
    """The error, none for an answer, of the first request to digits that is answered as wanted."""
    image = np.load(GOLDEN / "digits/images.npy").astype(np.float32)[:1]
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            asked("digits", INPUT__0=image)
            said = ""
        except InferenceServerException as error:
            said = error.message()
        except OSError:
            # Of NPUs that stay at fault for half a minute, the watchdog may make the server start anew
            if not wanted:
                raise
            said = "no connection"
        if (not said) == wanted:
            return said
        # Whoever asks at once again keeps a processor busy with it
        time.sleep(0.2)
    raise AssertionError(f"no request was {'answered' if wanted else 'refused'} within ten minutes")


@pytest.mark.parametrize("kind", ["501", "hang", "hang_forever"])
def test_an_npu_that_fails_is_told_and_comes_back(host, kind):
    before = inspect(host)["State"]["StartedAt"]
    try:
        faults(host, *({"npu": number, "kind": kind, "times": None} for number in (0, 1)))
        # The NPU fails until this is over: it is not its answer that ends the request.
        said = ask_until(host, False)
        assert "NPU" in said
        assert "Traceback" not in said
        assert "/" not in said.replace("501/503", "")
        if kind != "501":
            wait_for(lambda: total(metrics(), "rbln_device_fault", "digits") >= 1)
    finally:
        faults(host)
    ask_until(host, True)
    # Each instance says that it is well again when it has answered.
    wait_for(lambda: not ask_until(host, True) and total(metrics(), "rbln_device_fault", "digits") == 0)
    assert inspect(host)["State"]["StartedAt"] == before, "the server itself was never in the way"


def test_the_check_names_an_npu_that_hangs(host):
    try:
        faults(host, *({"npu": number, "kind": "503", "times": None} for number in (0, 1)))
        ask_until(host, False)
        # A page of its own, as other scenarios draw their hosts meanwhile
        run = playbook("check.yml", *EXTRA, "-e", f"npufleet_report_file={RESULTS}/report.html")
        assert run.code == 2, run.output
        assert re.search(r"digits/http/digit 0.*NPU \d", run.output), run.output
    finally:
        faults(host)
    ask_until(host, True)


@pytest.mark.parametrize("model", ["image_classifier", "image_classifier_uint8"])
def test_the_command_shows_label_and_latency(model):
    command = [
        sys.executable,
        str(ROOT / "bin/npufleet-infer"),
        model,
        "--url",
        f"{ADDRESS}:8001",
        "--protocol",
        "grpc",
    ]
    command += ["--image", str(GOLDEN / "resnet50/coffee.png"), "--repeat", "5"]
    # The NPUs failed in the tests before: where that met the start of a device process, the next start is up to half a minute away.
    wait_for(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pole" in done.stdout
    assert re.search(r"5 requests: p50 [\d.]+ ms", done.stdout)


def test_a_second_run_changes_nothing_and_the_proof_holds():
    run = playbook("site.yml", *EXTRA)
    assert run.code == 0, run.output
    assert set(run.changed().values()) == {0}, run.output


@pytest.mark.skipif(RELEASE != "lab-24.01", reason="nothing of the page depends on the release")
def test_the_page_for_a_new_model_works_as_it_stands(host):
    """Its site lists one model: that one is added and proven, and all others are withdrawn."""
    done = subprocess.run(
        [sys.executable, "tests/models.py"], cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "commands and 5 files as written" in done.stdout
    assert {model["name"]: model["state"] for model in ask(host, "/v2/repository/index", "POST")} == {"flowers": "READY"}
