# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A running HAProxy: its servers and their changes, the records of drains, and the traffic."""
