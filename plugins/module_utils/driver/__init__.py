# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The vendor's driver: its installer, its tool, and the files that a container needs of it."""

from __future__ import annotations
