# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The report as one page of HTML that needs no network."""

from __future__ import annotations

import os
import secrets
from typing import Any, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

TEMPLATES = os.path.join(COLLECTION, "files", "report")


def page(fleet: Mapping[str, Any]) -> str:
    """Return the HTML page of a fleet. `fleet` is the result of view.view(), escaped."""
    # Most runs do not render a report, so jinja2 is imported only here.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        # `fleet` is already escaped. Style and script come from this project.
        autoescape=False,
    )
    return environment.get_template("page.html.j2").render(fleet=fleet, nonce=secrets.token_hex(8))
