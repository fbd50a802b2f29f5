# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Safe use of kernel services: locks, a clock that nobody can set, durable files, directory trees of any depth."""

from __future__ import annotations
