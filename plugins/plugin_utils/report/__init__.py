# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The report of a fleet: what it shows."""

from __future__ import annotations
