# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The files with check results for reports, one file for each host."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleActionFail
from ansible_collections.npufleet.triton.plugins.module_utils import system
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import picture
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import outputs


def remove(path: Optional[str]) -> None:
    """Remove the previous results of a host. Raises AnsibleActionFail.

    Otherwise a report would show the previous results of a host that is unreachable now.
    """
    if not path:
        return
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise AnsibleActionFail(f"the results of an earlier run cannot be removed from the controller: {error}") from None


def write(path: Optional[str], host: str, message: str, checks: List[Dict[str, Any]]) -> None:
    """Write the results to the file, then remove the pictures from `checks`. Raises AnsibleActionFail."""
    # Pictures are only for reports. On the screen, they would hide the failures.
    pictures = [picture.data_uri(check.pop("picture", None)) for check in checks]
    if path:
        stored = [{**check, "picture": uri} if uri else check for check, uri in zip(checks, pictures)]
        try:
            outputs.write(path, json.dumps({"host": host, "when": system.timestamp(), "msg": message, "checks": stored}))
        except OSError as error:
            raise AnsibleActionFail(f"the results cannot be written to {path} on the controller: {error}") from None
    for check in checks:
        check.pop("image", None)
