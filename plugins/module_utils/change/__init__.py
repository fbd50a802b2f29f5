# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A change of a host: the lease that guards it, its steps, and its rollback by the host itself."""

from __future__ import annotations
