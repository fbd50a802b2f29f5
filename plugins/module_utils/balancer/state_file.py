# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The saved state of the servers of a balancer. It keeps drains and weights across a reload, a restart and a reboot.

HAProxy reads the file when it loads its configuration. A port in the file takes precedence over the port in the configuration, and
a server that is missing in the file counts as healthy. Therefore this module completes the file from the configuration before
HAProxy reads the file.

For this purpose, a drop-in of HAProxy's unit runs `python3 LIBRARY balancer save` and `python3 LIBRARY balancer reload`
(commands.py).
"""

from __future__ import annotations

# This file is also a program, which prints to the journal. pylint: disable=ansible-bad-function
import os
import re
import signal
import sys
import time
from typing import Dict, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, files, runtime
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import MASTER, SOCKET, BalancerError, Runtime
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

# Version and columns of the table in the saved state
VERSION = "1"
COLUMNS = (
    "be_id", "be_name", "srv_id", "srv_name", "srv_addr", "srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight",
    "srv_time_since_last_change", "srv_check_status", "srv_check_result", "srv_check_health", "srv_check_state",
    "srv_agent_state", "bk_f_forced_id", "srv_f_forced_id", "srv_fqdn", "srv_port", "srvrecord", "srv_use_ssl",
    "srv_check_port", "srv_check_addr", "srv_agent_addr", "srv_agent_port",
)  # fmt: skip
# Time limit in seconds for HAProxy to answer with its new configuration after a reload, and pause between two queries
RELOAD_TIMEOUT, PAUSE = 60.0, 0.1
_BACKEND = re.compile(r"^backend (\S+)$")
_SERVER = re.compile(r"^    server (\S+) (\S+):([0-9]+) (.*)$")
_FAILED = re.compile(r"^\d+ +master .*\[failed: ([0-9]{1,9})\]", re.MULTILINE)
_WEIGHT = re.compile(r"\bweight ([0-9]+)")


def configured_servers(config: str) -> Dict[Tuple[str, str], Tuple[str, str, str]]:
    """Return {(backend, server): (address, port, weight)} from a configuration of this project."""
    found = {}
    backend = ""
    for line in config.splitlines():
        section, server = _BACKEND.match(line), _SERVER.match(line)
        if section:
            backend = section[1]
        elif server and backend in runtime.BACKENDS.values():
            weight = _WEIGHT.search(server[4])
            found[(backend, server[1])] = (server[2].strip("[]"), server[3], weight[1] if weight else "1")
    return found


def complete_state(state: str, config: str) -> str:
    """Return a state with one row for each server of a configuration, and without rows of other servers.

    A server in `state` keeps its drain, weight and check results. A server that is not in `state`, or has moved to another address
    or port, is down until its checks pass.
    """
    rows = _rows(state)
    lines = [VERSION, "# " + " ".join(COLUMNS)]
    for (backend, name), (address, port, weight) in configured_servers(config).items():
        row = rows.get((backend, name)) or _new_row(backend, name, port, weight)
        # Host names are not compared, because the state has the resolved address of a host name.
        is_ip_address = re.fullmatch(r"[0-9.]+|.*:.*", address) is not None
        if row["srv_port"] != port or (is_ip_address and row["srv_addr"] not in ("-", address)):
            row = {**row, "srv_op_state": "0", "srv_check_health": "0", "srv_check_result": "0", "srv_port": port}
        lines.append(" ".join(row[column] for column in COLUMNS))
    return "\n".join(lines) + "\n"


def _rows(state: str) -> Dict[Tuple[str, str], Dict[str, str]]:
    """Return {(backend, server): row} of a saved state, or {} if a column is missing. All servers then count as new."""
    lines = state.splitlines()
    header = lines[1].split()[1:] if len(lines) > 1 and lines[0] == VERSION else []
    if any(column not in header for column in COLUMNS):
        return {}
    rows = [dict(zip(header, line.split())) for line in lines[2:] if len(line.split()) >= len(header)]
    return {(row["be_name"], row["srv_name"]): row for row in rows}


def _new_row(backend: str, name: str, port: str, weight: str) -> Dict[str, str]:
    row = dict.fromkeys(COLUMNS, "0")
    row.update(dict.fromkeys(("srv_fqdn", "srvrecord", "srv_check_addr", "srv_agent_addr"), "-"))
    values = {"be_name": backend, "srv_name": name, "srv_addr": "-", "srv_port": port}
    # Status 1: the server was not checked yet. State 6: the check is enabled.
    checks = {"srv_check_status": "1", "srv_check_state": "6" if backend == runtime.BACKENDS["http"] else "0"}
    return {**row, **values, **checks, "srv_uweight": weight, "srv_iweight": weight}


def save() -> None:
    """Save the state of the servers. If HAProxy does not run, complete the last saved state. Raises BalancerError."""
    config = read_text(files.CONFIG) or ""
    if not configured_servers(config):
        # This project did not write the configuration, so it does not save the state either.
        return
    try:
        state = Runtime(SOCKET).command("show servers state")
    except BalancerError:
        state = read_text(files.STATE) or ""
    try:
        durable.write(files.STATE, complete_state(state, config), 0o600)
    except OSError as error:
        raise BalancerError(f"{files.STATE} cannot be written: {error.strerror}") from None


def reload(master: int) -> None:
    """Reload the HAProxy with the main process `master`. Wait until its new configuration is in use. Raises BalancerError."""
    if master <= 1:
        raise BalancerError("MAINPID is not set, expected the main process of HAProxy. Run `systemctl reload haproxy`")
    haproxy = Runtime(SOCKET)
    before = _running(haproxy)[0]
    failed = _failed_reloads()
    save()
    os.kill(master, signal.SIGUSR2)
    expected = files.digest_in(read_text(files.CONFIG) or "")
    deadline = time.monotonic() + RELOAD_TIMEOUT
    while time.monotonic() < deadline:
        pid, digest = _running(haproxy)
        if pid not in (0, before) and expected in (None, digest):
            return
        if _failed_reloads() > failed:
            raise BalancerError(f"HAProxy refuses {files.CONFIG} and keeps its previous one. See `journalctl --unit {files.UNIT}`")
        time.sleep(PAUSE)
    raise BalancerError(f"HAProxy did not load {files.CONFIG} in {RELOAD_TIMEOUT:.0f} s. See `journalctl --unit {files.UNIT}`")


def _running(haproxy: Runtime) -> Tuple[int, Optional[str]]:
    """Return (process ID, digest of the configuration) of the running HAProxy, or (0, None) if it does not answer."""
    try:
        info = haproxy.command("show info")
        return runtime.parse_info(info, time.time()).pid, files.digest_in(info)
    except BalancerError:
        return 0, None


def _failed_reloads() -> int:
    """Return the number of failed reloads since the last successful reload, or 0 if the main process does not answer."""
    try:
        found = _FAILED.search(Runtime(MASTER, "@master").command("show proc"))
    except BalancerError:
        return 0
    return int(found[1]) if found else 0


def main(action: str) -> int:
    """Run `save` or `reload` under the lock of the balancer, so that no other process changes a server meanwhile."""
    if action not in ("save", "reload"):
        print(f"balancer {action}: expected save or reload", file=sys.stderr)
        return 2
    try:
        with drains.locked():
            if action == "reload":
                reload(int(os.environ.get("MAINPID") or 0))
            else:
                save()
    except (BalancerError, OSError, ValueError) as error:
        print(f"<3>{error}", flush=True)
        return 1
    return 0
