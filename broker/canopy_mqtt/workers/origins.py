"""Where a TLS connection comes from, as the worker that made its handshake tells the one that serves it."""

from __future__ import annotations

from canopy_mqtt.core.hooks import Origin, PeerCertificate
from canopy_mqtt.workers.wire import Source


def source_of(origin: Origin) -> Source:
    """Return where a connection comes from, for another process."""
    shown = origin.certificate
    certificate = None
    if shown is not None:
        certificate = (shown.subject, shown.common_name, shown.dns, shown.emails, shown.uris, shown.fingerprint)
    return Source(origin.text, origin.host, origin.port, certificate)


def take_source(source: Source, origin: Origin) -> None:
    """Have an origin say what another process has told."""
    origin.text, origin.host, origin.port, certificate = source
    origin.secure = True
    if certificate is not None:
        origin.certificate = PeerCertificate(*certificate)
