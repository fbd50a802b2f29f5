# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A change of a host: who is at it, what is under way, and how it is ended on the host itself."""

from __future__ import annotations
