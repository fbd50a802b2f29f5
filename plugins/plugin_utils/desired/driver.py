# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired driver of a host: version, form of installation, and systemd units, including those of the container toolkit."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import PRESENT, RUN
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

# systemd reads `$$` as `$`. The unit counts the nodes and ignores their numbers, because a failed card can shift the numbers.
UNIT_TEXT = r"""# Written by npufleet
[Unit]
Description=Device nodes of the NPUs
After=systemd-modules-load.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=NPUS={npus} TIMEOUT={timeout}
ExecStart=/bin/sh -c '\
    waited=0; \
    while :; do \
        set --; \
        for node in /dev/rbln[0-9]*; do if [ -c "$$node" ]; then set -- "$$@" "$$node"; fi; done; \
        if [ -c /dev/rsd0 ]; then rsd0=there; else rsd0=missing; fi; \
        if [ $$# -ge "$$NPUS" ] && [ $$rsd0 = there ]; then exit 0; fi; \
        if [ $$waited -ge "$$TIMEOUT" ]; then break; fi; \
        sleep 1; waited=$$((waited + 1)); \
    done; \
    echo "after $$TIMEOUT s: found $$# of $$NPUS NPUs ($$*), /dev/rsd0 $$rsd0: see dmesg; the engine starts all the same" >&2; \
    exit 1'

[Install]
WantedBy=multi-user.target
"""
FORMS = ("deb", RUN, PRESENT)


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the driver of the release row for a host with `npufleet_npus` NPUs. Raises Refusal."""
    row = variables["npufleet_release_row"]
    driver, form, npus = row["driver"], variables["rbln_driver_form"], int(variables["npufleet_npus"])
    if form not in FORMS:
        raise Refusal(
            f"driver {driver['version']} of release {variables['rbln_release']} is a .{form} package, expected .deb or .run. "
            f"Install it manually and set rbln_driver_form: {PRESENT}, or choose a release whose driver is one of these"
        )
    return {
        "form": form,
        "package": driver["package"],
        "version": driver["version"],
        "npus": npus,
        "cards": list(row["cards"]),
        "hold": bool(variables["rbln_driver_hold"]),
        "reboots": bool(variables["rbln_driver_reboot"]),
        "unit": unit(npus, int(variables["rbln_driver_boot_timeout"])),
        # The units of the container toolkit, for a host whose engine finds the cards by CDI name
        "cdi": cdi.unit_texts(variables["triton_server_name"]) if device_access.uses_cdi(variables) else {},
    }


def unit(npus: int, timeout: int) -> str:
    """Return the systemd unit that ends when the host has the device nodes of all NPUs, or fails after `timeout` seconds."""
    return UNIT_TEXT.replace("{npus}", str(npus)).replace("{timeout}", str(timeout))
