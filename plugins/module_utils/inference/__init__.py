# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Send requests to a Triton server and judge its answers.

This code runs in a container of the host's Triton image. So it imports only the standard library, numpy, tritonclient and
modules of this collection.
"""

from __future__ import annotations

from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import netloc, service_of, unpack_check
from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import PROTOCOLS, SERVICES, Service
from ansible_collections.npufleet.triton.plugins.module_utils.inference.encoding import decode_array, encode_array
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import (
    STATUS,
    not_served,
    of_connection,
    status_of,
    timed_out,
)
from ansible_collections.npufleet.triton.plugins.module_utils.inference.judge import classes_of, judge
from ansible_collections.npufleet.triton.plugins.module_utils.inference.load import (
    PERCENTILES,
    WIDEST,
    answered_requests,
    judge_latency,
    percentile,
)
from ansible_collections.npufleet.triton.plugins.module_utils.inference.packing import (
    generated,
    of_bytes,
    pack,
    pack_generated,
    unpack,
    whole_limits,
    with_rows,
)
from ansible_collections.npufleet.triton.plugins.module_utils.inference.pictures import PICTURES, drawable, picture
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    BYTES,
    NUMBERS,
    NUMPY,
    Answer,
    Output,
    Question,
    Request,
    TooLarge,
    join_outputs,
    refuse_too_large,
    requests,
    shown,
    triton_dtype,
)
from ansible_collections.npufleet.triton.plugins.module_utils.inference.runner import main, run
