"""How the check library runs on a host: in a short-lived container of the release image, which carries its client."""

from __future__ import annotations

from typing import List, Sequence

# What python3 in the container starts with: source and document come together on standard input.
START = """
import json, sys
given = json.load(sys.stdin)
exec(compile(given["source"], "inference.py", "exec"))
main(given["document"])
"""


def command(docker: str, image: str, more: Sequence[str] = ()) -> List[str]:
    """The command line of such a container; what it is to ask comes on standard input.

    Without a look at registries: what was not brought here on purpose is not what was proven.
    """
    options = ["--rm", "--interactive", "--pull", "never", "--network", "host", *more, "--entrypoint", "python3"]
    return [docker, "run", *options, image, "-c", START]
