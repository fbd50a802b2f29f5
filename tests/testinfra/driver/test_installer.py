"""What the vendor's installer has left, below a server that serves on; there and away again: test_upgrade.py."""

from __future__ import annotations

import pytest
from conftest import playbook
from rows import BY_INSTALLER, LIBRARY, OWN, ROWS, ready

# The fixture `first`
pytest_plugins = ["rows"]
pytestmark = pytest.mark.skipif(not BY_INSTALLER, reason="the driver of this lab is a package")


def test_files_of_the_driver_that_are_gone_are_told(first):
    """And nothing is made of them: the engine would mount a directory where the SDK opens a file."""
    version = ROWS[OWN]["driver"]["version"]
    first.check_output("mv %s.3 %s.away", LIBRARY, LIBRARY)
    first.check_output("mv %s.%s /root", LIBRARY, version)
    run = playbook("site.yml")
    first.check_output("mv /root/librbln-thunk.so.%s /usr/lib/", version)
    first.check_output("mv %s.away %s.3", LIBRARY, LIBRARY)
    assert run.code == 2, run.output
    assert f"librbln-thunk.so* of driver {version} (in " in run.output
    assert set(run.changed().values()) == {0}
    assert ready(first)
