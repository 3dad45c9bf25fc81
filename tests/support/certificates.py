"""Certificates for the tests of TLS: authorities, servers, clients, and lists of the revoked, as files of a folder."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Final

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY: Final = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Authority:
    """One that makes certificates, and revokes them. Everything it makes is a file of its folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self._authority = trustme.CA(organization_name=name)
        self.file = str(self.folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def issue(
        self,
        *names: str,
        common_name: str | None = None,
        not_after: datetime.datetime | None = None,
        file: str = "",
    ) -> tuple[str, str]:
        """A certificate and its key, as two files."""
        made = self._authority.issue_cert(*names, common_name=common_name, not_after=not_after)
        stem = file or (names[0] if names else common_name or "x").replace("*", "any").replace("/", "-")
        certificate, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return str(certificate), str(key)

    def issue_below(self, *names: str) -> tuple[str, str, str]:
        """A certificate of an intermediate authority and its key, and the rest of its chain, as three files."""
        made = self._authority.create_child_ca().issue_cert(*names)
        files = tuple(str(self.folder / f"below.{kind}") for kind in ("pem", "key", "chain"))
        own, *rest = (blob.bytes() for blob in made.cert_chain_pems)
        for file, content in zip(files, (own, made.private_key_pem.bytes(), b"".join(rest)), strict=True):
            Path(file).write_bytes(content)
        return files[0], files[1], files[2]

    def revoke(self, *certificates: str, good_until: datetime.datetime | None = None) -> str:
        """A list that these certificates are on, as a file."""
        authority = x509.load_pem_x509_certificate(Path(self.file).read_bytes())
        key = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        until = good_until or now() + DAY
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(until - 2 * DAY)
            .next_update(until)
        )
        for certificate in certificates:
            serial = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now() - DAY).build()
            made = made.add_revoked_certificate(entry)
        file = self.folder / "crl.pem"
        file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return str(file)

    def client(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority, and shows a certificate if it is given one."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


def encrypt(key: str, password: str) -> str:
    """The same key, encrypted, as another file."""
    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    file = Path(f"{key}.encrypted")
    file.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )
    return str(file)
