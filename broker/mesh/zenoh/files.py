"""The files of `tls/` addresses, checked before Zenoh reads them: its own messages do not name them.

Promises: it imports nothing of Zenoh, so that `canopy check-config` can use it.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from broker.settings.brokers.mesh import Mesh


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
