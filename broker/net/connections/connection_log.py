"""The log lines about clients: who connected, on which terms, and how and why each connection ended.

Owns the events and their levels. "client evicted" is a decision of the broker, "client disconnected" one of the client
or the network. A hostile client cannot fill the disk: lines about clients have so much room by address and in all, of
which warnings are counted and others weighed (`log_room`); what is above `log.client_…` is summed up in a line every
`INTERVAL` seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Final

from broker.core.addresses import network
from broker.core.causes import (
    CLIENT_DISCONNECT,
    CLIENT_DISCONNECT_WITH_WILL,
    CONNECT_TIMEOUT,
    CONNECTION_LOST,
    KEEP_ALIVE,
    PROTOCOL_ERROR,
    REFUSED,
    SHUTDOWN,
    TAKEN_OVER,
    WRITE_FAILED,
)
from broker.core.codec.packets import NEVER, V5, V31, V311
from broker.net.connections.client import Client
from broker.net.connections.log_room import LogRoom
from broker.settings import Log

ADDRESS_BYTES: Final = 0.68
"""That share of `log.client_bytes` one IP address (IPv6: /64) may use: enough for 2,000 devices behind one address that
all connect again at once."""

ADDRESS_WARNINGS: Final = 0.1
"""The same of `log.client_warnings`, so that one address that fails all the time does not hide others."""

INTERVAL: Final = 10.0
"""Seconds for which lines about clients are counted together, and after which there is all room for warnings again."""

REFILL: Final = 15.0
"""Seconds after which there is all room for other lines again."""

TOKEN: Final = "eyJ"
"""What every token in JSON begins with: `{"` in base64."""

VERSIONS: Final = {V31: "3.1", V311: "3.1.1", V5: "5.0"}
"""Protocol level of CONNECT → the version as people know it."""

CONNECTED: Final = "client connected"
DISCONNECTED: Final = "client disconnected"
NOT_ACCEPTED: Final = "connection ended before CONNECT was accepted"
REFUSAL: Final = "client refused"
VIOLATION: Final = "client broke the protocol"
EVICTION: Final = "client evicted"

HANDSHAKE: Final = "handshake failed"
PROXY: Final = "PROXY header refused"
HTTP: Final = "http credentials refused"
REQUEST: Final = "request refused"
DELIVERY: Final = "delivery refused"

FIELDS: Final = {
    REFUSAL: "refused",
    VIOLATION: "protocol_errors",
    EVICTION: "evicted",
    HANDSHAKE: "handshakes_failed",
    PROXY: "proxy_headers",
    HTTP: "http_refused",
    REQUEST: "requests_refused",
}
"""Event → what the line that sums up warnings calls it."""

NAMES: Final = {
    CONNECTED: "connected",
    DISCONNECTED: "disconnected",
    EVICTION: "evicted",
    NOT_ACCEPTED: "not_accepted",
    DELIVERY: "deliveries_refused",
}
"""Event → what the line that sums up other lines calls it."""

OF_THE_CLIENT: Final = (CLIENT_DISCONNECT, CLIENT_DISCONNECT_WITH_WILL, CONNECTION_LOST, WRITE_FAILED, SHUTDOWN)
"""Causes of "client disconnected"."""

HEALTH_CHECK: Final = "canopy-health-"
"""How the client identifiers of `canopy health` begin."""

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", ""})
"""From where its refusals are no news; who comes by a Unix socket has no address. From elsewhere, whoever calls itself
so is a client like any other."""

LONGEST_NAME: Final = 512
"""Bytes that a client identifier and a user name each take in a line, as JSON escapes them: both may have 65,535 bytes
in a refused CONNECT, and a character outside of ASCII takes up to 12."""

LINE: Final = 282
"""Bytes that a line takes beside its texts."""

TEXTS: Final = ("client_id", "user_name", "address", "listener", "detail", "topic", "reason")


def _size(character: str) -> int:
    """Bytes of a character in JSON."""
    if " " <= character <= "~":
        return 1
    return 6 if character <= "\uffff" else 12


def cut(name: str) -> str:
    if name.isascii() and name.isprintable():
        return name[:LONGEST_NAME]
    left = LONGEST_NAME
    for at, character in enumerate(name):
        left -= _size(character)
        if left < 0:
            return name[:at]
    return name


def _weight(known: dict[str, Any]) -> int:
    """About how many bytes a line takes."""
    size = LINE
    for name in TEXTS:
        value = known.get(name)
        if value:
            size += len(value) if value.isascii() and value.isprintable() else sum(map(_size, value))
    return size


def named(user_name: str | None) -> str | None:
    """A user name for the log. A token (RFC 7519) that stands in its place is a credential, and may still be good."""
    if user_name is not None and user_name.startswith(TOKEN) and user_name.count(".") > 1:
        return "(a token)"
    return None if user_name is None else cut(user_name)


class ConnectionLog:
    """The lines about connections. Times in seconds."""

    def __init__(self, log: Callable[[], Any], settings: Log) -> None:
        """`log` answers with the log that is written to at the time."""
        self._log = log
        # Of warnings, in lines, and of other lines, in bytes.
        self._warnings = LogRoom(INTERVAL)
        self._room = LogRoom(REFILL)
        self.bound(settings)
        self._interval_ends = 0.0

    def bound(self, settings: Log) -> None:
        """Write no more than these settings allow. 0: no limit."""
        self._room.bound(settings.client_bytes, round(settings.client_bytes * ADDRESS_BYTES))
        self._warnings.bound(settings.client_warnings, math.ceil(settings.client_warnings * ADDRESS_WARNINGS))
        # Whether anybody sees lines of the level info, as of the last look: nobody is asked for each connection.
        self.informs: bool = self._log().is_enabled_for(logging.INFO)

    def opened(self, connection: Client) -> None:
        if not self.informs:
            return
        protocol = connection.protocol
        session = protocol.session
        kept: dict[str, Any] = {}
        if session is not None:  # else the client left with the read that brought its CONNECT
            expiry = int(session.expiry_interval)
            if session.link_peer and not session.link:
                # A Canopy whose requests would else wait for answers from here, and nobody knows why they do not.
                kept["link"] = "federation.link_users and link_client_ids do not name it"
            kept |= {"session_expiry": "never" if expiry == NEVER else expiry, "will": session.will is not None}
        known: dict[str, Any] = {
            "client_id": cut(protocol.client_id),
            "user_name": named(protocol.user_name),
            "address": connection.address,
            "listener": connection.terms.name,
            "version": VERSIONS.get(protocol.version, str(protocol.version)),
            "keep_alive": protocol.keep_alive,
            "clean_start": protocol.clean_start,
            "session_present": protocol.session_present,
        }
        self._inform(connection.host, CONNECTED, known | kept)

    def ended(self, connection: Client, now: float) -> None:
        """A connection's protocol is over, for the cause that its protocol names."""
        protocol = connection.protocol
        cause = protocol.close_cause
        if not self.informs and protocol.accepted and cause in OF_THE_CLIENT:
            return
        known: dict[str, Any] = {
            "client_id": cut(protocol.client_id),
            "user_name": named(protocol.user_name),
            "address": connection.address,
            "listener": connection.terms.name,
            "cause": cause,
        }
        if protocol.close_text:
            known["detail"] = cut(protocol.close_text)
        if protocol.accepted:
            known["seconds"] = round(now - connection.opened_at, 3)
            known["messages_received"] = int(protocol.messages_received)
            known["messages_sent"] = int(connection.outbox.taken)
        elif cause in (CONNECTION_LOST, WRITE_FAILED):
            # Port scanners and the health checks of load balancers come and go like this, every few seconds.
            self._log().debug(NOT_ACCEPTED, **known)
            return
        if cause == CONNECT_TIMEOUT:
            self._inform(connection.host, NOT_ACCEPTED, known)
        elif cause in OF_THE_CLIENT:
            self._inform(connection.host, DISCONNECTED, known)
        elif cause in (KEEP_ALIVE, TAKEN_OVER):
            # Every day's traffic of clients on thin links.
            self._inform(connection.host, EVICTION, known)
        elif cause == REFUSED and connection.host in LOOPBACK and protocol.client_id.startswith(HEALTH_CHECK):
            # `canopy health` without a user name, every few seconds, where there are no anonymous clients.
            self._log().debug(REFUSAL, **known)
        elif cause == REFUSED:
            self._warn(connection.host, REFUSAL, known)
        elif cause == PROTOCOL_ERROR:
            self._warn(connection.host, VIOLATION, known)
        else:
            self._warn(connection.host, EVICTION, known)

    def handshake_failed(self, listener: str, host: str, address: str, reason: str) -> None:
        """A client did not get through the handshake of its listener (TLS), and why."""
        self._warn(host, HANDSHAKE, {"listener": listener, "address": address, "reason": reason})

    def proxy_refused(self, listener: str, host: str, address: str, reason: str) -> None:
        """A connection to a listener behind proxies did not begin with a header that counts, and why."""
        self._warn(host, PROXY, {"listener": listener, "address": address, "reason": reason})

    def http_refused(self, host: str, address: str, user_name: str) -> None:
        """A request by HTTP had a wrong user, password or token. `user_name`: empty for a token."""
        self._warn(host, HTTP, {"address": address, "user_name": named(user_name)})

    def look(self, now: float) -> None:
        """Called once a second: when an interval is over, sum up the lines that were not written in it."""
        self._warnings.look(now)
        self._room.look(now)
        self.informs = self._log().is_enabled_for(logging.INFO)
        if now >= self._interval_ends:
            self.finish()
            self._interval_ends = now + INTERVAL

    def finish(self) -> None:
        """Sum up what was not written, and begin to count anew."""
        warnings, others = _left_out(self._warnings, FIELDS), _left_out(self._room, NAMES)
        if warnings is not None:
            fields, address, count = warnings
            self._log().warning(
                "warnings about clients left out",
                **fields,
                most_from=address,
                warnings_from_it=count,
                interval=INTERVAL,
            )
        if others is not None:
            fields, address, count = others
            self._log().info(
                "lines about clients left out", **fields, most_from=address, lines_from_it=count, interval=INTERVAL
            )

    def _inform(self, host: str, event: str, known: dict[str, Any]) -> None:
        """Write a line about a client that is no warning, or count it where there is no room for it."""
        if self.may_inform(host, event, known):
            self._log().info(event, **known)

    def may_inform(self, host: str, event: str, known: dict[str, Any]) -> bool:
        """Whether such a line may be written now; else it is counted."""
        return self.informs and self._room.take(network(host), event, _weight(known))

    def _warn(self, host: str, event: str, known: dict[str, Any]) -> None:
        """Write a warning about a client, or count it where its address, or all together, have had theirs."""
        if self.has_room(host, event):
            self._log().warning(event, **known)

    def left_out(self, event: str, count: int) -> None:
        """So many lines about clients are not written at all: they are in the sum."""
        self._warnings.leave_out(event, count)

    def has_room(self, host: str, event: str) -> bool:
        """Whether a warning about a client of this address may be written now; else it is counted."""
        return self._warnings.take(network(host), event, 1)


def _left_out(room: LogRoom, names: dict[str, str]) -> tuple[dict[str, int], str, int] | None:
    """How many lines were left out since the last time, in all and by event; of which address most of them were, and
    how many. None: none were."""
    left_out = room.left_out
    address, count = room.summed_up()
    if not left_out:
        return None
    fields = {names[event]: lines for event, lines in left_out.items()}
    return {"total": sum(left_out.values()), **fields}, address, count
