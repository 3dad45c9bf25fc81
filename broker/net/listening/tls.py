"""The certificates of a listener: read from files, chosen by server name (SNI), and read again.

Owns `Certificates`, the present certificates of one listener, and `load`, which reads and checks all of its files, and
changes nothing. An error is one line that names the file, and never contains a password.

`load` blocks: call it in a thread.
"""

from __future__ import annotations

import datetime
import hashlib
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.core.hooks import PeerCertificate
from broker.settings import Settings, Tls

if TYPE_CHECKING:
    # It takes 10 MB: a broker without TLS does without, and `load` brings it in before the first client.
    from cryptography import x509

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

PROTOCOLS: Final = {"mqtts": ("mqtt",), "wss": ("http/1.1",)}
"""What a listener names as application protocols (ALPN) where its settings do not, by scheme."""

WARN_BEFORE: Final = datetime.timedelta(days=14)
"""How long before a certificate expires its listener says so, whenever it reads it."""

LARGEST_FILE: Final = 64 * 1024 * 1024
"""Bytes of a file of certificates or revocations: a slip in a path must not fill the memory."""


class TlsError(Exception):
    """Why certificates cannot be used, in one line that names the file."""


class Loaded:
    """Contexts that were made of files, ready to be shown to clients."""

    def __init__(self, settings: Tls, first: ssl.SSLContext) -> None:
        self.settings = settings
        self.first = first
        # Host name in lower case → who shows the certificate for it; and behind a `*.`.
        self.exact: dict[str, ssl.SSLContext] = {}
        self.wildcard: dict[str, ssl.SSLContext] = {}
        # What is good and will soon not be, in one line each.
        self.warnings: list[str] = []
        # When the certificates end, by file, in seconds since 1970.
        self.expires: dict[str, float] = {}

    def choose(self, name: str) -> ssl.SSLContext:
        """The context whose certificate is made out to this host name; else the first."""
        name = name.lower().rstrip(".")
        found = self.exact.get(name)
        if found is None:
            found = self.wildcard.get(name.partition(".")[2])
        return self.first if found is None else found

    def _chosen(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        del context
        if name is not None:
            tls.context = self.choose(name)


class Certificates:
    """What one listener shows now. `apply` changes that for connections to come; those that there are keep theirs."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded

    @property
    def context(self) -> ssl.SSLContext:
        return self.loaded.first

    @property
    def asks_clients(self) -> bool:
        return self.loaded.settings.client_certificates != "none"

    def apply(self, loaded: Loaded) -> None:
        self.loaded = loaded


def files(settings: Tls) -> tuple[str, ...]:
    named = [settings.certificate, settings.key, settings.chain, settings.client_ca, settings.crl]
    for more in settings.more:
        named += [more.certificate, more.key]
    return tuple(dict.fromkeys(name for name in named if name))


def load(settings: Tls, scheme: str) -> Loaded:
    """Read and check all files of a listener.

    Raises:
        TlsError: one of them cannot be used; which, and why.
    """
    first = _context(settings, scheme, settings.certificate, settings.key, settings.key_password)
    loaded = Loaded(settings, first)
    names = _names(settings.certificate, loaded)
    for more in reversed(settings.more):
        context = _context(settings, scheme, more.certificate, more.key, more.key_password)
        others = _names(more.certificate, loaded)
        if not others:
            raise TlsError(f"{more.certificate}: no host name in it (subject alternative name) that it could be for")
        for name in others:
            _offer(loaded, name, context)
    # Last: of several that are for a name, the one that stands first has it.
    for name in names:
        _offer(loaded, name, first)
    if settings.client_ca:
        _check_authorities(settings, loaded.warnings)
    if settings.more:
        # Only where there is a choice: Python writes to standard error what names it cannot read.
        first.sni_callback = loaded._chosen
    return loaded


def check(settings: Settings) -> tuple[list[str], list[str]]:
    """What is wrong with the files of all listeners, and what will soon be, one line each."""
    faults: list[str] = []
    warnings: list[str] = []
    for listener in settings.listeners:
        if listener.tls is not None:
            try:
                loaded = load(listener.tls, listener.endpoint.scheme)
                warnings += [f'listener "{listener.called}": {line}' for line in loaded.warnings]
            except TlsError as error:
                faults.append(f'listener "{listener.called}": {error}')
    return faults, warnings


def _offer(loaded: Loaded, name: str, context: ssl.SSLContext) -> None:
    if name.startswith("*."):
        loaded.wildcard[name[2:]] = context
    else:
        loaded.exact[name] = context


def _context(settings: Tls, scheme: str, certificate: str, key: str, password: str) -> ssl.SSLContext:
    _content(certificate)
    _content(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.min_version]
    # A client that may have a new handshake as often as it likes keeps us busy.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError:
            raise TlsError(f'tls.ciphers = "{settings.ciphers}": OpenSSL knows no such cipher suites') from None
    # One: who connects again saves the costly part once. Nothing is kept for a client, and the keys of tickets die with
    # the context: what was shown is looked at again when the authorities or the list of the revoked change.
    context.num_tickets = 1
    context.set_alpn_protocols(list(settings.alpn or PROTOCOLS[scheme]))
    asked: list[bool] = []

    def tell() -> str:
        # Without this OpenSSL would ask on the terminal.
        asked.append(True)
        return password

    try:
        context.load_cert_chain(certificate, key, tell)
    except ssl.SSLError as error:
        raise TlsError(_about_pair(certificate, key, error, bool(asked), bool(password))) from None
    except ValueError:
        raise TlsError(f"{key}: the private key is encrypted, and its password (key_password) is too long") from None
    if settings.chain:
        # OpenSSL completes the chain from what it knows of authorities.
        _load(context, settings.chain, "certificate (PEM)")
    if settings.client_certificates != "none":
        _ask_for_certificates(context, settings)
    return context


def _load(context: ssl.SSLContext, file: str, what: str) -> None:
    _content(file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        raise TlsError(f"{file}: no {what} in it") from None


def _ask_for_certificates(context: ssl.SSLContext, settings: Tls) -> None:
    required = settings.client_certificates == "required"
    _load(context, settings.client_ca, "certificate (PEM)")
    if settings.crl:
        _load(context, settings.crl, "list of revoked certificates (PEM)")
    if settings.crl:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def _about_pair(certificate: str, key: str, error: ssl.SSLError, asked: bool, password: bool) -> str:
    reason = error.reason or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"{key}: not the private key to the certificate in {certificate}"
    if asked:
        fault = "its password (key_password) is wrong" if password else "key_password is missing"
        return f"{key}: the private key is encrypted, and {fault}"
    if b"-----BEGIN CERTIFICATE-----" not in _content(certificate):
        return f"{certificate}: no certificate (PEM) in it"
    if b"PRIVATE KEY-----" not in _content(key):
        return f"{key}: no private key (PEM) in it"
    words = reason.lower().replace("_", " ") or "not understood"
    return f"{certificate} and {key}: {words}"


def _content(file: str) -> bytes:
    """What stands in a file, for a message that says which one cannot be read."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise TlsError(f"{file}: cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise TlsError(f"{file}: larger than {LARGEST_FILE} bytes")
    return content


def _names(file: str, loaded: Loaded) -> list[str]:
    """The host names that the first certificate of a file is made out to, in lower case."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(_content(file))
        _about_time(file, certificate, loaded.warnings)
        loaded.expires[file] = certificate.not_valid_after_utc.timestamp()
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except ValueError as error:
        raise TlsError(f"{file}: the certificate cannot be read: {error}") from None
    return [name.lower() for name in names.get_values_for_type(x509.DNSName)]


def _about_time(file: str, certificate: x509.Certificate, warnings: list[str]) -> None:
    now = datetime.datetime.now(datetime.UTC)
    end = certificate.not_valid_after_utc
    if now > end:
        warnings.append(f"{file}: the certificate has expired on {end:%Y-%m-%d}; clients will refuse it")
    elif now < certificate.not_valid_before_utc:
        warnings.append(f"{file}: the certificate holds from {certificate.not_valid_before_utc:%Y-%m-%d} on")
    elif now > end - WARN_BEFORE:
        warnings.append(f"{file}: the certificate expires on {end:%Y-%m-%d}")


def _check_authorities(settings: Tls, warnings: list[str]) -> None:
    """Whether the list of revocations is one, and not too old: then OpenSSL refuses everybody."""
    if not settings.crl:
        return
    found = 0
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    for part in _content(settings.crl).split(b"-----BEGIN X509 CRL-----")[1:]:
        try:
            revoked = x509.load_pem_x509_crl(b"-----BEGIN X509 CRL-----" + part)
        except ValueError as error:
            raise TlsError(f"{settings.crl}: a list of revoked certificates cannot be read: {error}") from None
        found += 1
        if revoked.next_update_utc is not None and now > revoked.next_update_utc:
            warnings.append(
                f"{settings.crl}: the list of revoked certificates of {revoked.issuer.rfc4514_string()} was to be "
                f"renewed by {revoked.next_update_utc:%Y-%m-%d %H:%M} UTC; until it is, clients of that authority are "
                "refused"
            )
    if found == 0:
        raise TlsError(f"{settings.crl}: no list of revoked certificates (PEM) in it")


# -- clients -----------------------------------------------------------------------------------------------------------


def peer_certificate(tls: ssl.SSLObject) -> PeerCertificate | None:
    """The certificate that the client has shown, and TLS has found good; None: it has shown none.

    Raises:
        ValueError: it is malformed in a way that OpenSSL does not mind, or has expired since TLS looked at it: a
            session that is taken up again has the certificate of the first time.
    """
    encoded = tls.getpeercert(binary_form=True)
    if encoded is None:
        return None
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(encoded)
    if datetime.datetime.now(datetime.UTC) > certificate.not_valid_after_utc:
        raise ValueError("the client's certificate has expired")
    subject = certificate.subject
    names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    dns: list[str] = []
    emails: list[str] = []
    uris: list[str] = []
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        pass
    else:
        dns = alternative.get_values_for_type(x509.DNSName)
        emails = alternative.get_values_for_type(x509.RFC822Name)
        uris = alternative.get_values_for_type(x509.UniformResourceIdentifier)
    # The most specific one: the last.
    common_name = names[-1].value if names else ""
    return PeerCertificate(
        subject=subject.rfc4514_string(),
        common_name=common_name if isinstance(common_name, str) else "",
        dns=tuple(dns),
        emails=tuple(emails),
        uris=tuple(uris),
        fingerprint=hashlib.sha256(encoded).hexdigest(),
    )


REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "UNSUPPORTED_PROTOCOL": "the client speaks only versions of TLS that are not allowed here",
    "VERSION_TOO_LOW": "the client speaks only versions of TLS that are not allowed here",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "HTTP_REQUEST": "the client does not speak TLS but HTTP",
    "UNKNOWN_PROTOCOL": "the client does not speak TLS",
    "CALLBACK_FAILED": "the client asks for a host name that is not ASCII",
    "NO_SHARED_CIPHER": "client and broker have no cipher suite in common",
    "NO_SHARED_GROUP": "client and broker have no key exchange in common",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "client and broker have no signature algorithm in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not know the authority of the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the broker's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the client says that the broker's certificate is revoked",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the client does not speak the version of TLS that was chosen",
}
"""What OpenSSL calls a failure → what it is, for the log."""


def reason_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error)[:200]
