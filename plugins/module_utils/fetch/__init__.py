# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The host's side of moving files: fetching them itself, and taking over what was sent."""

from __future__ import annotations
