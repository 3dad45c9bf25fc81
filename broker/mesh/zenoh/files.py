"""The files of `tls/` addresses, checked before Zenoh reads them: its own messages do not name them.

Promises: it imports nothing of Zenoh, so that `canopy check-config` can use it.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broker.settings.brokers.mesh import Mesh

if TYPE_CHECKING:
    from cryptography import x509


def fault(settings: Mesh) -> str:
    """Why the files of the mesh cannot be used, in one line that names the setting; empty: they can."""
    for name in ("ca_file", "cert_file", "key_file"):
        file = getattr(settings, name)
        if not file:
            continue
        try:
            text = Path(file).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            return f"mesh.{name} {file}: {error.strerror or error}"
        if "-----BEGIN" not in text:
            return f"mesh.{name} {file}: it is not a PEM file"
    if settings.cert_file and settings.key_file:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(settings.cert_file, settings.key_file, "")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                return (
                    f"mesh.key_file {settings.key_file}: not the private key to the certificate in {settings.cert_file}"
                )
    return ""


def refused(settings: Mesh) -> Iterator[str]:
    """Why other nodes refuse this one's certificate, in a line each. It reads files.

    Neither node hears of it from Zenoh. What rustls, which looks at them there, refuses, it does by RFC 5280.
    """
    certificates, why = _read(settings.cert_file)
    if why:
        yield f"mesh.cert_file {settings.cert_file}: {why}"
        return
    if not certificates:
        return
    from cryptography import x509

    own = certificates[0]
    where = f"mesh.cert_file {settings.cert_file}: other nodes refuse this certificate"
    if own.version is x509.Version.v1:
        yield f"{where}, because its version is 1; docs/cluster.md shows how to make one of version 3"
        return
    now = datetime.datetime.now(datetime.UTC)
    if now > own.not_valid_after_utc:
        yield f"{where}, because it expired on {own.not_valid_after_utc:%Y-%m-%d}"
    elif now < own.not_valid_before_utc:
        yield f"{where} until {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, from when it is valid"
    try:
        extensions = {type(each.value): each.value for each in own.extensions}
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        yield f"mesh.cert_file {settings.cert_file}: its extensions cannot be read: {error}"
        return
    basic = extensions.get(x509.BasicConstraints)
    if isinstance(basic, x509.BasicConstraints) and basic.ca:
        yield f"{where}, because it is an authority's (CA:TRUE); have the authority sign one for this node"
    usage = extensions.get(x509.ExtendedKeyUsage)
    if isinstance(usage, x509.ExtendedKeyUsage):
        uses = x509.oid.ExtendedKeyUsageOID
        for needed, called in ((uses.SERVER_AUTH, "serverAuth"), (uses.CLIENT_AUTH, "clientAuth")):
            if needed not in usage:
                yield f"{where}, because its extended key usage lacks {called}; nodes need serverAuth and clientAuth"
    authorities, why = _read(settings.ca_file)
    if why:
        yield f"mesh.ca_file {settings.ca_file}: {why}"
    elif not any(_signed(each, authority) for each in certificates for authority in authorities):
        yield (
            f"mesh.cert_file {settings.cert_file}: no authority in mesh.ca_file {settings.ca_file} has signed it, so "
            "that nodes with the same mesh.ca_file refuse it"
        )


def expires(settings: Mesh) -> dict[str, float]:
    """When this node's certificate ends, by file, in seconds since 1970; empty: it has none that can be read."""
    certificates, _ = _read(settings.cert_file)
    return {settings.cert_file: certificates[0].not_valid_after_utc.timestamp()} if certificates else {}


def _read(file: str) -> tuple[list[x509.Certificate], str]:
    """The certificates of a PEM file, and why they cannot be read."""
    if not file:
        return [], ""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(Path(file).read_bytes()), ""
    except (OSError, ValueError, x509.InvalidVersion) as error:
        return [], f"its certificates cannot be read: {error}"


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True
