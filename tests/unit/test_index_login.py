"""The login to a package index: what pip reads from the file is what the inventory has, or it is refused."""

from __future__ import annotations

import netrc
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply

INDEX = "https://pypi.example.com/simple/"
PASSWORDS = [
    "plain",
    'a"quote',
    '"quoted"',
    "back\\slash",
    "end\\",
    "#hash",
    "a'b",
    "pass{}[];:,.~`!$%^&*()",
    "machine",
    "two words",
    " x",
]


@pytest.mark.parametrize("password", PASSWORDS)
def test_python_reads_back_what_was_written(tmp_path: Path, password: str) -> None:
    path = tmp_path / "netrc"
    path.write_text(image_supply.login_file(INDEX, "fleet user", password, "3.12"))
    assert netrc.netrc(str(path)).authenticators("pypi.example.com") == ("fleet user", "", password)


@pytest.mark.parametrize("password", [entry for entry in PASSWORDS if " " not in entry])
def test_older_readers_know_no_quotes(password: str) -> None:
    text = image_supply.login_file(INDEX, "fleet", password, "3.10")
    assert text == f"machine pypi.example.com login fleet password {password}\n"


@pytest.mark.parametrize(
    ("password", "python", "why"),
    [
        ("two words", "3.10", "because of a space"),
        ("tab\there", "3.12", "printable ASCII"),
        ("line\nmachine other", "3.12", "printable ASCII"),
        ("", "3.12", "is empty"),
        ("Schl\u00fcssel", "3.12", "printable ASCII"),
        ("x" * 2000, "3.12", "longer than 1024"),
    ],
)
def test_a_login_that_cannot_be_written_is_refused_without_naming_it(password: str, python: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        image_supply.login_file(INDEX, "fleet", password, python)
    assert not password or password not in str(refused.value)
