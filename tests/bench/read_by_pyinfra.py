#!/usr/bin/env python3
"""A deploy of pyinfra that reads the same facts of every host as `site.yml`, and changes nothing.

converge.py runs this program in a separate virtual environment. Standard input has the hosts as JSON: [[name, data for pyinfra],
...]. The arguments are the models. pyinfra runs one command for each fact, on all hosts at once, as root.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import shlex  # noqa: E402
import sys  # noqa: E402
from typing import Any, Dict, List  # noqa: E402

from pyinfra.api import Config, FactBase, Inventory, State  # noqa: E402
from pyinfra.api.connect import connect_all, disconnect_all  # noqa: E402
from pyinfra.api.facts import get_facts  # noqa: E402

ROOT = "/var/lib/npufleet"
# A program that prints what the server serves: its index, and the configuration of each model, which contains the release
SERVED = """
import json, sys, urllib.request as u
key = {"npufleet-key": open("/etc/npufleet/server/key").read().strip()}
def ask(path, method="GET"):
    return json.load(u.urlopen(u.Request("http://127.0.0.1:8000/v2/" + path, headers=key, method=method), timeout=10))
print(json.dumps([ask("repository/index", "POST"), {name: ask(f"models/{name}/config") for name in sys.argv[1:]}]))
"""


class Output(FactBase):
    """The output of a shell command."""

    def command(self, line: str) -> str:
        return line


def commands(models: List[str]) -> Dict[str, str]:
    """Return {fact: shell command that reads it}."""
    return {
        "driver": "dpkg-query --show --showformat '${Version} ${db:Status-Abbrev}' rebellions",
        "module": "cat /sys/module/rebellions/version 2>/dev/null || cat /proc/modules | grep rebellions",
        "cards": "rbln-stat -j",
        "engine": "docker version --format '{{json .Server}}'",
        "engine settings": "sha256sum /etc/docker/daemon.json",
        "image": "docker image inspect $(docker inspect --format '{{.Image}}' triton)",
        "container": "docker inspect triton",
        "links": f"cd {ROOT}/served && for one in *; do printf '%s %s\\n' $one $(readlink $one); done",
        "served": f"python3 -c {shlex.quote(SERVED)} {' '.join(models)}",
        "timers": "systemctl show npufleet-probe.timer npufleet-watchdog.service",
        "free disk": f"df --block-size=1 --output=avail {ROOT} /var/lib/docker",
    }


def main() -> None:
    hosts: List[Any] = [(name, data) for name, data in json.load(sys.stdin)]
    state = State(Inventory((hosts, {})), Config(SUDO=True, PARALLEL=0))
    connect_all(state)
    for name, line in commands(sys.argv[1:]).items():
        outputs = get_facts(state, Output, kwargs={"line": line, "_sudo": True})
        missing = [str(host) for host in state.inventory if not outputs.get(host)]
        if missing:
            sys.exit(f"{name} of {', '.join(missing)} was not read: {line}")
    disconnect_all(state)


if __name__ == "__main__":
    main()
