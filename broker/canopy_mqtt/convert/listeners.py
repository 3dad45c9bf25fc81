"""Converts mosquitto's listeners to `[[listener]]` tables.

Owns addresses, TLS, and the bounds of one listener. Promises: a listener with a guard that cannot be converted is
written as a comment, or so that it does not open: it never admits more clients than before.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

from canopy_mqtt.convert.draft import Draft, Kind, Table, fault
from canopy_mqtt.convert.options import NotConverted, canonical, first_word, idles, number_or_none, yes_or_no
from canopy_mqtt.convert.source import Line
from canopy_mqtt.settings.http import is_loopback
from canopy_mqtt.settings.listeners import Listener as ListenerSettings
from canopy_mqtt.settings.listeners import parse_endpoint

OLDEST_TLS: Final = {"tlsv1.3": "1.3", "tlsv1.2": "1.2", "tlsv1.1": "1.2", "tlsv1": "1.2"}

ANYWHERE: Final = "*"

YES_OR_NO: Final = (
    "require_certificate",
    "use_identity_as_username",
    "use_subject_as_username",
    "use_username_as_clientid",
    "proxy_protocol_v2_require_tls",
)
"""Options that keep clients out. With another value than `true` or `false` mosquitto does not start."""

BEHIND_PROXY: Final = {
    "require_certificate": "the certificate that a PROXY header tells of is not looked at",
    "proxy_protocol_v2_require_tls": "whether the client reached the proxy over TLS is not looked at",
    "use_identity_as_username": "the certificate that a PROXY header tells of is not looked at",
    "use_subject_as_username": "mosquitto does not start with it behind a proxy",
    "certfile": "mosquitto does not start with it behind a proxy",
    "keyfile": "mosquitto does not start with it behind a proxy",
}
"""Options that cannot be combined with version 2 of the PROXY protocol."""

LEFT: Final = {
    "ciphers_tls1.3": NotConverted(Kind.MISSING, "the cipher suites of TLS 1.3 are OpenSSL's own"),
    "dhparamfile": NotConverted(Kind.NOTHING, "keys are exchanged over elliptic curves"),
    "disable_client_cert_date_checks": NotConverted(
        Kind.MISSING, "a client certificate that has expired is refused", "false"
    ),
    "http_dir": NotConverted(Kind.INSTEAD, "the broker serves no files; a web server does"),
    "tls_engine": NotConverted(Kind.MISSING, "private keys are PEM files"),
    "tls_engine_kpass_sha1": NotConverted(Kind.MISSING, "private keys are PEM files"),
    "tls_keyform": NotConverted(Kind.MISSING, "private keys are PEM files", "pem"),
}
"""Options of a listener that become no setting."""

OPENS: Final[Mapping[str, Callable[[str], bool]]] = {
    "max_connections": lambda text: number_or_none(text) > 0,
    "max_qos": lambda text: number_or_none(text) < 2,
    "protocol": lambda text: first_word(text) != "mqtt",
    "tls_keyform": lambda text: first_word(text) != "pem",
    **dict.fromkeys(YES_OR_NO[:4], yes_or_no),
    **dict.fromkeys(
        (
            "bind_address", "bind_interface", "cafile", "capath", "certfile", "ciphers", "ciphers_tls1.3", "crlfile",
            "dhparamfile", "keyfile", "mount_point", "port", "psk_hint", "socket_domain", "tls_engine",
        ),
        bool,
    ),
}  # fmt: skip
"""The options, and their values, that open the default listener of mosquitto 2.0 when they stand above the first
`listener`."""


class ListenerOptions:
    """One listener of a mosquitto.conf: the line that begins it (None: the default listener), and its options."""

    def __init__(self, begun: Line | None) -> None:
        self.begun = begun
        self.options: dict[str, Line] = {}
        self.origins: list[Line] = []
        self.table: Table
        self.off = ""
        """The reason why it is written as a comment."""

    def add(self, line: Line, draft: Draft) -> None:
        """Take an option; a later line replaces an earlier one."""
        if line.option == "websockets_origin":
            self.origins.append(line)
        else:
            put(self.options, line, draft)

    def is_on(self, option: str) -> bool:
        """Return True if a valid boolean option is `true`."""
        line = self.options.get(option)
        return line is not None and yes_or_no(line.value)

    def opens(self) -> bool:
        for option, line in self.options.items():
            try:
                if option in OPENS and OPENS[option](line.value):
                    return True
            except ValueError:
                return True  # mosquitto does not start; what is said of it is said of the listener
        return False

    def switch_off(self, line: Line, text: str, draft: Draft, kind: Kind = Kind.GUARD) -> None:
        draft.note(line, kind, f"{text}; the listener is off")
        self.off = self.off or f"off, for {line}"


def put(options: dict[str, Line], line: Line, draft: Draft) -> None:
    """Set an option, in place of an earlier line."""
    option = canonical(line.option)
    if option in options:
        draft.note(options[option], Kind.NOTHING, f"{line.place} takes its place")
    options[option] = line


def convert_listener(listener: ListenerOptions, local_only: bool, draft: Draft) -> None:
    """Write a listener; `listener.table` is its table afterwards.

    `local_only`: it listens on this machine alone, as mosquitto does if the file names no listener.
    """
    options = listener.options
    for option in YES_OR_NO:
        line = options.get(option)
        if line is not None:
            try:
                yes_or_no(line.value)
            except ValueError as error:
                listener.switch_off(line, f"the value has to be {error}", draft)
                del options[option]
    why = [line for line in (listener.begun, options.get("port"), options.get("bind_address")) if line is not None]
    table = listener.table = draft.table("listener", *why)
    if local_only:
        table.why.append("no listener is named: this machine alone")
        if listener.opens():
            text = "with it mosquitto 2.0 opens its listener to other machines too; here it does not"
            draft.note(next(iter(options.values())), Kind.MISSING, text)
    _set_url(listener, local_only, draft)
    if "max_connections" in options:
        most = draft.read(listener.options.get("max_connections"), number_or_none, 0)
        table.set("max_connections", most, options["max_connections"])
    _set_proxy(listener, draft)
    _set_mount(listener, draft)
    if "psk_hint" in options:
        listener.switch_off(options["psk_hint"], "there is no TLS with pre-shared keys, only with certificates", draft)
    for option, left in LEFT.items():
        line = options.get(option)
        if line is not None and idles(left, line.value):
            draft.note(line, Kind.NOTHING, "it asks for nothing")
        elif line is not None:
            draft.note(line, left.kind, left.text)
    table.off = listener.off


def _set_mount(listener: ListenerOptions, draft: Draft) -> None:
    line = listener.options.get("mount_point")
    if line is None:
        return
    unfit = fault(ListenerSettings, {"url": "mqtt://localhost", "mount": line.value})
    if unfit:
        listener.switch_off(line, unfit, draft)
    else:
        draft.note(
            line, Kind.MISSING, "clients with a mount can use no topics that begin with $; in mosquitto they can"
        )
    listener.table.set("mount", line.value, line)


def _set_url(listener: ListenerOptions, local_only: bool, draft: Draft) -> None:
    options, table = listener.options, listener.table
    tls = _has_tls(listener, draft)
    scheme = "mqtts" if tls else "mqtt"
    protocol = options.get("protocol")
    if protocol is not None and first_word(protocol.value) == "websockets":
        scheme = "wss" if tls else "ws"
    elif protocol is not None and first_word(protocol.value) != "mqtt":
        listener.switch_off(protocol, "there is no such protocol here", draft, Kind.MISSING)
    port, _, host = (listener.begun.value if listener.begun is not None else "").partition(" ")
    host = first_word(host.strip()).partition("#")[0]
    if listener.begun is None:
        port = first_word(options["port"].value) if "port" in options else "1883"
        host = options["bind_address"].value if "bind_address" in options else ""
    why: list[Line | str] = [line for line in (protocol,) if line is not None]
    if port == "0" and host:
        if tls:
            listener.switch_off(options["certfile"], "a Unix socket has no TLS here", draft)
        table.set("url", f"mqtt+unix://{host}", *why)
        return
    host = _host(listener, host, local_only, draft, why)
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        parse_endpoint(url)
        if not port.isdigit():
            raise ValueError
    except ValueError:
        listener.off = f"off: {url} is no address to listen on"
        if listener.begun is not None:
            draft.note(listener.begun, Kind.MISSING, "this is no address to listen on; the listener is off")
    table.set("url", url, *why)
    if tls:
        _set_tls(listener, table.subtable("tls"), draft)
    if listener.origins:
        if scheme in ("ws", "wss"):
            table.set("origins", [line.value for line in listener.origins], *listener.origins)
        else:
            for line in listener.origins:
                draft.note(line, Kind.NOTHING, "no WebSocket comes in here")


def _host(listener: ListenerOptions, host: str, local_only: bool, draft: Draft, why: list[Line | str]) -> str:
    """Return the host of a listener: the given address, or all those of an interface or a family."""
    interface, domain = listener.options.get("bind_interface"), listener.options.get("socket_domain")
    if interface is not None and interface.value != "lo":
        text = "a listener is bound to an address: write that of the interface in place of 127.0.0.1"
        draft.note(interface, Kind.GUARD, text)
        return "127.0.0.1"
    family = "" if domain is None else first_word(domain.value)
    if domain is not None:
        if family not in ("ipv4", "ipv6"):
            listener.switch_off(domain, "the value has to be ipv4 or ipv6", draft)
        elif host and not _is_of(family, host):
            listener.switch_off(domain, f"{host} is no address of this family", draft)
        else:
            why.append(domain)
    if host:
        if interface is not None and not is_loopback(host):
            listener.switch_off(interface, f"{host} is no address of this interface", draft)
        elif interface is not None:
            why.append(interface)
        return host
    if interface is not None:
        why.append(interface)
    if interface is not None or local_only:
        return "::1" if family == "ipv6" else "127.0.0.1"
    return {"ipv4": "0.0.0.0", "ipv6": "::"}.get(family, ANYWHERE)


def _is_of(family: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == (4 if family == "ipv4" else 6)
    except ValueError:
        return False


def _has_tls(listener: ListenerOptions, draft: Draft) -> bool:
    """Return True if the listener has a certificate. An incomplete pair switches it off: mosquitto would not start."""
    certificate, key = listener.options.get("certfile"), listener.options.get("keyfile")
    if certificate is not None and key is not None:
        return True
    for line in (certificate, key):
        if line is not None:
            listener.switch_off(line, "TLS needs both certfile and keyfile", draft)
    if "enable_proxy_protocol" not in listener.options:
        for option in ("require_certificate", "cafile", "capath", "crlfile", "tls_version", "ciphers"):
            line = listener.options.get(option)
            if line is not None and (option != "require_certificate" or listener.is_on(option)):
                text = "this listener has no certificate, and so no TLS, in mosquitto neither"
                draft.note(line, Kind.MISSING, text)
            elif line is not None:
                draft.note(line, Kind.NOTHING, "it asks for nothing")
    return False


def _set_tls(listener: ListenerOptions, tls: Table, draft: Draft) -> None:
    options = listener.options
    tls.set("certificate", options["certfile"].value, options["certfile"])
    tls.set("key", options["keyfile"].value, options["keyfile"])
    version = options.get("tls_version")
    if version is not None:
        oldest = OLDEST_TLS.get(version.value)
        if oldest is None or version.value in ("tlsv1", "tlsv1.1"):
            draft.note(version, Kind.MISSING, "TLS 1.2 is the oldest version here")
        tls.set("min_version", oldest or "1.2", version)
    if "ciphers" in options:
        tls.set("ciphers", options["ciphers"].value, options["ciphers"])
    _set_client_certificates(listener, tls, draft)


def _set_client_certificates(listener: ListenerOptions, tls: Table, draft: Draft) -> None:
    options = listener.options
    required = options.get("require_certificate")
    authorities, folder, revoked = options.get("cafile"), options.get("capath"), options.get("crlfile")
    if required is None or not listener.is_on("require_certificate"):
        if required is not None:
            tls.set("client_certificates", "none", required)
        if authorities is not None:
            tls.set("chain", authorities.value, authorities, "it completes the chain of certfile, as in mosquitto")
        if folder is not None:
            text = "tls.chain is one file: put the certificates that complete the chain of certfile behind it there"
            draft.note(folder, Kind.MISSING, text)
        if revoked is not None:
            draft.note(revoked, Kind.NOTHING, "without require_certificate no client is asked for a certificate")
        return
    tls.set("client_certificates", "required", required)
    if authorities is not None:
        tls.set("client_ca", authorities.value, authorities)
    if folder is not None:
        draft.note(folder, Kind.INSTEAD, "client_ca is one file: cat *.pem > ca.pem in that folder")
        if authorities is None:
            tls.set("client_ca", f"{folder.value.rstrip('/')}/ca.pem", folder)
    if authorities is None and folder is None:
        listener.switch_off(required, "it needs cafile", draft)
    if revoked is not None:
        tls.set("crl", revoked.value, revoked)


def _set_proxy(listener: ListenerOptions, draft: Draft) -> None:
    options = listener.options
    line, tls = options.get("enable_proxy_protocol"), options.get("proxy_protocol_v2_require_tls")
    if line is None or first_word(line.value) not in ("1", "2"):
        if line is not None:
            listener.switch_off(line, "the value has to be 1 or 2", draft)
        elif tls is not None:
            draft.note(tls, Kind.NOTHING, "no proxy stands before this listener")
        return
    version = first_word(line.value)
    for option, text in BEHIND_PROXY.items():
        asked = options.get(option)
        if asked is None or (option in YES_OR_NO and not listener.is_on(option)):
            if asked is not None:
                draft.note(asked, Kind.NOTHING, "it asks for nothing")
        elif version == "2" or (option in YES_OR_NO and "certfile" not in options):
            listener.switch_off(asked, text, draft)
    listener.table.set("proxy_protocol", f"v{version}", line)
    listener.table.set("proxy_from", ["127.0.0.1/32"], line)
    draft.note(line, Kind.INSTEAD, "proxy_from names the proxies whose headers count: write the addresses of yours")
