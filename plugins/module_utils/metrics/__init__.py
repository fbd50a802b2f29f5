# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Metrics of a host for node exporter: the readings of its cards, and facts that Triton does not report."""
