# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The server as a process of the container in which Ansible runs: start, stop and read."""

from __future__ import annotations
