"""What a bench reads of its hosts and of a playbook. The lab itself is not run here."""

from __future__ import annotations

import bench_lab


def test_longest_tasks_as_profile_tasks_lists_them() -> None:
    output = """PLAY RECAP *****
npu1                       : ok=20   changed=5
===============================================================================
npufleet.triton.model_repository : Transfer what is missing ------------- 4.70s
Ask what differs, and refuse what cannot be done ------------------------ 1.02s
"""
    assert bench_lab.longest(output) == [
        (4.7, "Transfer what is missing"),
        (1.02, "Ask what differs, and refuse what cannot be done"),
    ]


def test_calls_of_modules_as_sudo_writes_them_down() -> None:
    journal = """pam_unix(sudo:session): session opened for user root(uid=0) by (uid=1000)
    ops : PWD=/home/ops ; USER=root ; COMMAND=/bin/sh -c 'echo BECOME-SUCCESS-abc ; /usr/bin/python3'
    ops : PWD=/home/ops ; USER=root ; COMMAND=/usr/bin/rsync --server
    ops : PWD=/home/ops ; USER=root ; COMMAND=/bin/sh -c 'echo BECOME-SUCCESS-def ; /usr/bin/python3'
pam_unix(sudo:session): session closed for user root
"""
    assert bench_lab.calls_of(journal) == 2
