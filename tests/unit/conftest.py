"""The checkout is importable to every test here; and a host's library, which takes a while to be made."""

from pathlib import Path

import checkout  # noqa: F401
import pytest


@pytest.fixture(scope="session")
def hosts_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a host has the library of this checkout."""
    from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as on_host
    from ansible_collections.npufleet.triton.plugins.plugin_utils import library

    home = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(on_host, "HOME", str(home))
        assert on_host.install(library.version(), library.packed(str(home.parent)))
    return home
