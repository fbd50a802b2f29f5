"""A role that a run includes several times releases only a lease that the same inclusion has taken."""

from __future__ import annotations

from pathlib import Path

from helpers import ROOT
from stage import MODEL, Run, differs, run

HERE = Path(__file__).parent
NEVER_IN_SYNC = [differs("models", "release", name="add", until="never")]


def leases(ran: Run) -> list[str]:
    """Return the calls that take, use and release the lease of npu-1, in their order."""
    calls = [call.partition(" ")[2] for call in ran.calls if call.startswith("npu-1 ")]
    return [call for call in calls if call.startswith(("host_lease", "server_change", "ping"))]


def test_second_inclusion_keeps_the_lease_of_the_play(tmp_path: Path) -> None:
    ran = run(tmp_path, str(HERE / "twice.yml"), {"npu-1": {"plan": MODEL}})
    assert ran.code == 0, ran.output
    assert leases(ran) == [
        "host_lease",
        "server_change with_checks",
        "host_lease released",
        "host_lease",
        "ping",
        "host_lease released",
    ]


def test_rollout_after_a_role_keeps_its_lease(tmp_path: Path) -> None:
    """The variables of the first playbook persist in the second one."""
    ran = run(tmp_path, str(HERE / "server.yml"), {"npu-1": {"plan": NEVER_IN_SYNC}}, str(ROOT / "playbooks/models.yml"))
    assert ran.code == 0, ran.output
    assert leases(ran) == [
        *("host_lease", "server_change with_checks", "host_lease released"),
        *("host_lease", "server_change with_checks", "host_lease released"),
    ]
