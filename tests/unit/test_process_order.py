"""What is handed over for a server inside a container: a host's command line, at ports and places of the container."""

from __future__ import annotations

import pytest
from ansible_collections.npufleet.triton.plugins.action import triton_process as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container as desired_container
from helpers import fleet

ROOT = "/home/work/npufleet"


def command(**inventory: object) -> list[str]:
    return subject.command(fleet(**inventory), ["digits"], ROOT)


def test_ports_are_those_that_a_host_publishes() -> None:
    line = command(npufleet_http_port=9000, npufleet_grpc_port=9001, npufleet_metrics_port=9002)
    assert [word for word in line if "-port=" in word] == ["--http-port=9000", "--grpc-port=9001", "--metrics-port=9002"]
    assert not [word for word in line if word.endswith(("=8000", "=8001", "=8002"))]


@pytest.mark.parametrize(
    ("listen", "addresses"),
    [
        ("127.0.0.1", ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]),
        ("", []),
    ],
)
def test_it_listens_where_a_host_would_publish(listen: str, addresses: list[str]) -> None:
    line = command(triton_server_listen_address=listen)
    assert [word for word in line if "-address=" in word] == addresses
    own = command(triton_server_listen_address="", triton_server_metrics_listen_address="10.0.0.5")
    assert [word for word in own if "-address=" in word] == ["--metrics-address=10.0.0.5"]


def test_the_key_is_that_of_this_place() -> None:
    line = command()
    assert line[:2] == ["sh", "-c"]
    assert f"cat {ROOT}/server/key" in line[2]
    assert "/etc/npufleet" not in " ".join(line)
    assert "sh" not in command(triton_server_restricted_apis=[], triton_server_allow_open_control=True)


def test_all_else_is_as_in_a_container_of_its_own() -> None:
    mine = set(command(triton_server_listen_address="", triton_server_restricted_apis=[], triton_server_allow_open_control=True))
    assert mine == set(desired_container.command(fleet(), ["digits"], subject.OPTIONAL_OPTIONS))


def test_what_the_container_has_to_be_is_the_rows() -> None:
    found = subject.conditions(fleet(triton_server_allow_metrics=False))
    row = fleet()["npufleet_release_row"]
    assert (found["triton"], found["python"], found["driver"]) == (
        row["triton"]["version"],
        row["triton"]["python"],
        row["driver"]["version"],
    )
    assert found["cards"] == {"npus": fleet()["npufleet_npus"], "card": fleet()["npufleet_card"]}
    assert found["ports"] == [8000, 8001], "a service that is off needs no port"
    assert (found["shm_size"], found["listen"]) == (1 << 30, "0.0.0.0")
    assert any(requirement.startswith("rebel-compiler==") for requirement in found["requirements"])
