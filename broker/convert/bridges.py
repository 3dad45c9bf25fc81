"""mosquitto's bridges as `[[upstream]]` tables (docs/federation.md).

Owns what a `topic` line means there. A link has one pair of prefixes, a bridge one for each topic: topics with
different ones become links of their own. Promises: a bridge that cannot be encrypted as it was is written as a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from broker.convert.draft import Draft, Kind, Table, Value, fault
from broker.convert.options import any_text, number, yes_or_no
from broker.convert.source import Line
from broker.settings import NEVER, Upstream

Result = TypeVar("Result")

VERSIONS: Final = {"mqttv50": "5.0", "mqttv311": "3.1.1", "mqttv31": "3.1.1"}

WITH_TLS: Final = ("bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_tls_use_os_certs")
WITH_KEYS: Final = ("bridge_psk", "bridge_identity")

FILES: Final = {"bridge_cafile": "ca_file", "bridge_certfile": "cert_file", "bridge_keyfile": "key_file"}

WORDS: Final = re.compile(r'"([^"]*)"|(\S+)')
"""The words of a `topic` line: some stand in quotation marks, and those may be empty."""


class Topic(NamedTuple):
    """One `topic` line."""

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

    def add(self, line: Line) -> None:
        """Another option; a later line takes the place of an earlier one."""
        if line.option == "topic":
            self.topics.append(line)
        else:
            new = {"username": "remote_username", "password": "remote_password", "clientid": "remote_clientid"}
            self.options[new.get(line.option, line.option)] = line


def convert_bridge(bridge: Bridge, taken: set[str], draft: Draft) -> None:
    """Write a bridge. `taken` has the names of the links that there are, and gets those of this one."""
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
        table.off = _set_connection(bridge, table, at, draft)
        _set_topics(table, topics, local, remote, draft)
        _check(table, bridge, draft)


def _check(table: Table, bridge: Bridge, draft: Draft) -> None:
    """Hold the link against the settings: what they do not take is written as a comment."""
    found = fault(Upstream, table.values())
    if found:
        draft.note(bridge.begun, Kind.MISSING, f"the link is off, for {found}")
        table.off = table.off or f"off, for {found}"


def _set_connection(bridge: Bridge, table: Table, at: int, draft: Draft) -> str:
    """Where the link connects to, and as whom. Why it is off; empty: it is not."""
    options = bridge.options
    lines = [options[name] for name in ("address", "addresses") if name in options]
    addresses = lines[-1].value.split() if lines else []
    if not addresses:
        if at == 0:
            draft.note(bridge.begun, Kind.MISSING, "it has no address, and so it is off")
        addresses = ["localhost"]
    elif len(addresses) > 1 and at == 0:
        draft.note(lines[-1], Kind.MISSING, "a link has one address; the first is taken")
    off = "" if lines else "off: it has no address"
    tls = [name for name in WITH_TLS if name in options]
    for name in WITH_KEYS:
        if name in options:
            off = f"off, for {options[name]}"
            if at == 0:
                draft.note(options[name], Kind.GUARD, "there is no TLS with pre-shared keys; the link is off")
    table.set("url", _url(addresses[0], "mqtts" if tls else "mqtt"), *lines, *(options[name] for name in tls))
    for option, key in FILES.items():
        if option in options and tls:
            table.set(key, options[option].value, options[option])
        elif option in options and at == 0:
            draft.note(options[option], Kind.NOTHING, "this bridge is not encrypted")
    if "bridge_capath" in options and at == 0:
        draft.note(options["bridge_capath"], Kind.INSTEAD, "ca_file is one file; without it, the system's are trusted")
    suffix = "" if at == 0 else f"-{at + 1}"
    _take(bridge, table, "remote_clientid", "client_id", lambda text: any_text(text) + suffix, draft)
    _take(bridge, table, "remote_username", "username", str, draft)
    _take(bridge, table, "remote_password", "password", str, draft)
    _take(bridge, table, "keepalive_interval", "keep_alive", number, draft)
    _take(bridge, table, "bridge_protocol_version", "version", _version, draft)
    clean = options.get("cleansession")
    if clean is None or not _read(clean, yes_or_no, False, draft):
        table.set("clean_start", False, clean or "as in mosquitto, unless cleansession says otherwise")
    else:
        table.set("session_expiry", 0, clean)
    _take(bridge, table, "bridge_session_expiry_interval", "session_expiry", _expiry, draft)
    _set_pauses(bridge, table, draft)
    start = options.get("start_type")
    if start is not None and start.value != "automatic" and at == 0:
        draft.note(start, Kind.MISSING, "a link connects at the start, and again whenever it has to")
    _set_notifications(bridge, table, at, draft)
    return off


def _set_pauses(bridge: Bridge, table: Table, draft: Draft) -> None:
    line = bridge.options.get("restart_timeout")
    if line is None:
        return
    none: list[int] = []
    seconds = _read(line, _numbers, none, draft)
    if seconds and min(seconds) > 0:
        table.set("retry_min", float(seconds[0]), line)
        table.set("retry_max", float(max(seconds)), line)


def _set_notifications(bridge: Bridge, table: Table, at: int, draft: Draft) -> None:
    options = bridge.options
    line, on, here = (options.get(name) for name in ("notification_topic", "notifications", "notifications_local_only"))
    wanted = on is None or _read(on, yes_or_no, True, draft)
    if line is not None and wanted and not (here is not None and _read(here, yes_or_no, False, draft)):
        table.set("status_topic", line.value + ("" if at == 0 else f"/{at + 1}"), line)
    elif on is not None and wanted and at == 0:
        draft.note(on, Kind.INSTEAD, "status_topic names a topic there; here $SYS/broker/upstream/NAME/ has it")


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
    """The line, read; None: it is noted as one that cannot be converted."""
    words = [quoted if each.startswith('"') else each for each, quoted in _words(line.value)]
    pattern, direction, qos, local, remote = [*words, "", "", "", "", ""][:5]
    direction = direction or "out"
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
    """An address of mosquitto's, `HOST[:PORT]`: behind the last colon stands the port, also of an IPv6 address."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = port, "1883"
    host = host.strip("[]")
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _name(text: str, taken: set[str]) -> str:
    """A name that a link may have, and that no other has."""
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


def _numbers(text: str) -> list[int]:
    return [number(each) for each in text.split()[:2]]


def _expiry(text: str) -> int:
    return min(int(text, 0), NEVER) if text.lower().startswith("0x") else number(text)


def _take(bridge: Bridge, table: Table, option: str, key: str, read: Callable[[str], Value], draft: Draft) -> None:
    line = bridge.options.get(option)
    if line is not None:
        value = _read(line, read, None, draft)
        if value is not None:
            table.set(key, value, line)


def _read(line: Line, read: Callable[[str], Result], otherwise: Result, draft: Draft) -> Result:
    try:
        return read(line.value)
    except ValueError as error:
        draft.note(line, Kind.MISSING, f"the value has to be {error}")
        return otherwise
