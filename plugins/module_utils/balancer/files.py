# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The paths of the files of a load balancer, and functions that read its haproxy.cfg."""

from __future__ import annotations

import re
from typing import Optional

# HAProxy's unit from the distribution, and the drop-in with which the unit saves the state of the servers at a reload or stop
UNIT = "haproxy.service"
DROP_IN = "/etc/systemd/system/haproxy.service.d/50-npufleet.conf"
CONFIG = "/etc/haproxy/haproxy.cfg"
# The balancer's certificate with its key, and the CA certificate that verifies the clients. Only root can read these files.
CERTIFICATE, CLIENT_CA = "/etc/haproxy/npufleet/balancer.pem", "/etc/haproxy/npufleet/clients.pem"
# The directory of the records of drains, and the file from which HAProxy reads the state of the servers at a start or reload
HOME = "/var/lib/npufleet-balancer"
STATE = HOME + "/state"
# The first line of a configuration of this project
HEADER = "# Written by npufleet. A manual change is overwritten."
# The wildcard address of IPv6. A listener on this address also takes IPv4 connections.
BINDS_ALL_IPV6 = "::"
_DESCRIPTION = re.compile(r"^ *description:? npufleet ([0-9a-f]{16})$", re.MULTILINE)


def description_line(digest: str) -> str:
    """Return the line that names the digest of a configuration. `show info` of a running HAProxy also contains the digest."""
    return f"description npufleet {digest}".rstrip()


def digest_in(text: str) -> Optional[str]:
    """Return the digest in a configuration or in the answer to `show info`, or None if the text has no digest."""
    found = _DESCRIPTION.search(text)
    return found[1] if found else None
