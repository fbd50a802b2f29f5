# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Validation of the record of a compiled file. The build host sends the record, so that any text is possible. Controller only."""

from __future__ import annotations

import base64
import json
import re
from typing import Dict

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled

SHAPE = {
    **compiled.SHAPE,
    "sha256": re.compile("[0-9a-f]{64}"),
    "compiler_version": str,
    "source": {"kind": str, "sha256": str, "spec": str},
}
# Characters of a JSON parser's message
MAX_MESSAGE = 200


def received(content: str, sha256: str) -> Dict[str, str]:
    """Return {"text": the record for the controller's disk, "flaw": the reason why it is refused, or ""}.

    `content` is the record in Base64, `sha256` the digest of the compiled file.
    """
    try:
        record = json.loads(base64.b64decode(content))
        text = json.dumps(record, allow_nan=False, indent=1, sort_keys=True) + "\n"
    except (ValueError, RecursionError) as error:
        return {"text": "", "flaw": f"it is not JSON ({str(error)[:MAX_MESSAGE]})"}
    flaw = shapes.mismatch(record, SHAPE)
    if not flaw:
        flaw = "; ".join(compiled.record_of({"record": record, "sha256": sha256}, record["npu"])[1])
    return {"text": "" if flaw else text, "flaw": flaw}
