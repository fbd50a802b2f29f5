# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The Docker engine of a host, and what runs in it."""

from __future__ import annotations
