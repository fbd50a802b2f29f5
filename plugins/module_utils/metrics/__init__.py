# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Metrics of a host for node exporter: the readings of its cards, and what Triton does not report about itself."""

from __future__ import annotations
