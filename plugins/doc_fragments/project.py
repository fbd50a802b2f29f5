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

    # For modules whose action does all work on the controller
    CONTROLLER = r"""
attributes:
  check_mode:
    support: full
    description: Runs on the controller and changes no host.
"""
