"""Faults of a lab's hosts, and the alerts that they cause: in Prometheus, in Alertmanager and at a webhook receiver.

The scenario `monitoring` and `make bench-alerts` share this file. Prometheus, Alertmanager and the receiver run on the monitoring
host. All hosts of a lab have the clock of this machine, so times can be compared.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from balancer_certificate import KEY, certificate

RECEIVER = Path(__file__).with_name("webhook_receiver.py")
PROMETHEUS_PORT, ALERTMANAGER_PORT, RECEIVER_PORT = 9090, 9093, 9095
# Each alert has a separate notification. A site chooses its own waits, so the waits of the tests are short.
ALERTMANAGER_CONFIG = f"""route:
  receiver: webhook
  group_by: ['...']
  group_wait: 1s
  group_interval: 5s
  repeat_interval: 12h
receivers:
  - name: webhook
    webhook_configs:
      - url: http://127.0.0.1:{RECEIVER_PORT}/
        send_resolved: true
"""
# The script reads the configuration from its standard input. Debian's configuration of Prometheus names the same Alertmanager.
INSTALL_ALERTMANAGER = """
cat > /run/alertmanager.yml
command -v prometheus-alertmanager > /dev/null ||
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus-alertmanager > /dev/null < /dev/null
cp /run/alertmanager.yml /etc/prometheus/alertmanager.yml
amtool check-config /etc/prometheus/alertmanager.yml
echo 'ARGS="--cluster.listen-address="' > /etc/default/prometheus-alertmanager
systemctl restart prometheus-alertmanager
grep -q '^alerting:' /etc/prometheus/prometheus.yml || cat >> /etc/prometheus/prometheus.yml <<'ALERTING'
alerting:
  alertmanagers:
    - static_configs: [{targets: ["localhost:9093"]}]
ALERTING
promtool check config /etc/prometheus/prometheus.yml
systemctl reload prometheus
"""
INSTALL_RECEIVER = f"""
cat > /usr/local/lib/npufleet-webhook.py
if systemctl is-active --quiet npufleet-webhook; then systemctl stop npufleet-webhook; fi
systemd-run --quiet --collect --unit npufleet-webhook python3 /usr/local/lib/npufleet-webhook.py {RECEIVER_PORT}
"""
# The file on the balancer with its certificate and its key
BALANCER_CERTIFICATE = "/etc/haproxy/npufleet/balancer.pem"
# Alerts that may fire before a fault, because the hosts of the lab share the disk of the machine, which may be full
DISK_ALERTS = "NpufleetDiskFilling|NpufleetDiskFull"
STORE = "/var/lib/npufleet"
STUB = "/opt/tritonserver/backends/python/triton_python_backend_stub"
WATCHDOG = "npufleet-watchdog"
# The longest time in seconds until an alert fires or ends, and until a host has no alert any more
FIRES, QUIET = 900.0, 900.0
# Requests of the API to load and unload models need the key of the host.
CONTROL = """
import pathlib, sys, urllib.request
key = pathlib.Path("/etc/npufleet/server/key").read_text().strip()
url = f"http://127.0.0.1:8000/v2/repository/models/{sys.argv[1]}/{sys.argv[2]}"
urllib.request.urlopen(urllib.request.Request(url, b"{}", {"npufleet-key": key}), timeout=300).read()
"""
# Debian's node exporter leaves out /mnt and /media.
MAKE_DISK = """
truncate --size 64M /var/tmp/npufleet-disk.img
mkfs.ext4 -q -F -m 0 /var/tmp/npufleet-disk.img
device=$(losetup --find)
[ -b "$device" ] || mknod "$device" b 7 "${device#/dev/loop}"
losetup "$device" /var/tmp/npufleet-disk.img
mkdir -p /srv/npufleet-disk
mount "$device" /srv/npufleet-disk
echo "$device"
"""
# The write ends with an error, because the disk is full.
FILL_DISK = "dd if=/dev/zero of=/srv/npufleet-disk/content bs=1M 2> /dev/null || true"
REMOVE_DISK = """
if mountpoint -q /srv/npufleet-disk; then umount /srv/npufleet-disk; fi
for device in $(losetup --noheadings --output NAME --associated /var/tmp/npufleet-disk.img); do losetup --detach "$device"; done
rm -rf /srv/npufleet-disk /var/tmp/npufleet-disk.img
"""
CARD_STATUS = "/sys/class/rebellions/rbln1/status"
STALE = "/run/npufleet-lab/stale"
T = TypeVar("T")
Labels = Mapping[str, str]


class NotObserved(AssertionError):
    """A condition that did not occur within its time, or a command of a host that failed."""


def wait_for_value(read: Callable[[], T | None], seconds: float, what: str) -> T:
    """Return the first result of `read` that is not None. A server that does not answer is called again. Raises NotObserved."""
    deadline, pause = time.monotonic() + seconds, 0.5
    while True:
        found, error = None, ""
        try:
            found = read()
        except OSError as failure:
            error = f" ({failure!r})"
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise NotObserved(f"not within {seconds:.0f} s: {what}{error}")
        time.sleep(pause)
        # Each query takes processor time from the hosts.
        pause = min(1.1 * pause, 2.0)


class Expected(NamedTuple):
    """An alert that a fault has to cause, and the seconds within which it has to fire. `{host}` in labels is the faulty host."""

    alert: str
    target: int
    labels: Labels = {"host": "{host}"}  # noqa: RUF012  It is never changed.


class Fault(NamedTuple):
    """An injected fault. `began` is in seconds since 1970. `labels` are more labels of its alerts, unknown before the injection."""

    began: float
    labels: Labels = {}  # noqa: RUF012


class Case(NamedTuple):
    """A fault of a host. `inject` returns a context manager, which repairs the fault at its end."""

    name: str
    host: str
    inject: Callable[[AlertLab, str], AbstractContextManager[Fault]]
    expected: Sequence[Expected]


class Observation(NamedTuple):
    """An alert of a fault. All times are in seconds: from the fault to the alert, and from the repair to the end of the alert."""

    fault: str
    alert: str
    severity: str
    target: int
    to_firing: float
    to_receiver: float
    to_resolve: float


class AlertLab:
    """A lab with a monitoring host, from its Ansible inventory."""

    def __init__(self, inventory: Mapping[str, Any]) -> None:
        hostvars = inventory["_meta"]["hostvars"]
        self.docker: list[str] = inventory["all"]["vars"]["lab_docker"]
        self.containers = {host: str(facts["lab_container"]) for host, facts in hostvars.items()}
        self.addresses = {host: str(facts["ansible_host"]) for host, facts in hostvars.items()}
        (self.monitor,) = inventory["monitoring_hosts"]["hosts"]

    def install(self) -> None:
        """Install Alertmanager and the receiver on the monitoring host, and wait until Prometheus sends its alerts there."""
        self.shell(self.monitor, INSTALL_RECEIVER, RECEIVER.read_text())
        self.shell(self.monitor, INSTALL_ALERTMANAGER, ALERTMANAGER_CONFIG)
        wait_for_value(self.received, 60, "an answer of the webhook receiver")
        wait_for_value(lambda: self.prometheus("alertmanagers")["activeAlertmanagers"] or None, 120, "Alertmanager in Prometheus")
        wait_for_value(self._alertmanager_ready, 120, "an answer of Alertmanager")

    def shell(self, host: str, script: str, stdin: str = "") -> str:
        """Return the output of a shell script on a host. Raises NotObserved if it fails."""
        command = [*self.docker, "exec", "-i", self.containers[host], "sh", "-euc", script]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotObserved(f"{host}: {script.strip()} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout.strip()

    def engine(self, action: str, host: str) -> None:
        """Run a command of the lab's engine, such as `pause`, for the container of a host."""
        subprocess.run([*self.docker, action, self.containers[host]], check=True, capture_output=True)

    def prometheus(self, path: str, **parameters: Any) -> Any:
        """Return the data of a query of Prometheus' HTTP API."""
        query = urllib.parse.urlencode(parameters)
        return _get(f"http://{self.addresses[self.monitor]}:{PROMETHEUS_PORT}/api/v1/{path}?{query}")["data"]

    def series(self, query: str) -> list[dict[str, Any]]:
        """Return the result of an expression."""
        return list(self.prometheus("query", query=query)["result"])

    def received(self) -> list[dict[str, Any]]:
        """Return all alerts that the receiver has received, oldest first."""
        return list(_get(f"http://{self.addresses[self.monitor]}:{RECEIVER_PORT}/"))

    def _alertmanager_ready(self) -> bool | None:
        with urllib.request.urlopen(f"http://{self.addresses[self.monitor]}:{ALERTMANAGER_PORT}/-/ready", timeout=10) as response:
            return True if response.status == 200 else None

    def firing_since(self, began: float, labels: Labels) -> list[dict[str, Any]]:
        """Return {"labels", "at"} of each alert with these labels that has fired since `began`; `at` is the first time."""
        selector = ",".join(f"{name}={json.dumps(value)}" for name, value in {**labels, "alertstate": "firing"}.items())
        # A range selector returns the samples, which Prometheus writes at each evaluation of the rule.
        found = self.series(f"ALERTS{{{selector}}}[{int(time.time() - began) + 60}s]")
        firsts = [(entry["metric"], [at for at, _value in entry["values"] if at >= began]) for entry in found]
        return [{"labels": metric, "at": min(times)} for metric, times in firsts if times]

    def wait_until_quiet(self, alerts: str, host: str = "") -> None:
        """Wait until none of the alerts of an expression is pending or firing, on one host or on all."""

        def quiet() -> bool | None:
            active = [entry["metric"] for entry in self.series(alerts)]
            return None if any(not host or host in (labels.get("host"), labels.get("server")) for labels in active) else True

        wait_for_value(quiet, QUIET, f"no {alerts} of {host or 'any host'}")


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise NotObserved(f"{url}: {error.read().decode(errors='replace')}") from None


def matches(actual: Labels, expected: Labels) -> bool:
    """Return True if an alert has all expected labels."""
    return expected.items() <= actual.items()


def received_at(entries: Sequence[Mapping[str, Any]], labels: Labels, began: float) -> float | None:
    """Return when the receiver first got a firing alert with these labels since `began`, or None if it got no such alert."""
    times = [
        entry["received"]
        for entry in entries
        if entry["status"] == "firing" and entry["received"] >= began and matches(entry["labels"], labels)
    ]
    return min(times, default=None)


def resolved_at(entries: Sequence[Mapping[str, Any]], labels: Labels, began: float) -> float | None:
    """Return when the last alert with these labels was resolved, or None if an alert since `began` is not resolved yet."""
    last: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        if entry["received"] >= began and matches(entry["labels"], labels):
            last[json.dumps(entry["labels"], sort_keys=True)] = entry
    if not last or any(entry["status"] == "firing" for entry in last.values()):
        return None
    return max(entry["received"] for entry in last.values())


def play(lab: AlertLab, case: Case) -> list[Observation]:
    """Inject a fault, wait for its alerts, repair it, and wait until they are resolved. Raises NotObserved."""
    names = "|".join(expected.alert for expected in case.expected)
    lab.wait_until_quiet(f'ALERTS{{severity="critical",alertname!~"{DISK_ALERTS}"}} or ALERTS{{alertname=~"{names}"}}', case.host)
    fired: list[tuple[Expected, Labels, str, float, float]] = []
    with case.inject(lab, case.host) as fault:
        for expected in case.expected:
            labels = {"alertname": expected.alert, **fault.labels}
            labels.update({name: value.format(host=case.host) for name, value in expected.labels.items()})

            def firing(labels: Labels = labels) -> tuple[str, float] | None:
                found = lab.firing_since(fault.began, labels)
                first = min(found, key=lambda entry: float(entry["at"]), default=None)
                return (first["labels"]["severity"], first["at"]) if first else None

            severity, at = wait_for_value(firing, FIRES, f"{case.name}: {labels} fires")

            def notified(labels: Labels = labels) -> float | None:
                return received_at(lab.received(), labels, fault.began)

            received = wait_for_value(notified, FIRES, f"{case.name}: the receiver gets {labels}")
            fired.append((expected, labels, severity, at, received))
        repaired = time.time()
    observations = []
    for expected, labels, severity, at, received in fired:

        def ended(labels: Labels = labels) -> float | None:
            return resolved_at(lab.received(), labels, fault.began)

        end = wait_for_value(ended, FIRES, f"{case.name}: {labels} is resolved")
        times = [round(max(0.0, seconds), 1) for seconds in (at - fault.began, received - fault.began, end - repaired)]
        observations.append(Observation(case.name, expected.alert, severity, expected.target, *times))
    return observations


# The faults


@contextlib.contextmanager
def _fault_of_commands(lab: AlertLab, host: str, inject: str, repair: str, stdin: str = "") -> Iterator[Fault]:
    """Run a command that causes a fault, and at the end the command that repairs it. Both read `stdin`."""
    began = time.time()
    lab.shell(host, inject, stdin)
    try:
        yield Fault(began)
    finally:
        lab.shell(host, repair, stdin)


@contextlib.contextmanager
def _record_on_host(lab: AlertLab, host: str, name: str, record: Mapping[str, str]) -> Iterator[Fault]:
    """Write a record in the store of the host, and remove it at the end."""
    began = time.time()
    _write(lab, host, f"{STORE}/{name}", record)
    try:
        yield Fault(began)
    finally:
        lab.shell(host, f"rm {STORE}/{name}")


@contextlib.contextmanager
def _watchdog_stopped(lab: AlertLab, host: str) -> Iterator[None]:
    """Stop the watchdog, which repairs faults of processes within seconds: the metrics of the host might miss them."""
    lab.shell(host, f"systemctl stop {WATCHDOG}")
    try:
        yield
    finally:
        lab.shell(host, f"systemctl start {WATCHDOG}")


@contextlib.contextmanager
def kill_stub(lab: AlertLab, host: str) -> Iterator[Fault]:
    """Kill the process of the only instance of alpha. The watchdog repairs this."""
    with _watchdog_stopped(lab, host):
        began = time.time()
        lab.shell(host, f"pkill -KILL --full '^{STUB} .* alpha_0_0( |$)'")
        yield Fault(began)


@contextlib.contextmanager
def hang_device(lab: AlertLab, host: str) -> Iterator[Fault]:
    """Let inference on the first NPU never return. A request to digits fails after the time limit of the backend (10 s)."""
    with _watchdog_stopped(lab, host):
        began = time.time()
        _write(lab, host, f"{STORE}/lab-faults.json", [{"npu": 0, "kind": "hang_forever", "times": None}])
        try:
            if digits_answers(lab, host):
                raise NotObserved(f"{host}: digits answers, although its NPU hangs")
            yield Fault(began)
        finally:
            lab.shell(host, f"rm {STORE}/lab-faults.json")
            wait_for_value(lambda: digits_answers(lab, host) or None, 300, f"{host}: digits answers again")


@contextlib.contextmanager
def fault_card(lab: AlertLab, host: str) -> Iterator[Fault]:
    """Let the driver report the second card as faulted. Its status is in a read-only sysfs, so a file is mounted over it."""
    lab.shell(host, "echo 3 > /run/npufleet-card-status")
    began = time.time()
    lab.shell(host, f"mount --bind /run/npufleet-card-status {CARD_STATUS}")
    try:
        yield Fault(began, {"device": "rbln1"})
    finally:
        lab.shell(host, f"umount --lazy {CARD_STATUS}")


def stale_driver(lab: AlertLab, host: str) -> AbstractContextManager[Fault]:
    """Let the driver lose its cards."""
    return _fault_of_commands(lab, host, f"echo none > {STALE}", f"rm {STALE}")


def unload_model(lab: AlertLab, host: str) -> AbstractContextManager[Fault]:
    """Unload a model that the inventory places on the host."""
    return _fault_of_commands(lab, host, "python3 - stream unload", "python3 - stream load", stdin=CONTROL)


@contextlib.contextmanager
def fill_disk(lab: AlertLab, host: str) -> Iterator[Fault]:
    """Fill a small file system on a loop device."""
    try:
        device = lab.shell(host, MAKE_DISK)
        began = time.time()
        lab.shell(host, FILL_DISK)
        yield Fault(began, {"device": device})
    finally:
        lab.shell(host, REMOVE_DISK)


def stop_container(lab: AlertLab, host: str) -> AbstractContextManager[Fault]:
    """Stop the container of the server. The watchdog does not start a container that an operator has stopped."""
    return _fault_of_commands(lab, host, "docker stop triton", "docker start triton")


@contextlib.contextmanager
def lose_host(lab: AlertLab, host: str) -> Iterator[Fault]:
    """Freeze the host: its kernel still accepts connections, but nothing answers."""
    began = time.time()
    lab.engine("pause", host)
    try:
        yield Fault(began)
    finally:
        lab.engine("unpause", host)


def forget_drain(lab: AlertLab, host: str) -> AbstractContextManager[Fault]:
    """Leave the record of a rollout that drained the host two hours ago and did not end."""
    return _record_on_host(lab, host, "traffic.json", {"by": "tests", "since": _hours_ago(2)})


def forget_maintenance(lab: AlertLab, host: str) -> AbstractContextManager[Fault]:
    """Leave the host in maintenance that began nine hours ago."""
    return _record_on_host(lab, host, "maintenance.json", {"reason": "test", "by": "tests", "since": _hours_ago(9)})


def digits_answers(lab: AlertLab, host: str) -> bool:
    """Return True if the host's server answers a request to digits."""
    tensor = {"name": "INPUT__0", "shape": [1, 64], "datatype": "FP32", "data": [0] * 64}
    url = f"http://{lab.addresses[host]}:8000/v2/models/digits/infer"
    try:
        urllib.request.urlopen(url, json.dumps({"inputs": [tensor]}).encode(), timeout=60).read()
    except OSError:
        return False
    return True


def _write(lab: AlertLab, host: str, path: str, content: Any) -> None:
    """Write a JSON file on a host atomically."""
    lab.shell(host, f"cat > {path}.tests && mv {path}.tests {path}", json.dumps(content))


def _hours_ago(hours: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - hours * 3600))


@contextlib.contextmanager
def expire_certificate(lab: AlertLab, host: str) -> Iterator[Fault]:
    """Replace the balancer's file by a certificate that expires in two days. HAProxy keeps the certificate that it has loaded."""
    previous = lab.shell(host, f"cat {BALANCER_CERTIFICATE}")
    began = time.time()
    lab.shell(host, f"cat > {BALANCER_CERTIFICATE}", certificate(2) + KEY.read_text())
    try:
        yield Fault(began, {"file": BALANCER_CERTIFICATE})
    finally:
        lab.shell(host, f"cat > {BALANCER_CERTIFICATE}", previous + "\n")


# Targets for the seconds until an alert fires: critical alerts from a scrape or the metrics of the host, alerts from the probe,
# warnings
SCRAPED, PROBED, WARNING = 60, 150, 300
# The last fault of each host takes the whole host or server down.
CASES = (
    Case(
        "kill_stub",
        "npu1",
        kill_stub,
        [Expected("NpufleetProcessLost", SCRAPED, {"host": "{host}", "model": "alpha", "state": "missing"})],
    ),
    Case(
        "hang_device",
        "npu1",
        hang_device,
        [
            Expected("NpufleetProcessLost", SCRAPED, {"host": "{host}", "model": "digits", "state": "hung"}),
            Expected("NpufleetCheckFails", PROBED, {"host": "{host}", "model": "digits"}),
        ],
    ),
    Case("fill_disk", "npu1", fill_disk, [Expected("NpufleetDiskFull", SCRAPED), Expected("NpufleetDiskFilling", WARNING)]),
    Case(
        "stop_container",
        "npu1",
        stop_container,
        [
            Expected("NpufleetTargetDown", SCRAPED),
            Expected("NpufleetCheckFails", PROBED),
            Expected("NpufleetBalancerServerDown", WARNING, {"host": "lb1", "server": "{host}"}),
        ],
    ),
    Case("fault_card", "npu2", fault_card, [Expected("NpufleetCardFaulted", SCRAPED)]),
    Case("stale_driver", "npu2", stale_driver, [Expected("NpufleetCardMissing", SCRAPED), Expected("NpufleetDriverStale", PROBED)]),
    Case(
        "unload_model",
        "npu2",
        unload_model,
        [Expected("NpufleetModelMissing", SCRAPED, {"host": "{host}", "model": "stream"})],
    ),
    Case(
        "forget_drain",
        "npu2",
        forget_drain,
        [Expected("NpufleetDrainForgotten", WARNING, {"host": "{host}", "by": "rollout"})],
    ),
    Case(
        "forget_maintenance",
        "npu2",
        forget_maintenance,
        [
            Expected("NpufleetMaintenanceForgotten", WARNING),
            Expected("NpufleetDrainForgotten", WARNING, {"host": "{host}", "by": "maintenance"}),
        ],
    ),
    Case(
        "expire_certificate",
        "lb1",
        expire_certificate,
        [Expected("NpufleetCertificateExpires", SCRAPED), Expected("NpufleetCertificateExpiresSoon", WARNING)],
    ),
    Case("lose_host", "npu2", lose_host, [Expected("NpufleetTargetDown", SCRAPED), Expected("NpufleetNodeExporterDown", WARNING)]),
)
