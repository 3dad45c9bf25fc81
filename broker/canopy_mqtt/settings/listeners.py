"""`[[listener]]`: the addresses of the broker, with the terms and certificates of each.

`listen = [...]` is the short form for mqtt:// and ws:// without further settings; `Settings.listeners` combines both.
The code that reads the files checks that they exist and fit (`canopy_mqtt.certificates`): settings are data.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from canopy_mqtt.settings.values import (
    DEFAULT_PORT,
    DEFAULT_TLS_PORT,
    MAX_PACKET,
    MAX_TIME,
    CountOrUnlimited,
    Delay,
    RateOrUnlimited,
    Section,
    only,
    readable,
    wrong,
)

PLAIN_PORTS: Final = {"mqtt": DEFAULT_PORT, "ws": 8080}
"""The schemes of listeners without further settings, and the default port of each."""

TABLES_ONLY: Final = ("mqtts", "ssl", "tls", "wss", "unix", "mqtt+unix")
"""Schemes of listeners that need further settings: certificates, or the mode of a file."""

PORTS: Final = {**PLAIN_PORTS, "mqtts": DEFAULT_TLS_PORT, "wss": 8443}
"""The default port of each scheme."""

MAX_SOCKET_PATH_BYTES: Final = 107
"""Bytes of the path of a Unix socket on Linux (`sun_path`, unix(7))."""

MAX_CERTIFICATES: Final = 1000
"""Certificates beside the first one, among which a listener selects by the name that a client asks for."""

PLACEHOLDERS: Final = ("{user}", "{client}", "{listener}")
"""Placeholders of a mount."""

MAX_MOUNT_BYTES: Final = 256
"""Bytes of a mount with its placeholders: it is a prefix of every topic of its clients."""

EVERYWHERE: Final = "*"
"""The host that stands for all interfaces with IPv4 and IPv6. 0.0.0.0 means only IPv4, and [::] only IPv6."""

FORMS: Final = "mqtt://HOST[:PORT], mqtts://HOST[:PORT], ws://HOST[:PORT], wss://HOST[:PORT] or mqtt+unix:///PATH"


class Endpoint(NamedTuple):
    """The parsed URL of a listener: a host and a port, or the path of a Unix socket.

    With port 0 the system chooses a free one."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def bind_host(self) -> str | None:
        """The host argument for asyncio's servers; None: all interfaces, with IPv4 and IPv6."""
        return None if self.host == EVERYWHERE else self.host

    def url(self) -> str:
        if self.path:
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def overlaps(self, other: Endpoint) -> bool:
        """Return whether the system would bind only one of the two: `0.0.0.0` has the port of every IPv4 address."""
        if self.path or other.path:
            return self.path == other.path
        if self.port != other.port or self.port == 0:
            return False
        return self.host == other.host or self._is_wild_for(other.host) or other._is_wild_for(self.host)

    def _is_wild_for(self, host: str) -> bool:
        return self.host == EVERYWHERE or self.host == ("::" if ":" in host else "0.0.0.0")


def socket_path(parts: SplitResult) -> str:
    """Return the path of the Unix socket in a URL. Raises ValueError, as `parse_endpoint`."""
    path = parts.path
    if parts.netloc or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError(f"{parts.scheme}:///PATH, with the whole path of the socket's file")
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"a path of at most {MAX_SOCKET_PATH_BYTES} bytes, as the system has it for Unix sockets")
    return path


def parse_listen(url: str) -> Endpoint:
    """Parse a URL of `listen`, mqtt:// or ws://. Raises ValueError, as `parse_endpoint`."""
    scheme = url.partition(":")[0]
    form = "mqtt://HOST:PORT or ws://HOST:PORT"
    if scheme in TABLES_ONLY:
        needs = "certificates" if "unix" not in scheme else "the mode of its file"
        raise ValueError(f'the scheme "{scheme}" takes a [[listener]] table, for {needs}; here it is {form}')
    return endpoint_of(url, f"not a URL of the form {form}", PLAIN_PORTS, "")


def parse_endpoint(url: str) -> Endpoint:
    """Parse the URL of a listener; an IPv6 address stands in brackets.

    Raises:
        ValueError: the text says what is allowed, without repeating the URL.
    """
    return endpoint_of(url, FORMS, PORTS, "mqtt+unix")


def endpoint_of(url: str, forms: str, ports: Mapping[str, int], unix: str) -> Endpoint:
    """Parse a URL to listen on. `ports`: by scheme; `unix`: that of Unix sockets, or "". ValueError has `forms`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{forms} ({error})") from None
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{forms}, without user, query and fragment")
    if unix and parts.scheme == unix:
        return Endpoint(parts.scheme, path=socket_path(parts))
    if parts.scheme not in ports or not parts.netloc or parts.path not in ("", "/"):
        raise ValueError(forms)
    if not parts.hostname:
        raise ValueError(f"{forms}; the host * listens on every interface (0.0.0.0: IPv4 alone, [::]: IPv6 alone)")
    return Endpoint(parts.scheme, parts.hostname, ports[parts.scheme] if port is None else port)


def _name(value: str) -> str:
    if len(value) > 256 or not value.isprintable():
        raise wrong('printable text of at most 256 characters, like "internal"')
    return value


def _file(value: str) -> str:
    if not value or "\0" in value:
        raise wrong('a file, like "/etc/canopy/server.pem"')
    return value


def _protocol(value: str) -> str:
    if not value.isascii() or not 0 < len(value) < 256:
        raise wrong("a protocol name of 1 to 255 ASCII characters")
    return value


def _path(value: str) -> str:
    plain = value.isascii() and value.isprintable() and not set(value) & set(" ?#")
    if value and not (plain and value.startswith("/")):
        raise wrong('a path, like "/mqtt", or "" for any')
    return value


def _mount(value: str) -> str:
    if not value:
        return value
    bare = value
    for name in PLACEHOLDERS:
        bare = bare.replace(name, "")
    fault = ""
    if not value.endswith("/"):
        fault = 'that ends in "/"'
    elif value.startswith("$"):
        fault = "that does not begin with $"
    elif set(bare) & set("+#\0"):
        fault = "without wildcards"
    elif set(bare) & set("{}"):
        fault = f"with no placeholders but {', '.join(PLACEHOLDERS)}"
    elif any(sum(level.count(name) for name in PLACEHOLDERS) > 1 for level in value.split("/")):
        fault = "with one placeholder in a level"
    elif len(value.encode()) > MAX_MOUNT_BYTES:
        fault = f"of at most {MAX_MOUNT_BYTES} bytes"
    if fault:
        raise wrong(f'a topic prefix, like "tenant/{{user}}/", {fault}')
    return value


def _origin(value: str) -> str:
    try:
        parts = urlsplit(value)
        whole = f"{parts.scheme}://{parts.netloc}" if parts.scheme and parts.hostname and "@" not in value else ""
    except ValueError:
        whole = ""
    if not whole or value.rstrip("/").lower() != whole.lower():
        raise wrong('an origin, like "https://example.org"')
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise wrong('a network, like "10.0.0.0/8" or "192.0.2.7/32"') from None
    return value


File: TypeAlias = Annotated[str, AfterValidator(_file)]


class Certificate(Section):
    """A further certificate of a listener, for the names in it."""

    certificate: File
    """The certificate (PEM), followed by its chain of authorities."""
    key: File
    """Its private key (PEM)."""
    key_password: Annotated[str, Field(repr=False)] = ""
    """The password of the private key. Empty: it is not encrypted."""


class Tls(Section):
    """`[listener.tls]`: the certificates of a listener, and its demands on those of clients."""

    certificate: File
    key: File
    key_password: Annotated[str, Field(repr=False)] = ""
    more: Annotated[Sequence[Certificate], Field(max_length=MAX_CERTIFICATES), AfterValidator(tuple)] = ()
    min_version: Literal["1.2", "1.3"] = "1.2"
    ciphers: str = ""
    client_certificates: Literal["none", "optional", "required"] = "none"
    client_ca: Annotated[str, Field(validate_default=True)] = ""
    crl: str = ""
    chain: str = ""

    def files(self) -> tuple[str, ...]:
        """All files that it names, each once."""
        named = [self.certificate, self.key, self.chain, self.client_ca, self.crl]
        for more in self.more:
            named += [more.certificate, more.key]
        return tuple(dict.fromkeys(name for name in named if name))

    alpn: Annotated[Sequence[Annotated[str, AfterValidator(_protocol)]], AfterValidator(tuple)] = ()
    handshake_timeout: Annotated[float, Field(gt=0, le=MAX_TIME, allow_inf_nan=False)] = 10.0

    @field_validator("client_ca")
    @classmethod
    def _authority(cls, value: str, info: ValidationInfo) -> str:
        asked = info.data.get("client_certificates", "none")
        if asked != "none" and not value:
            raise wrong(f'a file of certificates, with client_certificates = "{asked}"')
        if asked == "none" and value:
            raise wrong('only with client_certificates = "optional" or "required"')
        return value

    _of_an_authority = only("only with client_ca", "crl", where=lambda given: bool(given.get("client_ca", "-")))
    # OpenSSL has one store: certificates there would be authorities of clients, too.
    _beside_no_authority = only(
        'only with client_certificates = "none"; put these certificates behind the server\'s own',
        "chain",
        where=lambda given: given.get("client_certificates", "none") == "none",
    )


class Listener(Section):
    """One address to listen on. A limit of 0: only the limits of all listeners apply (`[limits]`)."""

    url: Annotated[str, AfterValidator(readable(parse_endpoint))]
    name: Annotated[str, AfterValidator(_name)] = ""
    mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}\z")] = "0660"
    group: str = ""
    max_connections: CountOrUnlimited = 0
    max_connections_per_address: CountOrUnlimited = 0
    max_connect_rate: RateOrUnlimited = 0.0
    max_packet_size: Annotated[int, Field(ge=0, le=MAX_PACKET)] = 0
    max_delay: Delay | None = None
    authenticators: Annotated[Sequence[str], AfterValidator(tuple)] = ()
    allow_anonymous: bool | None = None
    mount: Annotated[str, AfterValidator(_mount)] = ""
    path: Annotated[str, AfterValidator(_path)] = ""
    origins: Annotated[Sequence[Annotated[str, AfterValidator(_origin)]], AfterValidator(tuple)] = ()
    proxy_protocol: Literal["none", "v1", "v2"] = "none"
    proxy_from: Annotated[Sequence[Annotated[str, AfterValidator(_network)]], AfterValidator(tuple)] = ()
    tls: Tls | None = None
    """Certificates: needed for mqtts:// and wss://, and only allowed there."""

    @property
    def endpoint(self) -> Endpoint:
        return parse_endpoint(self.url)

    @property
    def label(self) -> str:
        """`name`, or the URL if it has none."""
        return self.name or self.url

    _of_a_file = only(
        "only with an mqtt+unix:// url",
        "mode",
        "group",
        where=lambda given: given.get("url", "mqtt+unix:").startswith("mqtt+unix:"),
    )
    _of_web_sockets = only(
        "only with a ws:// or wss:// url",
        "path",
        "origins",
        where=lambda given: given.get("url", "ws:").startswith(("ws:", "wss:")),
    )
    _with_tls = only(
        "only with an mqtts:// or wss:// url",
        "tls",
        where=lambda given: given.get("url", "mqtts:").startswith(("mqtts:", "wss:")),
    )

    @field_validator("max_packet_size")
    @classmethod
    def _a_packet(cls, value: int) -> int:
        if value == 1:
            raise wrong(f"0, or an integer from 2 to {MAX_PACKET}")
        return value

    @model_validator(mode="after")
    def _has_certificates(self) -> Listener:
        if self.tls is None and self.endpoint.tls:
            raise wrong("a table [listener.tls] with certificate and key", ".tls", None)
        if self.proxy_protocol != "none" and not self.proxy_from and not self.endpoint.path:
            raise wrong('the networks of the proxies, like ["127.0.0.1/32"], with proxy_protocol', ".proxy_from", [])
        if "{listener}" in self.mount and (not self.name or set(self.name) & set("/+#") or self.name.startswith("$")):
            raise wrong("a name that can be a level of a topic, with mount with {listener}", ".name", self.name)
        if self.proxy_protocol == "none" and self.proxy_from:
            raise wrong('only with proxy_protocol = "v1" or "v2"', ".proxy_from", self.proxy_from)
        return self
