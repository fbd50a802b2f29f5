# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Documentation that modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """Options and attributes that several modules have."""

    DOCUMENTATION = r"""
options:
  root:
    description: Directory of the project on the host. Default is the variable C(npufleet_root).
    type: path
    default: /var/lib/npufleet
"""

    # Modules whose action does everything on the controller
    CONTROLLER = r"""
attributes:
  check_mode:
    support: full
    description: Runs on the controller and changes no host.
"""
