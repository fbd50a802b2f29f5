"""How the checks run on a host: in a short-lived container of the release image, which carries its client."""

from __future__ import annotations

import json
from typing import Any, List, Mapping, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import archive

ENTRY = "inference.runner"
# What python3 in the container starts with: program and document come together on standard input.
START = f"""
import base64, json, sys, tempfile
given = json.load(sys.stdin)
with tempfile.NamedTemporaryFile(suffix=".pyz") as program:
    program.write(base64.b64decode(given["program"]))
    program.flush()
    sys.path.insert(0, program.name)
    from {archive.PREFIX}{ENTRY} import main
    main(given["document"])
"""


def given(document: Mapping[str, Any], program: str) -> bytes:
    """What such a container takes on standard input; `program` is the archive as base64."""
    return json.dumps({"program": program, "document": document}, sort_keys=True).encode()


def command(docker: str, image: str, more: Sequence[str] = ()) -> List[str]:
    """The command line of such a container; what it is to ask comes on standard input.

    Without a look at registries: what was not brought here on purpose is not what was proven.
    """
    options = ["--rm", "--interactive", "--pull", "never", "--network", "host", *more, "--entrypoint", "python3"]
    return [docker, "run", *options, image, "-c", START]
