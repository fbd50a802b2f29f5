#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: chart_series
short_description: Read the time series for the charts of the report from Prometheus
description:
  - Reads requests and latency of each model, and temperature and memory of the cards, from the Prometheus of a monitoring host.
    M(npufleet.triton.fleet_report) draws the charts.
  - At most 12 cards have their own series, first faulted cards, then the hottest cards. The series of the fleet cover all cards.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.reader
options:
  port:
    description: Port of Prometheus, which has to answer HTTP on the loopback address.
    type: int
    default: 9090
  hours:
    description: Length of the charts in hours, from 1 to 720.
    type: int
    default: 6
"""

EXAMPLES = r"""
- name: Read the series of the last day
  npufleet.triton.chart_series:
    hours: 24
  register: npufleet_charts
"""

RETURN = r"""
start:
  description: Time of the first point in seconds since 1970.
  returned: success
  type: int
step:
  description: Seconds between two points.
  returned: success
  type: int
series:
  description: >-
    For each chart, a list of series. Each series has C(labels), and C(values) with one number or null for each point. Empty if
    RV(flaw) is not null.
  returned: success
  type: dict
flaw:
  description: Reason why Prometheus could not be read. Null after a success.
  returned: success
  type: str
"""

import time
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import chart_series, request

OPTIONS: Dict[str, Any] = {
    "port": {"type": "int", "default": 9090},
    "hours": {"type": "int", "default": 6},
}
MAX_HOURS = 720


def run(module: request.Module) -> None:
    port, hours = module.params["port"], module.params["hours"]
    if not 1 <= hours <= MAX_HOURS:
        module.fail_json(msg=f"hours is {hours}, expected a number from 1 to {MAX_HOURS}")
    module.exit_json(changed=False, **chart_series.read(port, time.time(), hours))


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
