"""mosquitto's listeners as `[[listener]]` tables.

Owns where they listen, TLS, and the bounds of one listener. Promises: a listener of which a guard cannot be converted
is written as a comment, or so that it does not open: it never lets in more people than it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from broker.convert.draft import Draft, Kind, Table, fault
from broker.convert.options import number_or_none, yes_or_no
from broker.convert.source import Line
from broker.settings.listeners import Listener as ListenerSettings
from broker.settings.listeners import parse_endpoint

Result = TypeVar("Result")

OLDEST_TLS: Final = {"tlsv1.3": "1.3", "tlsv1.2": "1.2", "tlsv1.1": "1.2", "tlsv1": "1.2"}

ANYWHERE: Final = "0.0.0.0"

OF_CERTIFICATES: Final = ("require_certificate", "use_identity_as_username", "use_subject_as_username")
"""Options that have a client show a certificate. With another value than `true` or `false` mosquitto does not start."""


class ListenerOptions:
    """One listener of a mosquitto.conf: the line that begins it (None: the default listener), and its options."""

    def __init__(self, begun: Line | None) -> None:
        self.begun = begun
        self.options: dict[str, Line] = {}
        self.origins: list[Line] = []
        self.table: Table
        self.off = ""
        """Why it is written as a comment."""

    def add(self, line: Line) -> None:
        """Another option; a later line takes the place of an earlier one."""
        if line.option == "websockets_origin":
            self.origins.append(line)
        else:
            self.options[line.option] = line

    def value(self, option: str, read: Callable[[str], Result], otherwise: Result, draft: Draft) -> Result:
        """The value of an option, or what holds without it; one that cannot be read is noted."""
        line = self.options.get(option)
        if line is None:
            return otherwise
        try:
            return read(line.value)
        except ValueError as error:
            draft.note(line, Kind.MISSING, f"the value has to be {error}")
            return otherwise

    def is_on(self, option: str, draft: Draft) -> bool:
        """Whether an option is `true`."""
        return self.value(option, yes_or_no, False, draft)


def convert_listener(listener: ListenerOptions, local_only: bool, draft: Draft) -> None:
    """Write a listener; `listener.table` is its table from then on.

    `local_only`: it listens for this machine alone, as mosquitto does where no listener is named.
    """
    options = listener.options
    for option in OF_CERTIFICATES:
        line = options.get(option)
        if line is not None:
            try:
                yes_or_no(line.value)
            except ValueError as error:
                draft.note(line, Kind.GUARD, f"the value has to be {error}; the listener is off")
                listener.off = f"off, for {line}"
                del options[option]
    why = [line for line in (listener.begun, options.get("port"), options.get("bind_address")) if line is not None]
    table = listener.table = draft.table("listener", *why)
    if local_only:
        table.why.append("no listener is named: this machine alone")
    _set_url(listener, local_only, draft)
    if "max_connections" in options:
        most = listener.value("max_connections", number_or_none, 0, draft)
        table.set("max_connections", most, options["max_connections"])
    _set_proxy(listener, draft)
    for option in ("mount_point", "http_dir", "psk_hint"):
        line = options.get(option)
        if line is None:
            continue
        if option == "mount_point":
            unfit = fault(ListenerSettings, {"url": "mqtt://localhost", "mount": line.value})
            if unfit:
                draft.note(line, Kind.GUARD, f"{unfit}; the listener is off")
                listener.off = f"off, for {line}"
            table.set("mount", line.value, line)
        elif option == "psk_hint":
            draft.note(line, Kind.GUARD, "there is no TLS with pre-shared keys, only with certificates; it is off")
            listener.off = f"off, for {line}"
        else:
            draft.note(line, Kind.INSTEAD, "the broker serves no files; a web server does")
    table.off = listener.off


def _set_url(listener: ListenerOptions, local_only: bool, draft: Draft) -> None:
    options, table = listener.options, listener.table
    tls = _has_tls(listener, draft)
    scheme = "mqtts" if tls else "mqtt"
    protocol = options.get("protocol")
    if protocol is not None and protocol.value == "websockets":
        scheme = "wss" if tls else "ws"
    elif protocol is not None and protocol.value != "mqtt":
        draft.note(protocol, Kind.MISSING, "there is no such protocol here; the listener is off")
        listener.off = f"off, for {protocol}"
    port, _, host = (listener.begun.value if listener.begun is not None else "").partition(" ")
    host = host.strip()
    if listener.begun is None:
        port = options["port"].value if "port" in options else "1883"
        host = options["bind_address"].value if "bind_address" in options else ""
    why: list[Line | str] = [line for line in (protocol,) if line is not None]
    if port == "0" and host:
        table.set("url", f"mqtt+unix://{host}", *why)
        return
    if not host:
        host = _any_host(listener, local_only, draft, why)
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
        _set_tls(listener, table.within("tls"), draft)
    if listener.origins:
        if scheme in ("ws", "wss"):
            table.set("origins", [line.value for line in listener.origins], *listener.origins)
        else:
            for line in listener.origins:
                draft.note(line, Kind.NOTHING, "no WebSocket comes in here")


def _any_host(listener: ListenerOptions, local_only: bool, draft: Draft, why: list[Line | str]) -> str:
    """Where a listener without an address listens."""
    interface, domain = listener.options.get("bind_interface"), listener.options.get("socket_domain")
    if interface is not None:
        if interface.value == "lo":
            why.append(interface)
        else:
            text = "a listener is bound to an address: write that of the interface in place of 127.0.0.1"
            draft.note(interface, Kind.GUARD, text)
        return "127.0.0.1"
    if domain is not None:
        why.append(domain)
        if domain.value == "ipv6":
            return "::1" if local_only else "::"
    elif not local_only:
        why.append("mosquitto listens over IPv6 too: a second [[listener]] with [::] does")
    return "127.0.0.1" if local_only else ANYWHERE


def _has_tls(listener: ListenerOptions, draft: Draft) -> bool:
    """Whether the listener has a certificate. With half of one it is off: mosquitto does not start so."""
    certificate, key = listener.options.get("certfile"), listener.options.get("keyfile")
    if certificate is not None and key is not None:
        return True
    for line in (certificate, key):
        if line is not None:
            draft.note(line, Kind.GUARD, "TLS needs both certfile and keyfile; the listener is off")
            listener.off = f"off, for {line}"
    for option in ("require_certificate", "cafile", "capath", "crlfile", "tls_version", "ciphers"):
        if option in listener.options:
            draft.note(listener.options[option], Kind.NOTHING, "this listener has no certificate, and so no TLS")
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
    authorities, folder, revoked = options.get("cafile"), options.get("capath"), options.get("crlfile")
    if not listener.is_on("require_certificate", draft):
        for line in (authorities, folder, revoked):
            if line is not None:
                draft.note(line, Kind.NOTHING, "without require_certificate no client is asked for one")
        return
    tls.set("client_certificates", "required", options["require_certificate"])
    if authorities is not None:
        tls.set("client_ca", authorities.value, authorities)
    if folder is not None:
        draft.note(folder, Kind.INSTEAD, "client_ca is one file: cat *.pem > ca.pem in that folder")
        if authorities is None:
            tls.set("client_ca", f"{folder.value.rstrip('/')}/ca.pem", folder)
    if authorities is None and folder is None:
        line = options["require_certificate"]
        draft.note(line, Kind.GUARD, "it needs cafile; the listener is off")
        listener.off = f"off, for {line}"
    if revoked is not None:
        tls.set("crl", revoked.value, revoked)


def _set_proxy(listener: ListenerOptions, draft: Draft) -> None:
    line = listener.options.get("enable_proxy_protocol")
    if line is None:
        return
    if line.value not in ("1", "2"):
        draft.note(line, Kind.GUARD, "the value has to be 1 or 2; the listener is off")
        listener.off = f"off, for {line}"
        return
    listener.table.set("proxy_protocol", f"v{line.value}", line)
    listener.table.set("proxy_from", ["127.0.0.1/32"], "the proxies whose word counts: write theirs; others are closed")
