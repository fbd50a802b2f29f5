"""What a host does of a change without its controller.

npufleet_change.pyz turn ROOT: the change that was ordered (detached.py).
npufleet_change.pyz resume ROOT: end a change whose run is gone (resume.py). Exit code 0: nothing is under way, or it was ended;
75: its run may still be at it; 1: it could not be put back.
"""

from __future__ import annotations

import sys

from ansible_collections.npufleet.triton.plugins.module_utils.change import detached
from ansible_collections.npufleet.triton.plugins.module_utils.change.resume import resume

# A program: what it prints is the journal's. pylint: disable=ansible-bad-function
BUSY = 75


def main() -> int:
    """Entry point; what it says goes to the journal, with syslog's level."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("resume", "turn"):
        print(__doc__, file=sys.stderr)
        return 2
    if sys.argv[1] == "turn":
        return detached.perform(sys.argv[2])
    outcome = resume(sys.argv[2])
    if outcome.busy:
        return BUSY
    if outcome.failed:
        print(f"<3>{outcome.failed}", flush=True)
        return 1
    if outcome.did:
        print(f"<4>{outcome.did}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
