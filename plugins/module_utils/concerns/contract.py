"""What a concern is: what is wanted of a host, how that is read, and what the difference is."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item

NPU_HOSTS, MONITORING_HOSTS = "npu_hosts", "monitoring_hosts"


def _nothing() -> Any:
    return None


class Given(NamedTuple):
    """What the controller has worked out beside the variables. What costs something is made when a concern asks for it."""

    # Of every model that is placed on the host
    manifests: Mapping[str, Mapping[str, Any]] = {}
    # Models that Triton itself reads out of an object store
    cloud: Sequence[str] = ()
    # The image that is locked for the release, as the concern `image` wants it
    image: Callable[[], Mapping[str, Any]] = _nothing
    # Digest of all that the probe's checks follow from, None where there is no probe
    checks: Callable[[], Optional[str]] = _nothing
    # Whether it is for a proof
    now: bool = False


NOTHING = Given()


class Concern(Protocol):
    """A part of a host, as a file of this room."""

    # Its name in plans, and the group of hosts that have it
    CONCERN: str
    GROUP: str

    def desired(self, variables: Mapping[str, Any], given: Given = ...) -> Dict[str, Any]:
        """What is wanted, on the controller, of variables alone. Raises Refusal with every reason why nothing can be."""

    def read(self, wanted: Mapping[str, Any]) -> Dict[str, Any]:
        """What is there, on the host, as root. Changes nothing, and answers on a bare host too."""

    def diff(self, wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
        """The differences, on the host."""
