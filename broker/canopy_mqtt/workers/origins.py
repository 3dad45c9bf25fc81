"""Where a TLS connection comes from, as the worker that made its handshake tells the one that serves it."""

from __future__ import annotations

import json

from canopy_mqtt.core.hooks import Origin, PeerCertificate


def origin_bytes(origin: Origin) -> bytes:
    """Write down where a connection comes from."""
    shown = origin.certificate
    certificate = None
    if shown is not None:
        certificate = [shown.subject, shown.common_name, shown.dns, shown.emails, shown.uris, shown.fingerprint]
    return json.dumps([origin.text, origin.host, origin.port, certificate]).encode()


def read_origin(data: bytes, origin: Origin) -> None:
    """Have an origin say what another process has written down."""
    origin.text, origin.host, origin.port, shown = json.loads(data)
    origin.secure = True
    if shown is not None:
        subject, common_name, dns, emails, uris, fingerprint = shown
        origin.certificate = PeerCertificate(subject, common_name, tuple(dns), tuple(emails), tuple(uris), fingerprint)


def origin_host(data: bytes) -> str:
    """Return the client's IP address of an origin that is written down."""
    host: str = json.loads(data)[1]
    return host
