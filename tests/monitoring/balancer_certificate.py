#!/usr/bin/env python3
"""The certificate of the balancer of a lab. As a program, this file writes a certificate that is valid for a year, and its key."""

from __future__ import annotations

import subprocess
from pathlib import Path

from open_loop import CERTIFICATE_NAME

CERTIFICATE = Path(__file__).resolve().parents[2] / "build/lab/balancer.pem"
KEY = CERTIFICATE.with_suffix(".key")


def certificate(days: int) -> str:
    """Return a certificate in PEM that expires after some days. Create the key if it is missing."""
    if not KEY.exists():
        KEY.parent.mkdir(parents=True, exist_ok=True)
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(KEY))
    name = ["-subj", f"/CN={CERTIFICATE_NAME}", "-addext", f"subjectAltName=DNS:{CERTIFICATE_NAME}"]
    return _openssl("req", "-x509", "-key", str(KEY), "-days", str(days), *name)


def _openssl(*arguments: str) -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    CERTIFICATE.write_text(certificate(365))
