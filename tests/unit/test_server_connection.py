"""The address, the ports and the key of an actual server, from its container or its command line."""

from __future__ import annotations

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import connection
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys


@pytest.mark.parametrize(
    ("path", "expected"),
    [(keys.FILE, {"name": "triton-key", "path": keys.FILE}), ("/root/token", None), (f"{keys.HOME}/../../../root/token", None)],
)
def test_only_the_key_file_of_the_host_is_read(path: str, expected: dict[str, str] | None) -> None:
    """Foreign code may have written a command line."""
    script = f'key=$(cat {path}) && exec tritonserver "--http-restricted-api=model-repository:triton-key=$key"'
    assert connection.api_key(["sh", "-c", script], keys.FILE) == expected
