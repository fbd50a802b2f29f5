"""Repositories of bench-serving: its `rbln` models are what a host's manifest renders. No server is run here."""

from __future__ import annotations

from pathlib import Path

import pytest
import repository
import server


@pytest.mark.parametrize("release", server.RELEASES)
def test_models_are_rendered_as_for_a_host(release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (server, repository):
        monkeypatch.setattr(module, "BUILD", tmp_path)
    place = repository.make("here", release, {"rbln": ("throughput", [0])}, [4.0], ["naive"])
    assert sorted(path.name for path in place.iterdir()) == ["empty-4ms", "naive", "rbln"]
    assert 'backend: "rbln"' in (place / "rbln/config.pbtxt").read_text()
    assert "dynamic_batching" in (place / "rbln/config.pbtxt").read_text()
    assert (place / "rbln/1/model.rbln").read_bytes() == (place / "naive/1/model.rbln").read_bytes()
