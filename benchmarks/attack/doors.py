"""The listeners of an attacked broker beside its first: WebSocket, behind proxies, and TLS."""

from __future__ import annotations

import atexit
import datetime
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from loadtest.brokers.process import HOST, free_port


@dataclass(frozen=True)
class Doors:
    """Their ports. `proxied` believes PROXY headers of this machine, `forged` those of other machines alone."""

    web: int = 0
    proxied: int = 0
    forged: int = 0
    tls: int = 0

    @classmethod
    def free(cls) -> Self:
        """On ports that nobody listens on."""
        return cls(free_port(), free_port(), free_port(), free_port())

    def options(self) -> list[str]:
        """What `canopy serve` is given for them."""
        tables = (
            f'{{url = "ws://{HOST}:{self.web}", name = "web"}}',
            f'{{url = "mqtt://{HOST}:{self.proxied}", name = "proxied", {_behind(f"{HOST}/32")}}}',
            f'{{url = "mqtt://{HOST}:{self.forged}", name = "forged", {_behind("10.0.0.0/8")}}}',
            f'{{url = "mqtts://{HOST}:{self.tls}", name = "tls", tls = {_certificate()}}}',
        )
        return ["--set", f"listener=[{', '.join(tables)}]"]


def _behind(network: str) -> str:
    return f'proxy_protocol = "v2", proxy_from = ["{network}"]'


@cache
def _certificate() -> str:
    """A certificate of its own and its key, as files that go with this process: `[listener.tls]`."""
    folder = tempfile.mkdtemp(prefix="canopy-attack-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
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
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return f'{{certificate = "{files[0]}", key = "{files[1]}"}}'
