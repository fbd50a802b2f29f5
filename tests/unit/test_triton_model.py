"""Module triton_model against a server that answers as Triton does."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.modules import triton_model
from helpers import http_server, run_module

LOAD, UNLOAD = "POST /v2/repository/models/digits/load", "POST /v2/repository/models/digits/unload"
TRACEBACK = (
    "load failed for model 'digits': version 1 is at UNAVAILABLE state: Internal: RBLNRuntimeError: LOADING_FILE_NOT_FOUND;\n"
)
POLLING = "explicit model load / unload is not allowed if polling is enabled"


@pytest.mark.parametrize(("state", "asked"), [(None, LOAD), ("loaded", LOAD), ("unloaded", UNLOAD)])
def test_server_is_asked_once(state: str | None, asked: str) -> None:
    with http_server({asked: (200, b"")}) as triton:
        result = run_module(triton_model, {"name": "digits", "port": triton.port, **({"state": state} if state else {})})
    assert result == {"failed": False, "changed": True, "status": 200}
    assert triton.asked == [asked]


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, {"error": TRACEBACK}, TRACEBACK),
        (500, {"error": "failed to load 'digits', failed to poll from model repository"}, None),
        (503, {"error": POLLING}, POLLING),
        (500, b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
    ],
)
@pytest.mark.parametrize(("state", "verb"), [("loaded", "load"), ("unloaded", "unload")])
def test_failure_carries_tritons_own_reason(status: int, body: Any, reason: str | None, state: str, verb: str) -> None:
    with http_server({f"POST /v2/repository/models/digits/{verb}": (status, body)}) as triton:
        result = run_module(triton_model, {"name": "digits", "port": triton.port, "state": state})
    reason = body["error"] if reason is None else reason
    assert result == {
        "failed": True,
        "status": status,
        "msg": f"model digits: Triton on port {triton.port} would not {verb} it (status {status}): {reason}",
    }


def test_server_that_is_not_there() -> None:
    with http_server({}) as gone:
        pass
    result = run_module(triton_model, {"name": "digits", "port": gone.port})
    assert (result["failed"], result["status"]) == (True, 0)
    assert result["msg"].startswith(f"model digits: Triton on port {gone.port} would not load it (status 0): ")
    assert "refused" in result["msg"]


@pytest.mark.parametrize("state", ["loaded", "unloaded"])
def test_check_mode_asks_for_nothing(state: str) -> None:
    with http_server({LOAD: (200, b""), UNLOAD: (200, b"")}) as triton:
        result = run_module(triton_model, {"name": "digits", "port": triton.port, "state": state}, check=True)
    assert result == {"failed": False, "changed": True}
    assert triton.asked == []
