# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The expiry times of certificates as metrics. The standard library cannot parse certificates, so openssl reads them."""

from __future__ import annotations

import calendar
import re
import subprocess
import time
from typing import Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.system import capture, which
from ansible_collections.npufleet.triton.plugins.module_utils.textfile import Families

HELP = {"npufleet_certificate_expiry_timestamp_seconds": "The earliest expiry time of the certificates in a file."}
# Limits: bytes of a file, certificates of a file, seconds and bytes of output of one call of openssl
MAX_SIZE, MAX_CERTIFICATES, TIMEOUT_SECONDS, MAX_OUTPUT = 1 << 20, 20, 5.0, 1 << 12
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----[^-]{1,65536}-----END CERTIFICATE-----")


class Unreadable(Exception):
    """An error because the expiry time of a certificate cannot be read."""


def families(ends: Mapping[str, float]) -> Families:
    """Return the metrics of files with certificates. `ends` is {path: expiry time}."""
    return {"npufleet_certificate_expiry_timestamp_seconds": [({"file": path}, end) for path, end in ends.items()]}


def expiry(path: str) -> float:
    """Return the earliest expiry time of the certificates in a PEM file, in seconds since 1970. Raises Unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read(MAX_SIZE + 1)
    except OSError as error:
        raise Unreadable(error.strerror) from None
    openssl = which("openssl")
    if openssl is None:
        raise Unreadable("openssl is not installed")
    # Private keys of the file are not sent to openssl.
    blocks = _CERTIFICATE.findall(text)
    if not blocks:
        raise Unreadable("it has no certificate in PEM")
    # The whole file is refused, because a certificate beyond the limits could be the first to expire.
    if len(text) > MAX_SIZE or len(blocks) > MAX_CERTIFICATES:
        raise Unreadable(f"it has more than {MAX_CERTIFICATES} certificates or {MAX_SIZE} characters")
    return min(_end(openssl, block) for block in blocks)


def _end(openssl: str, block: str) -> float:
    try:
        done = capture([openssl, "x509", "-noout", "-enddate"], TIMEOUT_SECONDS, stdin=block + "\n", size=MAX_OUTPUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreadable(f"openssl failed: {error}") from None
    end = parse_end(done.stdout)
    if done.returncode or end is None:
        raise Unreadable(f"openssl reports {(done.stderr or done.stdout).strip()[:200]!r}")
    return end


def parse_end(output: str) -> Optional[float]:
    """Return the time in the output of openssl, in seconds since 1970, or None for any other text."""
    try:
        return float(calendar.timegm(time.strptime(output.strip(), "notAfter=%b %d %H:%M:%S %Y GMT")))
    except ValueError:
        return None
