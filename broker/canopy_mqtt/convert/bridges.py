"""Converts mosquitto's bridges to `[[upstream]]` tables (docs/federation.md).

Owns the meaning of `topic` lines. A link has one pair of prefixes, a bridge one for each topic: topics with different
prefixes become several links. Promises: a bridge whose encryption cannot be converted is written as a comment.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from canopy_mqtt.convert.draft import Draft, Kind, Table, Value, fault
from canopy_mqtt.convert.listeners import put
from canopy_mqtt.convert.options import first_word, number, yes_or_no
from canopy_mqtt.convert.source import Line
from canopy_mqtt.settings import NEVER, Upstream

VERSIONS: Final = {"mqttv50": "5.0", "mqttv311": "3.1.1", "mqttv31": "3.1.1"}

DIFFERENCES: Final = {
    "mqttv50": "messages of the link have the user property canopy-via, by which brokers find circles",
    "mqttv31": "a link speaks no MQTT 3.1, but 3.1.1",
}
"""The difference that each `bridge_protocol_version` makes."""

WITH_TLS: Final = ("bridge_cafile", "bridge_capath", "bridge_certfile")
WITH_KEYS: Final = ("bridge_psk", "bridge_identity")

FILES: Final = {"bridge_cafile": "ca_file", "bridge_certfile": "cert_file", "bridge_keyfile": "key_file"}

WORDS: Final = re.compile(r'"([^"]*)"|(\S+)')
"""The words of a `topic` line: some are quoted, and those may be empty."""


class Topic(NamedTuple):
    line: Line
    pattern: str
    comes_in: bool
    goes_out: bool
    qos: int
    local: str
    remote: str


class Bridge:
    """One bridge of a mosquitto.conf: the line that begins it, and its options."""

    def __init__(self, begun: Line) -> None:
        self.begun = begun
        self.options: dict[str, Line] = {}
        self.topics: list[Line] = []

    def add(self, line: Line, draft: Draft) -> None:
        """Take an option; a later line replaces an earlier one."""
        if line.option == "topic":
            self.topics.append(line)
        else:
            put(self.options, line, draft)

    def client_id(self) -> str:
        """Return the bridge's client identifier as mosquitto makes it: the upstream broker finds its session by it."""
        line = self.options.get("remote_clientid")
        return line.value if line is not None else f"{socket.gethostname()}.{first_word(self.begun.value)}"


def convert_bridge(bridge: Bridge, taken: set[str], draft: Draft) -> None:
    """Write a bridge. `taken` has the names of existing links, and gets those of this one."""
    groups: dict[tuple[str, str], list[Topic]] = {}
    for line in bridge.topics:
        topic = _topic(line, draft)
        if topic is not None:
            groups.setdefault((topic.local, topic.remote), []).append(topic)
    if not groups:
        draft.note(bridge.begun, Kind.MISSING, "no topic of it can be converted, and so it is not")
        return
    for at, ((local, remote), topics) in enumerate(groups.items()):
        table = draft.table("upstream", bridge.begun)
        if at > 0:
            table.why.append("a link has one pair of prefixes: this is another link of the same bridge")
        table.set("name", _name(bridge.begun.value, taken))
        # What is noted is noted for the first link.
        notes = draft if at == 0 else Draft("")
        table.off = _set_connection(bridge, table, "" if at == 0 else f"-{at + 1}", notes)
        _set_topics(table, topics, local, remote, draft)
        _check(table, bridge, draft)


def _check(table: Table, bridge: Bridge, draft: Draft) -> None:
    """Check the link against the model: invalid settings are written as a comment."""
    found = fault(Upstream, table.values())
    if found:
        draft.note(bridge.begun, Kind.MISSING, f"the link is off, for {found}")
        table.off = table.off or f"off, for {found}"


def _set_connection(bridge: Bridge, table: Table, suffix: str, draft: Draft) -> str:
    """Set the address and the credentials of the link. Returns the reason why it is off; empty: it is on."""
    options = bridge.options
    address = options.get("address")
    addresses = address.value.split() if address is not None else []
    if not addresses:
        draft.note(bridge.begun, Kind.MISSING, "it has no address, and so it is off")
    elif len(addresses) > 1 and address is not None:
        draft.note(address, Kind.MISSING, "a link has one address; the first is taken")
    off = "" if addresses else "off: it has no address"
    off = _set_tls(bridge, table, (addresses or ["localhost"])[0], draft) or off
    client_id = options.get("remote_clientid")
    table.set("client_id", bridge.client_id() + suffix, client_id or "as mosquitto makes it of host and connection")
    _take(bridge, table, "remote_username", "username", str, draft)
    _take(bridge, table, "remote_password", "password", str, draft)
    _take(bridge, table, "keepalive_interval", "keep_alive", _keep_alive, draft)
    version = options.get("bridge_protocol_version")
    table.set("version", "3.1.1", "as in mosquitto, unless bridge_protocol_version says otherwise")
    _take(bridge, table, "bridge_protocol_version", "version", _version, draft)
    if version is not None and version.value in DIFFERENCES:
        draft.note(version, Kind.MISSING, DIFFERENCES[version.value])
    clean = options.get("cleansession")
    if clean is not None and draft.read(clean, yes_or_no, False):
        table.set("session_expiry", 0, clean)
    else:
        table.set("clean_start", False, clean or "as in mosquitto, unless cleansession says otherwise")
    _take(bridge, table, "bridge_session_expiry_interval", "session_expiry", _expiry, draft)
    _set_pauses(bridge, table, draft)
    _set_notifications(bridge, table, suffix, draft)
    return off


def _set_tls(bridge: Bridge, table: Table, address: str, draft: Draft) -> str:
    """Set the URL and the TLS files. Returns the reason why the link is off; empty: it is on."""
    options, off = bridge.options, ""
    tls = [options[name] for name in WITH_TLS if name in options]
    trusted = options.get("bridge_tls_use_os_certs")
    if trusted is not None:
        if draft.read(trusted, yes_or_no, True):
            tls.append(trusted)
        else:
            draft.note(trusted, Kind.NOTHING, "it asks for nothing")
    for name in WITH_KEYS:
        if name in options:
            off = f"off, for {options[name]}"
            draft.note(options[name], Kind.GUARD, "there is no TLS with pre-shared keys; the link is off")
    revoked = options.get("bridge_require_ocsp")
    if revoked is not None and draft.read(revoked, yes_or_no, True):
        off = f"off, for {revoked}"
        draft.note(revoked, Kind.GUARD, "whether the upstream's certificate was revoked is not asked; the link is off")
    elif revoked is not None:
        draft.note(revoked, Kind.NOTHING, "it asks for nothing")
    lines = [options[name] for name in ("address",) if name in options]
    table.set("url", _url(address, "mqtts" if tls else "mqtt"), *lines, *tls)
    for option, key in FILES.items():
        if option in options and tls:
            table.set(key, options[option].value, options[option])
        elif option in options:
            draft.note(options[option], Kind.NOTHING, "this bridge is not encrypted")
    if "bridge_capath" in options:
        draft.note(options["bridge_capath"], Kind.INSTEAD, "ca_file is one file; without it, the system's are trusted")
    return off


def _set_pauses(bridge: Bridge, table: Table, draft: Draft) -> None:
    line = bridge.options.get("restart_timeout")
    none: list[int] = []
    seconds = none if line is None else draft.read(line, _numbers, none)
    if line is None or not seconds:
        return
    if len(seconds) > 2:
        draft.note(line, Kind.MISSING, "a link waits less again after a connection of 5 seconds")
    least = min(max(seconds[0], 1), 3_600)
    table.set("retry_min", float(least), line)
    table.set("retry_max", float(min(max(least, *seconds[:2]), 7_200)), line)


def _set_notifications(bridge: Bridge, table: Table, suffix: str, draft: Draft) -> None:
    options = bridge.options
    line, on, here = (options.get(name) for name in ("notification_topic", "notifications", "notifications_local_only"))
    wanted = on is None or draft.read(on, yes_or_no, True)
    local = here is not None and draft.read(here, yes_or_no, False)
    if not wanted or local:
        table.set("status_topic", "", *(each for each in (on, here) if each is not None))
        for each in (line, here):
            if each is not None:
                draft.note(each, Kind.INSTEAD, "$SYS/broker/upstream/NAME/ has the state of a link")
        return
    if here is not None:
        draft.note(here, Kind.NOTHING, "it asks for nothing")
    topic = f"$SYS/broker/connection/{bridge.client_id()}/state" if line is None else line.value
    why: list[Line | str] = [each for each in (line, on) if each is not None]
    # A bridge that became several links tells of the first: there it has one state.
    if not suffix:
        table.set("status_topic", topic, *(why or ["as in mosquitto, unless notifications is false"]))


def _set_topics(table: Table, topics: list[Topic], local: str, remote: str, draft: Draft) -> None:
    incoming, outgoing = [t for t in topics if t.comes_in], [t for t in topics if t.goes_out]
    table.set("subscribe", _filters(incoming), *(t.line for t in incoming))
    if outgoing:
        table.set("publish", _filters(outgoing), *(t.line for t in outgoing))
    for key, listed in (("subscribe_qos", incoming), ("publish_qos", outgoing)):
        if listed:
            highest = max(t.qos for t in listed)
            table.set(key, highest)
            for topic in listed:
                if topic.qos != highest:
                    draft.note(topic.line, Kind.MISSING, f"a link has one QoS for all topics: here {highest}")
    if local:
        table.set("local_prefix", local)
    if remote:
        table.set("remote_prefix", remote)


def _filters(topics: list[Topic]) -> list[str]:
    return list(dict.fromkeys(topic.local + topic.pattern for topic in topics))


def _topic(line: Line, draft: Draft) -> Topic | None:
    """Parse a `topic` line; None: it cannot be converted, which is noted."""
    words = [quoted if each.startswith('"') else each for each, quoted in _words(line.value)]
    pattern, direction, qos, local, remote = [*words, "", "", "", "", ""][:5]
    direction = direction.lower() or "out"
    qos = qos or "0"
    if direction not in ("in", "out", "both") or qos not in ("0", "1", "2") or len(words) > 5 or not words:
        draft.note(line, Kind.MISSING, "it has to be: topic PATTERN [in|out|both [QOS [LOCAL-PREFIX REMOTE-PREFIX]]]")
        return None
    if not pattern:
        draft.note(line, Kind.MISSING, "a link exchanges prefixes of whole levels, not one topic for another")
        return None
    if any(prefix and not prefix.endswith("/") for prefix in (local, remote)):
        draft.note(line, Kind.MISSING, "prefixes of a link end in /: put the rest of the level into the topics")
        return None
    return Topic(line, pattern, direction != "out", direction != "in", int(qos), local, remote)


def _words(text: str) -> list[tuple[str, str]]:
    return [(match[0], match[1] or "") for match in WORDS.finditer(text)]


def _url(address: str, scheme: str) -> str:
    """Make a URL of mosquitto's `HOST[:PORT]`: the port follows the last colon, also of an IPv6 address."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = port, "1883"
    host = host.strip("[]")
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _name(text: str, taken: set[str]) -> str:
    """Return a valid name for a link that is not taken."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:56] or "bridge"
    name, at = plain, 1
    while name in taken:
        at += 1
        name = f"{plain}-{at}"
    taken.add(name)
    return name


def _version(text: str) -> str:
    if text not in VERSIONS:
        raise ValueError("mqttv50, mqttv311 or mqttv31")
    return VERSIONS[text]


def _keep_alive(text: str) -> int:
    # mosquitto does not go below.
    return max(number(text), 5)


def _numbers(text: str) -> list[int]:
    return [number(each) for each in text.split()]


def _expiry(text: str) -> int:
    return min(number(text), NEVER)


def _take(bridge: Bridge, table: Table, option: str, key: str, read: Callable[[str], Value], draft: Draft) -> None:
    line = bridge.options.get(option)
    if line is not None:
        value = draft.read(line, read, None)
        if value is not None:
            table.set(key, value, line)
