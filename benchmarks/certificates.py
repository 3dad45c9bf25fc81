"""A certificate for listeners that are measured or attacked: made for this process, and gone with it."""

from __future__ import annotations

import atexit
import datetime
import shutil
import tempfile
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@cache
def certificate() -> tuple[str, str]:
    """A self-signed certificate (ECDSA, P-256) and its key, as PEM files."""
    folder = tempfile.mkdtemp(prefix="canopy-certificate-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    files = Path(folder, "server.pem"), Path(folder, "server.key")
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(files[0]), str(files[1])
