# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to servers beyond this host."""

from __future__ import annotations
