# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Services of a host's kernel, without their traps: locks, a clock that does not step, directory trees of any depth."""

from __future__ import annotations
