# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The facts that the controller computes for several concerns of a host."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence


class Context(NamedTuple):
    """Facts in addition to the variables. An expensive fact is a function. Only the concerns that need the fact call it."""

    # The manifests of the models that are placed on the host
    manifests: Mapping[str, Mapping[str, Any]] = {}
    # Models that Triton itself reads from an object store
    cloud_models: Sequence[str] = ()
    # Returns the desired state of the concern `image`
    image: Callable[[], Mapping[str, Any]] = dict
    # Returns the digest of all inputs of the probe's checks, or None for a host without a probe
    checks: Callable[[], Optional[str]] = lambda: None
    # Returns (model, JSON body) for the health check of a load balancer. The argument is the models of its servers.
    balancer_check: Callable[[Sequence[str]], Any] = lambda _models: None
    # True for the proof after a change, for which the state must be good now. A plan also accepts a state that was good recently.
    proof: bool = False


EMPTY = Context()
