# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concerns of a host, which are its parts, such as `driver` and `models`.

Each module reads the actual state of its concern, and compares it with the desired state.
"""
