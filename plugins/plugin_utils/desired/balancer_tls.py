# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The checks of a load balancer's certificates. They run on the controller before anything changes."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, Iterator, List

CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def reasons(certificate: str, key: str, now: datetime) -> Iterator[str]:
    """Yield the reasons why the certificate of a balancer or its key is refused. Both are texts in PEM."""
    from cryptography.hazmat.primitives import serialization

    name = "load_balancer_tls_certificate"
    try:
        (leaf, *_chain) = certificates(certificate)
    except ValueError as error:
        yield f"{name} has no certificate in PEM ({error}), expected the certificate of the balancer and its chain. Correct it"
        return
    yield from _dates(name, leaf, now)
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
    except (TypeError, ValueError) as error:
        # The library raises TypeError for a key that needs a passphrase.
        why = "it has a passphrase" if isinstance(error, TypeError) else "it is not PEM"
        yield f"load_balancer_tls_key is not a private key that HAProxy can read ({why}), expected a key without a passphrase"
        return
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        yield f"load_balancer_tls_key does not belong to the first certificate of {name}, expected its private key. Correct it"


def authority_reasons(text: str, now: datetime) -> Iterator[str]:
    """Yield the reasons why the authorities of client certificates are refused."""
    name = "load_balancer_client_ca"
    try:
        authorities = certificates(text)
    except ValueError as error:
        yield f"{name} has no certificate in PEM ({error}), expected the authority of the clients' certificates. Correct it"
        return
    for authority in authorities:
        yield from _dates(name, authority, now)


def certificates(text: str) -> List[Any]:
    """Return the certificates in a PEM text. Raises ValueError for a damaged certificate, or if the text has no certificate."""
    from cryptography import x509

    parsed = [x509.load_pem_x509_certificate(block.encode()) for block in CERTIFICATE.findall(text)]
    if not parsed:
        raise ValueError("-----BEGIN CERTIFICATE----- is missing")
    return parsed


def days_left(certificate: str, now: datetime) -> int:
    """Return the days until the first certificate of a PEM text ends. Raises ValueError."""
    return (_time(certificates(certificate)[0], "not_valid_after") - now).days


def _dates(name: str, certificate: Any, now: datetime) -> Iterator[str]:
    begins, ends = _time(certificate, "not_valid_before"), _time(certificate, "not_valid_after")
    if ends <= now:
        yield f"{name} expired at {ends:%Y-%m-%d %H:%M} UTC, expected a valid certificate. Renew it"
    elif begins > now:
        yield f"{name} is valid from {begins:%Y-%m-%d %H:%M} UTC, expected a valid certificate. Correct it, or this clock"


def _time(certificate: Any, name: str) -> datetime:
    """Return a time of a certificate. Before version 42, cryptography has only UTC times without a time zone."""
    time: datetime = getattr(certificate, f"{name}_utc", None) or getattr(certificate, name).replace(tzinfo=timezone.utc)
    return time
