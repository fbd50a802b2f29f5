# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The content of a support bundle, read on the host."""

from __future__ import annotations
