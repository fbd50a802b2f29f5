# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The requests to the Docker engine that a change needs. Their errors have messages for an operator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Dict, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine, missing_binds

# Time limit in seconds of a request to the engine. For a stop, the stop timeout of the container is added.
ENGINE_TIMEOUT = 60.0


class ContainerError(Exception):
    """The error if a container cannot be changed, or does not serve. The message is for an operator."""


class Docker(Engine):
    """The engine, with requests that change containers. The requests raise ContainerError."""

    def inspect(self, name: str) -> Optional[Dict[str, Any]]:
        """Return the result of `docker inspect`, or None if there is no container."""
        try:
            return self.container(name)
        except OSError as error:
            raise ContainerError(f"the engine does not answer ({error}): see `systemctl status docker`") from error

    def order(self, method: str, resource: str, timeout: float, allowed: Tuple[int, ...] = (204, 304)) -> None:
        """Request one change. Raises ContainerError with the engine's message if the status is not in `allowed`."""
        try:
            status, raw = self.exchange(method, resource, timeout=timeout)
        except OSError as error:
            raise ContainerError(f"the engine did not answer {method} {resource}: {error or type(error).__name__}") from error
        if status not in allowed:
            body = raw.decode("utf-8", "replace")
            with suppress(ValueError):
                body = shapes.parse_as(body, {"message": str})["message"]
            raise ContainerError(f"the engine refused {method} {resource.partition('?')[0]}: {' '.join(body.split())[:500]}")

    def stop(self, identity: str, patience: float) -> None:
        """Stop a container, even if the engine keeps restarting it. `patience` is its stop timeout in seconds."""
        self.order("POST", f"/containers/{identity}/stop", patience + ENGINE_TIMEOUT)

    def start(self, identity: str) -> None:
        """Start a container. Raises ContainerError if the source of a bind mount is missing."""
        refuse_missing_mounts(self.inspect(identity) or {})
        self.order("POST", f"/containers/{identity}/start", ENGINE_TIMEOUT)

    def rename(self, identity: str, name: str) -> None:
        """Rename a container."""
        from urllib.parse import quote

        self.order("POST", f"/containers/{identity}/rename?name={quote(name)}", ENGINE_TIMEOUT)

    def remove(self, identity: str) -> None:
        """Remove a container, even if it is running."""
        self.order("DELETE", f"/containers/{identity}?force=true", ENGINE_TIMEOUT, (204, 404))

    def kill(self, identity: str) -> None:
        """Kill the main process of a container, unless it has ended."""
        self.order("POST", f"/containers/{identity}/kill", ENGINE_TIMEOUT, (204, 409))


def refuse_missing_mounts(container: Mapping[str, Any]) -> None:
    """Raise ContainerError if the source of a bind mount is missing, because the engine would create it as a directory."""
    gone = missing_binds(container)
    if gone:
        raise ContainerError(f"nothing is at {', '.join(gone)}, which the container mounts. Restore it, then run site.yml")
