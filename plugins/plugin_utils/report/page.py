"""The report as one page of HTML that needs no network. Controller only."""

from __future__ import annotations

import os
import secrets
from typing import Any, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

TEMPLATES = os.path.join(COLLECTION, "files", "report")


def page(fleet: Mapping[str, Any]) -> str:
    """The page of a fleet as view.py makes it, every text escaped."""
    # Here, as most runs draw nothing
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        # `fleet` is escaped as a whole; style and script are the project's own
        autoescape=False,
    )
    return environment.get_template("page.html.j2").render(fleet=fleet, nonce=secrets.token_hex(8))
