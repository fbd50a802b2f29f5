# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Documentation fragments of the modules."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation of options and attributes that several modules share."""

    DOCUMENTATION = r"""
options:
  root:
    description: Directory of the project on the host. Default is the variable C(npufleet_root).
    type: path
    default: /var/lib/npufleet
"""

    # For modules that change no host
    READER = r"""
attributes:
  check_mode:
    support: full
    description: Runs as usual, because the module changes no host.
"""

    # For modules that change a host, and report the change in check mode
    WRITER = r"""
attributes:
  check_mode:
    support: full
    description: Reports what would change.
"""

    # For modules that run on a load balancer
    BALANCER = r"""
options:
  socket:
    description: Runtime socket of HAProxy with the level C(admin).
    type: path
    default: /run/haproxy/admin.sock
  master_socket:
    description: >-
      Master socket of HAProxy. After a reload, old workers finish their requests with the earlier configuration. The module queries
      old workers through this socket. If the socket does not exist, the module ignores their requests.
    type: path
    default: /run/haproxy-master.sock
  directory:
    description: Directory on the balancer with the records of drains and the saved state of the servers.
    type: path
    default: /var/lib/npufleet-balancer
"""
