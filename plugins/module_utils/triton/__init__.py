# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Triton itself: its HTTP API, its loads by gRPC, its command line, its key."""

from __future__ import annotations
