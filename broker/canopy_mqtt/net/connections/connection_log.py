"""Writes the log lines about clients: who connected, on which terms, how and why a connection ended, who was refused.

Owns the events, their levels and their budget. "client evicted" is a decision of the broker, "client disconnected" one
of the client or the network. Each field is named once, in JSON: the daemon's log takes it as it is, since two lines for
each connection would cost more than all else of it; any other log gets the values (docs/logs.md). A hostile client
cannot fill the disk: an address, and all of them together, may write `log.client_warnings` and `log.client_bytes`, and
a line every `INTERVAL` seconds sums up the others. At most `MAX_ADDRESSES` addresses have a budget of their own.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.core import causes
from canopy_mqtt.core.codec.packets import NEVER, V5, V31, V311
from canopy_mqtt.core.principal import network
from canopy_mqtt.core.protocol.publish_limit import TokenBucket
from canopy_mqtt.net.connections.admission import MAX_ADDRESSES, AddressBuckets

if TYPE_CHECKING:
    from canopy_mqtt.net.connections.connection import Connection
    from canopy_mqtt.settings import Log

ADDRESS_BYTES: Final = 0.68
"""The share of `log.client_bytes` that one IP address (IPv6: /64) may use: enough for 2,000 devices behind one address
that all connect again at once."""

ADDRESS_WARNINGS: Final = 0.1
"""The same of `log.client_warnings`, so that one address that fails all the time does not hide others."""

INTERVAL: Final = 10.0
"""Seconds for which lines about clients are counted together, and after which there is all room for warnings again."""

REFILL: Final = 15.0
"""Seconds after which there is all room for other lines again."""

MAX_NAME_BYTES: Final = 512
"""Bytes that a client identifier and a user name each take in a line, as JSON escapes them: both may have 65,535 bytes
in a refused CONNECT."""

MAX_CHARACTER_BYTES: Final = 12
"""Bytes that a character takes at most, as JSON escapes it."""

TAIL_BYTES: Final = 90
"""Bytes of a line behind its fields: event, level, time."""

TOKEN: Final = "eyJ"
"""The first characters of every JSON token: `{"` in base64."""

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
"""Event → its name in the line that sums up warnings."""

NAMES: Final = {
    CONNECTED: "connected",
    DISCONNECTED: "disconnected",
    EVICTION: "evicted",
    NOT_ACCEPTED: "not_accepted",
    DELIVERY: "deliveries_refused",
}
"""Event → its name in the line that sums up other lines."""

OF_THE_CLIENT: Final = (
    causes.CLIENT_DISCONNECT,
    causes.CLIENT_DISCONNECT_WITH_WILL,
    causes.CONNECTION_LOST,
    causes.WRITE_FAILED,
    causes.SHUTDOWN,
)
"""Causes of "client disconnected"."""

ENDS: Final = {
    **dict.fromkeys(OF_THE_CLIENT, (logging.INFO, DISCONNECTED)),
    causes.CONNECT_TIMEOUT: (logging.INFO, NOT_ACCEPTED),
    # Every day's traffic of clients on thin links.
    causes.KEEP_ALIVE: (logging.INFO, EVICTION),
    causes.TAKEN_OVER: (logging.INFO, EVICTION),
    causes.REFUSED: (logging.WARNING, REFUSAL),
    causes.PROTOCOL_ERROR: (logging.WARNING, VIOLATION),
}
"""Cause of an end → level and event of its line."""

DEFAULT_END: Final = (logging.WARNING, EVICTION)
"""Level and event for all other causes, which are decisions of the broker."""

HEALTH_CHECK: Final = "canopy-health-"
"""The beginning of the client identifiers of `canopy health`."""

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", ""})
"""The addresses from which a refused health check is not logged; a Unix socket has no address. A client from elsewhere
with such an identifier is logged like any other."""

NO_LINK: Final = "federation.link_users and link_client_ids do not name it"

DEBUG: Final = logging.DEBUG
INFO: Final = logging.INFO
WARNING: Final = logging.WARNING


def _size(character: str) -> int:
    """Return the bytes of a character in JSON."""
    if " " <= character <= "~":
        return 1
    return 6 if character <= "\uffff" else MAX_CHARACTER_BYTES


def cut(name: str) -> str:
    """Return as much of a name as a line has room for."""
    if len(name) * MAX_CHARACTER_BYTES <= MAX_NAME_BYTES:
        return name
    if name.isascii() and name.isprintable():
        return name[:MAX_NAME_BYTES]
    left = MAX_NAME_BYTES
    for at, character in enumerate(name):
        left -= _size(character)
        if left < 0:
            return name[:at]
    return name


def named(user_name: str | None) -> str | None:
    """Return a user name for the log, unless a token (RFC 7519) stands in its place: it may still be good."""
    if user_name is not None and user_name.startswith(TOKEN) and user_name.count(".") > 1:
        return "(a token)"
    return None if user_name is None else cut(user_name)


class LogBudget:
    """The budget of all addresses together and of each. Times are those of the last `look`."""

    def __init__(self, refill: float) -> None:
        """`refill`: seconds after which all of the budget is there again."""
        self._refill = refill
        # None: no limit.
        self._all: TokenBucket | None = None
        self._each: AddressBuckets | None = None
        # The time of the first look, from which on all times count; below 0: there was none.
        self._began = -1.0
        self._now = 0.0
        # Lines that were not written, by event and by address.
        self.left_out: dict[str, int] = {}
        self._by_address: dict[str, int] = {}

    def bound(self, most: int, of_address: int) -> None:
        """Keep to these limits. 0: no limit."""
        self._all = TokenBucket(most / self._refill, float(most)) if most > 0 else None
        self._each = AddressBuckets(of_address / self._refill, float(of_address)) if of_address > 0 else None

    def take(self, address: str, event: str, size: int) -> bool:
        """Return whether a line may be written. If not, it is counted as left out."""
        now, count = self._now, float(size)
        has_room = self._each is None or self._each.take(address, now, count)
        if has_room and (self._all is None or self._all.try_take(now, count)):
            return True
        self.leave_out(event, 1)
        if address in self._by_address or len(self._by_address) < MAX_ADDRESSES:
            self._by_address[address] = self._by_address.get(address, 0) + 1
        return False

    def leave_out(self, event: str, count: int) -> None:
        """Count lines that were not written and whose address is unknown."""
        self.left_out[event] = self.left_out.get(event, 0) + count

    def look(self, now: float) -> None:
        """Take the time."""
        if self._began < 0.0:
            self._began = now
        self._now = now - self._began

    def take_summary(self, names: dict[str, str]) -> dict[str, Any]:
        """Return how many lines were left out since the last call: in all, by the name of their event, of the address
        of which most were, and of it; empty if there were none."""
        left_out, by_address = self.left_out, self._by_address
        self.left_out, self._by_address = {}, {}
        if not left_out:
            return {}
        address = max(by_address, key=by_address.__getitem__, default="")
        counts = {names[event]: lines for event, lines in left_out.items()}
        total = sum(left_out.values())
        return {"total": total, **counts, "most_from": address, "from_it": by_address.get(address, 0)}


class ConnectionLog:
    """The lines about clients. Times in seconds. `bound` comes before the first line."""

    def __init__(self, log: Callable[[], Any]) -> None:
        """`log` returns the log that is written to at the time."""
        self._log = log
        self.write: Callable[[str], object] | None = None
        """Takes a whole line for the daemon's log in JSON. None: `log` gets the event."""
        # The second of the last line's time and its listener, and both as they stand in lines.
        self._second = -1
        self._second_text = ""
        self._listener = ""
        self._quoted_listener: str = quoted("")
        # Of warnings, in lines, and of other lines, in bytes.
        self._warnings = LogBudget(INTERVAL)
        self._room = LogBudget(REFILL)
        self._interval_ends = 0.0
        # The least severe level that is written, as of the last look: the log is not asked for each connection.
        self._level = INFO
        self.informs = True
        """True if lines of the level info are written."""

    def bound(self, settings: Log) -> None:
        """Write no more than these settings allow (0: no limit), from the log's present level upwards."""
        self._room.bound(settings.client_bytes, round(settings.client_bytes * ADDRESS_BYTES))
        self._warnings.bound(settings.client_warnings, math.ceil(settings.client_warnings * ADDRESS_WARNINGS))
        self._look_at_level()

    def _look_at_level(self) -> None:
        log = self._log()
        self._level = logging.CRITICAL
        for level in (WARNING, INFO, DEBUG):
            if log.is_enabled_for(level):
                self._level = level
        self.informs = self._level <= INFO

    def opened(self, connection: Connection) -> None:
        """Log that a client was accepted."""
        if not self.informs:
            return
        protocol = connection.protocol
        version: str = VERSIONS.get(protocol.version) or str(protocol.version)
        clean_start = "true" if protocol.clean_start else "false"
        session_present = "true" if protocol.session_present else "false"
        session = protocol.session
        kept = ""
        if session is not None:  # else the client left with the read that brought its CONNECT
            if session.link_peer and not session.is_link and not session.internal:
                # Else nothing would tell why the requests of that Canopy get no answers.
                kept = f', "link": "{NO_LINK}"'
            expiry = '"never"' if session.expiry_interval == NEVER else str(int(session.expiry_interval))
            kept += f', "session_expiry": {expiry}, "will": {"false" if session.will is None else "true"}'
        fields = (
            f'{self._client(connection)}, "version": "{version}", "keep_alive": {protocol.keep_alive}, '
            f'"clean_start": {clean_start}, "session_present": {session_present}{kept}'
        )
        # A node tells of its links itself.
        self._line(INFO if connection.terms.door is None else DEBUG, connection.host, CONNECTED, fields)

    def ended(self, connection: Connection, now: float) -> None:
        """Log that a connection's protocol is over, with the cause that it names."""
        protocol = connection.protocol
        cause = protocol.close_cause
        level, event = ENDS.get(cause, DEFAULT_END)
        if not protocol.accepted and cause in (causes.CONNECTION_LOST, causes.WRITE_FAILED):
            # Port scanners and the health checks of load balancers come and go like this, every few seconds.
            level, event = DEBUG, NOT_ACCEPTED
        elif cause == causes.REFUSED and connection.host in LOOPBACK and protocol.client_id.startswith(HEALTH_CHECK):
            # `canopy health` without a user name comes every few seconds where there are no anonymous clients.
            level = DEBUG
        elif level == INFO and protocol.accepted and connection.terms.door is not None:
            level = DEBUG
        if level < self._level:
            return
        detail = f', "detail": {quoted(cut(protocol.close_text))}' if protocol.close_text else ""
        counts = ""
        if protocol.accepted:
            counts = (
                f', "seconds": {round(now - connection.opened_at, 3)}, '
                f'"messages_received": {int(protocol.messages_received)}, '
                f'"messages_sent": {int(connection.send_buffer.taken)}'
            )
        self._line(level, connection.host, event, f'{self._client(connection)}, "cause": "{cause}"{detail}{counts}')

    def _client(self, connection: Connection) -> str:
        """Return the first fields of each line about a connection, with the brace that opens the line."""
        protocol = connection.protocol
        user_name = named(protocol.user_name)
        client_id: str = quoted(cut(protocol.client_id))
        user: str = "null" if user_name is None else quoted(user_name)
        address: str = quoted(connection.address)
        name = connection.terms.name
        if name != self._listener:
            self._listener, self._quoted_listener = name, quoted(name)
        return (
            f'{{"client_id": {client_id}, "user_name": {user}, "address": {address}, '
            f'"listener": {self._quoted_listener}'
        )

    def not_begun(self, event: str, listener: str, host: str, address: str, reason: str) -> None:
        """Log that a connection failed before MQTT began (HANDSHAKE, PROXY), and why."""
        self.warn(host, event, {"listener": listener, "address": address, "reason": reason})

    def http_refused(self, host: str, address: str, user_name: str) -> None:
        """Log that a request by HTTP had a wrong user, password or token. `user_name`: empty for a token."""
        self.warn(host, HTTP, {"address": address, "user_name": named(user_name)})

    def inform(self, host: str, event: str, known: dict[str, Any]) -> None:
        """Write a line about a client that is no warning, or count it where there is no room for it."""
        if self.informs:
            self._line(INFO, host, event, json.dumps(known)[:-1])

    def warn(self, host: str, event: str, known: dict[str, Any]) -> None:
        """Write a warning about a client, or count it if the budget of its address, or of all, is used up."""
        self._line(WARNING, host, event, json.dumps(known)[:-1])

    def look(self, now: float) -> None:
        """Take the time, once a second. When an interval is over, sum up the lines that were not written in it."""
        self._warnings.look(now)
        self._room.look(now)
        self._look_at_level()
        if now >= self._interval_ends:
            self.finish()
            self._interval_ends = now + INTERVAL

    def finish(self) -> None:
        """Sum up the lines that were not written, and begin to count anew."""
        if warnings := self._warnings.take_summary(FIELDS):
            count = warnings.pop("from_it")
            self._log().warning(
                "warnings about clients left out", **warnings, warnings_from_it=count, interval=INTERVAL
            )
        if others := self._room.take_summary(NAMES):
            count = others.pop("from_it")
            self._log().info("lines about clients left out", **others, lines_from_it=count, interval=INTERVAL)

    def left_out(self, event: str, count: int) -> None:
        """Count warnings about clients that are not written at all."""
        self._warnings.leave_out(event, count)

    def _line(self, level: int, host: str, event: str, fields: str) -> None:
        """Write a line, or count it where there is no room. `fields`: a JSON object without its closing brace."""
        if level < self._level:
            return
        if level == WARNING:
            has_room = self._warnings.take(network(host), event, 1)
        else:
            has_room = level == DEBUG or self._room.take(network(host), event, len(fields) + TAIL_BYTES)
        if not has_room:
            return
        name = "info" if level == INFO else "warning" if level == WARNING else "debug"
        write = self.write
        if write is None:
            getattr(self._log(), name)(event, **json.loads(fields + "}"))
            return
        # As `datetime.isoformat` writes it: without a fraction where there is none.
        microseconds = time.time_ns() // 1_000
        second = microseconds // 1_000_000
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        fraction = str(microseconds % 1_000_000 + 1_000_000)[1:]
        point = "" if fraction == "000000" else f".{fraction}"
        write(f'{fields}, "event": "{event}", "level": "{name}", "timestamp": "{self._second_text}{point}Z"}}\n')
