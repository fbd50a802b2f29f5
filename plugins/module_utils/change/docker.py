"""The engine, asked to change containers, in words for an operator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Dict, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine, missing_binds

# Seconds beyond the container's own patience in which the engine has to answer a stop
ENGINE_EXTRA = 60.0


class ContainerError(Exception):
    """What the engine or the server refused, in words for an operator."""


class Docker(Engine):
    """The engine, asked to change containers."""

    def inspect(self, name: str) -> Optional[Dict[str, Any]]:
        """`docker inspect`, None for a container that is not there. Raises ContainerError when no engine answers."""
        try:
            return self.container(name)
        except OSError as error:
            raise ContainerError(f"the engine does not answer ({error}): see `systemctl status docker`") from error

    def order(self, method: str, resource: str, timeout: float, allowed: Tuple[int, ...] = (204, 304)) -> None:
        """One change. Raises ContainerError with the engine's own words."""
        try:
            status, raw = self.exchange(method, resource, timeout=timeout)
        except OSError as error:
            raise ContainerError(f"the engine did not answer {method} {resource}: {error or type(error).__name__}") from error
        body = raw.decode("utf-8", "replace")
        if status not in allowed:
            with suppress(ValueError):
                body = shapes.parse_as(body, {"message": str})["message"]
            raise ContainerError(f"the engine refused {method} {resource.partition('?')[0]}: {' '.join(body.split())[:500]}")

    def stop(self, identity: str, patience: float) -> None:
        """Stop it as patiently as it says itself; one that restarts in a loop stays ended."""
        self.order("POST", f"/containers/{identity}/stop", patience + ENGINE_EXTRA)

    def start(self, identity: str) -> None:
        """Start it, unless the engine would make directories of what it mounts."""
        refuse_absent(self.inspect(identity) or {})
        self.order("POST", f"/containers/{identity}/start", ENGINE_EXTRA)

    def rename(self, identity: str, name: str) -> None:
        """Give it another name."""
        from urllib.parse import quote

        self.order("POST", f"/containers/{identity}/rename?name={quote(name)}", ENGINE_EXTRA)

    def remove(self, identity: str) -> None:
        """Take it away, running or not."""
        self.order("DELETE", f"/containers/{identity}?force=true", ENGINE_EXTRA, (204, 404))

    def kill(self, identity: str) -> None:
        """End its first process; one that has ended is as good."""
        self.order("POST", f"/containers/{identity}/kill", ENGINE_EXTRA, (204, 409))


def refuse_absent(container: Mapping[str, Any]) -> None:
    """Raise ContainerError where the engine would make directories of what a container mounts."""
    gone = missing_binds(container)
    if gone:
        raise ContainerError(f"found nothing at {', '.join(gone)}, which the container mounts: put it back, then run site.yml")
