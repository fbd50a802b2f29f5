# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The variables of the inventory: types, bounds, errors, and the inputs of preflight."""
