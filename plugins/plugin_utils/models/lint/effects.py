# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Effects of an error in a model. Each text continues a sentence that begins with "Triton" or, for STORE_*, "the fleet's store"."""

from __future__ import annotations

REFUSES = "refuses the model"
REFUSES_TEXT = "refuses the whole file"
IGNORES = "ignores it"
LOADS = "loads the model with it"
HANGS = "hangs and never opens its ports"
HANGS_BEFORE_25_08 = f"refuses the model, and before 25.08 {HANGS}"
CRASHES = "ends, with every model that it serves"
LOADS_NOTHING = "loads no model at all when it starts, except in explicit mode"
# The store copies models to the hosts.
STORE_REFUSES = "refuses the model"
STORE_OMITS = "does not copy it"
