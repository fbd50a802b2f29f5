# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The vendor's driver: its installer, its command-line tool, and those of its files that a container needs."""

from __future__ import annotations
