# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The programs that systemd keeps running beside the server: the watchdog, and the probe of its timer."""

from __future__ import annotations
