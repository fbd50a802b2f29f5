# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concerns of a host: how each is read and compared with its desired state."""

from __future__ import annotations
