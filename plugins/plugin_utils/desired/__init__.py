# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired state of each concern, computed on the controller from the variables of a host."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Mapping, Protocol, cast

from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context


class ConcernModule(Protocol):
    """The controller's Python module for a concern. Its file has the name of the concern."""

    def desired(self, variables: Mapping[str, Any], context: Context = ...) -> Dict[str, Any]:
        """Return the desired state. Raises Refusal with every error of the variables."""

    def sealed(self, state: Mapping[str, Any], key: str) -> Dict[str, Any]:
        """Return a desired state with each secret replaced by its digest. Only concerns with secrets have this function.

        The digests depend on `key`. The result contains the key, so that the host can compute digests of its actual secrets.
        """


def of_concern(name: str) -> ConcernModule:
    """Return the controller's Python module for a concern."""
    return cast(ConcernModule, importlib.import_module(f"{__name__}.{name}"))
