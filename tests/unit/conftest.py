"""Make the checkout importable, and the library of a host for the tests that need it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import checkout  # noqa: F401
import pytest


@pytest.fixture(scope="session")
def hosts_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a library that has the version of this checkout."""
    from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as on_host
    from ansible_collections.npufleet.triton.plugins.plugin_utils import library

    home = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(on_host, "HOME", str(home))
        assert on_host.install(library.version(), library.packed(str(home.parent)))
        assert on_host.activate(library.version())
    return home


@pytest.fixture(scope="session", autouse=True)
def nothing_installed_on_this_machine() -> Iterator[None]:
    """Remove the library that playbooks of tests install on this machine if they run as root."""
    from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as on_host

    parent = Path(on_host.HOME).parent
    before = parent.exists()
    yield
    if not before and parent.exists():
        shutil.rmtree(parent)
