# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The report as one page of HTML that needs no network. Controller only."""

from __future__ import annotations

import os
import secrets
from typing import Any, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

TEMPLATES = os.path.join(COLLECTION, "files", "report")


def page(fleet: Mapping[str, Any]) -> str:
    """Return the page of an escaped view of a fleet (view.py)."""
    # Most runs render no report, so the import is here.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        # `fleet` is escaped already. Style and script come from this project.
        autoescape=False,
    )
    return environment.get_template("page.html.j2").render(fleet=fleet, nonce=secrets.token_hex(8))
