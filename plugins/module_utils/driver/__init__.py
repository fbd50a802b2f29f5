# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The vendor's driver: its installer, its command-line tool, and its files for containers."""
