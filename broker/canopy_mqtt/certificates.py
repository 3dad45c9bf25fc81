"""Certificates of a listener: read from files, chosen by server name (SNI), and read again.

Owns `load`, which reads and checks all files of a listener, and changes nothing, and `Loaded`, what it has made. An
error is one line that names the file, and never contains a password.

`load` blocks: call it in a thread.
"""

from __future__ import annotations

import datetime
import hashlib
import ssl
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.hooks import PeerCertificate
from canopy_mqtt.files import open_file
from canopy_mqtt.settings import Settings, Tls

if TYPE_CHECKING:
    # The package takes 10 MB: `load` imports it before the first client, and a broker without TLS never.
    from cryptography import x509

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

PROTOCOLS: Final = {"mqtts": ("mqtt",), "wss": ("http/1.1",)}
"""The application protocols (ALPN) that a listener offers if its settings name none, by scheme."""

WARN_BEFORE: Final = datetime.timedelta(days=14)
"""The time before the end of a certificate from which on its listener warns whenever it reads it."""

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a file of certificates or revocations: a slip in a path must not fill the memory."""


class TlsError(Exception):
    """Certificates cannot be used; the message names the file in one line."""


class Loaded:
    """Contexts that were made of files, ready to be shown to clients."""

    def __init__(self, settings: Tls, first: ssl.SSLContext) -> None:
        self.first = first
        # True if clients are asked for a certificate.
        self.asks_clients = settings.client_certificates != "none"
        # Host name in lower case → the context with the certificate for it; and the same behind a `*.`.
        self.exact: dict[str, ssl.SSLContext] = {}
        self.wildcard: dict[str, ssl.SSLContext] = {}
        # Certificates that are not, or not for long, good; one line each.
        self.warnings: list[str] = []
        # When the certificates end, by file, in seconds since 1970.
        self.expires: dict[str, float] = {}

    def choose(self, name: str) -> ssl.SSLContext:
        """Return the context whose certificate is for this host name; else the first."""
        name = name.lower().rstrip(".")
        found = self.exact.get(name)
        if found is None:
            found = self.wildcard.get(name.partition(".")[2])
        return self.first if found is None else found

    def _chosen(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        del context
        if name is not None:
            tls.context = self.choose(name)


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
    """Return the faults of the files of all listeners, and warnings, one line each."""
    faults: list[str] = []
    warnings: list[str] = []
    for listener in settings.listeners:
        if listener.tls is not None:
            try:
                loaded = load(listener.tls, listener.endpoint.scheme)
                warnings += [f'listener "{listener.label}": {line}' for line in loaded.warnings]
            except TlsError as error:
                faults.append(f'listener "{listener.label}": {error}')
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
    # New handshakes, as often as a client likes, would keep the broker busy.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError:
            raise TlsError(f'tls.ciphers = "{settings.ciphers}": OpenSSL knows no such cipher suites') from None
    # One: a client that connects again saves the costly part once. Nothing is kept for a client, and the tickets' keys
    # end with the context: certificates are checked again when the authorities or the list of revocations change.
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
    _load(context, settings.client_ca, "certificate (PEM)")
    if settings.crl:
        _load(context, settings.crl, "list of revoked certificates (PEM)")
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    required = settings.client_certificates == "required"
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
    """Return the content of a file. Raises TlsError if it cannot be read, or is larger than `MAX_FILE_BYTES`."""
    try:
        with open_file(file) as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{file}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise TlsError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
    return content


def _names(file: str, loaded: Loaded) -> list[str]:
    """Return the host names of the first certificate of a file, in lower case."""
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
    """Raise TlsError if the list of revocations is unusable; warn if it is too old, as OpenSSL then refuses every
    client."""
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
    """Return the certificate that the client has shown, and TLS has verified; None: it has shown none.

    Raises:
        ValueError: it is malformed in a way that OpenSSL accepts, or has expired since TLS verified it: a session that
            is resumed has the certificate of the first time.
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
"""OpenSSL's name of a failure → its description for the log."""


def reason_of(error: Exception | None) -> str:
    """Say why a handshake failed. None: by its time-out."""
    if error is None:
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error)[:200]
