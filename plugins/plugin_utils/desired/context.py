# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The facts that the controller computes for several concerns of a host."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence


def _none() -> Any:
    return None


class Context(NamedTuple):
    """Facts in addition to the variables. An expensive fact is a function, which a concern calls only if it needs the fact."""

    # The manifests of the models that are placed on the host
    manifests: Mapping[str, Mapping[str, Any]] = {}
    # Models that Triton itself reads from an object store
    cloud_models: Sequence[str] = ()
    # The desired state of the concern `image`
    image: Callable[[], Mapping[str, Any]] = _none
    # The digest of all inputs of the probe's checks; None for a host without a probe
    checks: Callable[[], Optional[str]] = _none
    # True for a proof, which judges the state at this moment; False for a plan, which also accepts a good state of a short time ago
    now: bool = False


EMPTY = Context()
