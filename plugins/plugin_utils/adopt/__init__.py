# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Taking over a server that somebody made by hand: the controller's side."""

from __future__ import annotations
