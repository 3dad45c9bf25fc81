"""Converts a whole mosquitto.conf.

Owns the scope of lines: an option of a listener belongs to the last `listener` above it in its file, or to the default
listener; one of a bridge to the last `connection`. Also owns the options of the broker as a whole: limits, log, store.
Promises: each line becomes a setting in force, or is listed with the reason.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from canopy_mqtt.convert.bridges import Bridge, convert_bridge
from canopy_mqtt.convert.draft import Draft, Kind, Value, fault, to_toml
from canopy_mqtt.convert.listeners import ListenerOptions, convert_listener, put
from canopy_mqtt.convert.options import (
    OPTIONS,
    SHARED,
    SHARED_OR_GLOBAL,
    ConvertedBy,
    NotConverted,
    Setting,
    any_text,
    canonical,
    idles,
    meaning,
    number_or_none,
    yes_or_no,
)
from canopy_mqtt.convert.security import AccessOptions
from canopy_mqtt.convert.source import ConvertError, Line, read
from canopy_mqtt.settings import MAX_PACKET, Limits, Listener, section_models
from canopy_mqtt.settings.descriptions import allowed
from canopy_mqtt.settings.listeners import Endpoint, parse_endpoint

Result = TypeVar("Result")

LEVELS: Final = {"error": 3, "none": 3, "warning": 2, "notice": 1, "information": 1, "debug": 0, "all": 0}

FOLDER: Final = "/var/lib/canopy"
"""The folder for the data that mosquitto keeps in its working directory."""

PER_MESSAGE: Final = 512
"""Bytes that a queued message takes beside its payload, about: Canopy counts 368 and the topic, mosquitto only the
payload."""

MESSAGES: Final = {"max_queued": 1_000, "max_inflight": 20}
"""Messages that mosquitto queues, or has in flight, by default."""

BESIDE_PAYLOAD: Final = 131_072
"""Bytes of a packet beside its payload: the longest topic, and as much for properties."""


MISSPELT: Final = 4
"""Unknown options that a short mosquitto.conf may have, even if they are most of it."""

MAX_NEAREST: Final = 20
"""Unknown options for which the nearest known one is searched: that takes longer than all else."""


class Converted(NamedTuple):
    """The result: a file for Canopy, and warnings for its reader, a line each."""

    toml: str
    guards: tuple[str, ...]
    """Missing options that kept clients out."""
    missing: tuple[str, ...]
    """Other missing options, and those with a replacement that is not set automatically."""
    hints: tuple[str, ...]
    """Options that need no setting, and next steps."""


def convert(path: Path) -> Converted:
    """Convert a mosquitto.conf, with the files that it includes.

    Raises:
        ConvertError: a file cannot be read, or most of its lines are no options of mosquitto.
    """
    draft = Draft(str(path))
    lines = read(path)
    unknown = [line for line in lines if meaning(line.option) is None]
    if len(unknown) > max(MISSPELT, len(lines) // 2):
        found = f"{len(unknown)} of {len(lines)} lines are no options of mosquitto, as {unknown[0].place}"
        raise ConvertError(f"{path}: {found}; this is no mosquitto.conf")
    _Conversion(draft).run(lines)
    groups = ((Kind.GUARD,), (Kind.MISSING, Kind.INSTEAD), (Kind.NOTHING, Kind.NEXT))
    guards, missing, hints = (tuple(str(note) for note in draft.of_kind(*kinds)) for kinds in groups)
    return Converted(draft.toml(), guards, missing, hints)


class _Scope:
    """The targets of the lines in one file."""

    def __init__(self) -> None:
        self.listener: ListenerOptions | None = None
        self.bridge: Bridge | None = None


class _Conversion:
    """The state while lines are read."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._default = ListenerOptions(None)
        self._listeners: list[ListenerOptions] = []
        self._bridges: list[Bridge] = []
        self._scopes: dict[int, _Scope] = {}
        self._access = AccessOptions(draft)
        self._log: list[Line] = []
        self._unknown = 0
        # What is one setting each: the last line counts, as in mosquitto; and what is converted together.
        self._settings: dict[str, Line] = {}
        self._whole: dict[str, Line] = {}

    def run(self, lines: list[Line]) -> None:
        for line in lines:
            self._take(line)
        listeners = self._listeners
        local_only = not listeners and not {"port", "bind_address"} & self._default.options.keys()
        if local_only or self._default.opens() or self._access.opens_default():
            listeners = [self._default, *listeners]
        for listener in listeners:
            convert_listener(listener, local_only, self._draft)
        for option, line in self._settings.items():
            setting = OPTIONS[option]
            assert isinstance(setting, Setting)
            self._set(line, setting)
        self._set_shared(listeners)
        self._set_client_ids(listeners)
        self._check(listeners)
        self._access.convert(listeners, local_only)
        taken: set[str] = set()
        for bridge in self._bridges:
            convert_bridge(bridge, taken, self._draft)
        self._set_sizes()
        self._set_bytes("max_queued", "queue.session_bytes")
        self._set_bytes("max_inflight", "mqtt.max_inflight_bytes")
        self._set_log()
        self._set_store()
        self._draft.note_the_rest(lines)

    def _take(self, line: Line) -> None:
        option, draft = canonical(line.option), self._draft
        scope = self._scopes.setdefault(line.scope, _Scope())
        what = meaning(line.option)
        if option == "listener":
            scope.listener = ListenerOptions(line)
            self._listeners.append(scope.listener)
        elif option == "connection":
            scope.bridge = Bridge(line)
            self._bridges.append(scope.bridge)
        elif option in SHARED_OR_GLOBAL and self._access.per_listener:
            (scope.listener or self._default).add(line, draft)
        elif isinstance(what, Setting):
            put(self._settings, line, draft)
        elif isinstance(what, NotConverted):
            if idles(what, line.value):
                draft.note(line, Kind.NOTHING, "it asks for nothing")
            else:
                draft.note(line, what.kind, what.text)
        elif what is ConvertedBy.ACCESS:
            self._access.take(line, scope.listener)
        elif what is ConvertedBy.LISTENER:
            (scope.listener or self._default).add(line, draft)
        elif what is ConvertedBy.BRIDGE:
            if scope.bridge is not None:
                scope.bridge.add(line, draft)
            else:
                draft.note(line, Kind.MISSING, "no connection stands above it")
        elif option == "log_type":
            self._log.append(line)
        elif what is ConvertedBy.WHOLE:
            put(self._whole, line, draft)
        else:
            # Its value is not repeated: a misspelt option may have had a password.
            hidden = line._replace(value="***" if line.value else "")
            self._unknown += 1
            near = difflib.get_close_matches(line.option, OPTIONS, 1) if self._unknown <= MAX_NEAREST else []
            meant = f"; nearest is {near[0]}" if near else ""
            draft.note(hidden, Kind.MISSING, f"mosquitto 2.0 and 2.1 have no such option{meant}")

    # -- listeners -----------------------------------------------------------------------------------------------------

    def _check(self, listeners: list[ListenerOptions]) -> None:
        """Check the listeners against the model: invalid ones are written as comments."""
        taken: list[Endpoint] = []
        for listener in listeners:
            table = listener.table
            table.off = listener.off
            if table.off:
                continue
            found = fault(Listener, table.values())
            if not found:
                place = parse_endpoint(str(table.values()["url"]))
                found = "another listener is there already" if any(map(place.overlaps, taken)) else ""
                taken.append(place)
            if found:
                table.off = listener.off = f"off: {found}"
                self._draft.note(listener.begun or next(iter(listener.options.values())), Kind.MISSING, table.off)

    def _set_shared(self, listeners: list[ListenerOptions]) -> None:
        """Set the options that Canopy has only for all listeners together: the strictest value wins."""
        for option, setting in (*SHARED.items(), *SHARED_OR_GLOBAL.items()):
            lines = [listener.options[option] for listener in listeners if option in listener.options]
            values = [self._value(line, setting) for line in lines]
            read = [(line, value) for line, value in zip(lines, values, strict=True) if value is not None]
            if not read:
                continue
            agreed = len(read) == len(listeners) and all(value == read[0][1] for _, value in read)
            value = read[0][1] if agreed else None
            if not agreed and setting.strictest is not None:
                value = setting.strictest([each for _, each in read])
            if value is not None and not refused(setting.name, value):
                self._draft.set(setting.name, value, *(line for line, _ in read))
            for listener in () if agreed else listeners:
                line = listener.options.get(option)
                if line is not None and option == "accept_protocol_versions" and not value:
                    listener.switch_off(
                        line, "all listeners take the same versions, and these have none in common", self._draft
                    )
                elif line is not None:
                    held = f"; the strictest value, {to_toml(value)}, holds" if value is not None else ""
                    apart = "they do not agree" if len(read) == len(listeners) else "not all of them set it"
                    text = f"{setting.name} is one for all listeners, and {apart}{held}"
                    self._draft.note(line, Kind.MISSING, text)

    def _set_client_ids(self, listeners: list[ListenerOptions]) -> None:
        """Convert `clientid_prefixes`, and user names as client identifiers."""
        draft, prefix = self._draft, self._whole.get("clientid_prefixes")
        named = [
            each.options["use_username_as_clientid"] for each in listeners if each.is_on("use_username_as_clientid")
        ]
        if prefix is not None:
            if not prefix.value or set(prefix.value) & set("*{"):
                for listener in listeners:
                    listener.switch_off(
                        prefix, "security.client_ids has patterns in which * and {user} have a meaning", draft
                    )
            else:
                draft.set("security.client_ids", [f"{prefix.value}*"], prefix)
                draft.set("mqtt.allow_empty_client_id", False, prefix, "mosquitto's own identifiers lack the prefix")
        if named and prefix is None and len(named) == len(listeners):
            draft.set("security.client_ids", ["{user}"], *named)
        for listener in listeners:
            line = listener.options.get("use_username_as_clientid")
            if line is not None and not listener.is_on("use_username_as_clientid"):
                draft.note(line, Kind.NOTHING, "it asks for nothing")
            elif line is not None and (prefix is not None or len(named) < len(listeners)):
                listener.switch_off(line, "security.client_ids is one for all listeners", draft)
            elif line is not None:
                draft.note(
                    line, Kind.MISSING, "a client has to send its user name as identifier; mosquitto replaced it"
                )

    # -- the broker as a whole -----------------------------------------------------------------------------------------

    def _set(self, line: Line, setting: Setting) -> None:
        value = self._value(line, setting)
        if value is not None:
            self._draft.set(setting.name, value, line)

    def _value(self, line: Line, setting: Setting) -> Value | None:
        value = self._read(line, setting.read)
        text = refused(setting.name, value) if value is not None else ""
        if text:
            self._draft.note(line, Kind.MISSING, f"{setting.name} cannot be {value}; allowed: {text}")
            return None
        return value

    def _read(self, line: Line | None, read: Callable[[str], Result]) -> Result | None:
        return self._draft.read(line, lambda text: read(any_text(text)), None)

    def _set_sizes(self) -> None:
        """Set the largest packet and payload: without an option for packets, a packet with that payload fits."""
        draft, packet, payload = self._draft, self._whole.get("max_packet_size"), self._whole.get("message_size_limit")
        if packet is not None:
            self._set(packet, Setting("limits.max_packet_size", number_or_none))
        if payload is None:
            return
        most = self._value(payload, Setting("limits.max_payload_size", number_or_none))
        if not isinstance(most, int):
            return
        draft.set("limits.max_payload_size", most, payload)
        needed = most + BESIDE_PAYLOAD
        if packet is None and (most == 0 or needed > Limits().max_packet_size):
            bound = needed if most > 0 and needed <= MAX_PACKET else 0
            draft.set("limits.max_packet_size", bound, payload, "mosquitto 2.0 has no limit of packets beside it")

    def _set_bytes(self, option: str, name: str) -> None:
        """Convert a bound on payload bytes to one on the bytes of whole messages."""
        line, messages = self._whole.get(f"{option}_bytes"), self._settings.get(f"{option}_messages")
        most = self._read(line, number_or_none)
        if line is None or most is None:
            return
        count = MESSAGES[option]
        if messages is not None:
            # What cannot be read is noted already.
            with contextlib.suppress(ValueError):
                count = number_or_none(messages.value) or count
        value = most + count * PER_MESSAGE if most else 0
        if text := refused(name, value):
            self._draft.note(line, Kind.MISSING, f"{name} cannot be {value}; allowed: {text}")
            return
        self._draft.set(name, value, line)
        if most:
            text = (
                f"mosquitto counts payloads, Canopy what messages take: {name} has room for {count} messages of that "
                "many bytes in all, and so holds more of few large ones"
            )
            self._draft.note(line, Kind.MISSING, text)

    def _set_log(self) -> None:
        """Convert all `log_type` lines to one level: the least severe of them."""
        types = [(LEVELS[word], line) for line in self._log for word in line.value.split()[:1] if word in LEVELS]
        for line in self._log:
            if line.value.split()[:1] and line.value.split()[0] not in LEVELS:
                self._draft.note(line, Kind.INSTEAD, 'log.level = "debug" tells of it')
        if types:
            level = min(level for level, _ in types)
            name = {0: "debug", 1: "info", 2: "warning", 3: "error"}[level]
            self._draft.set("log.level", name, *(line for _, line in types))

    def _set_store(self) -> None:
        """Convert `persistence` to a folder of Canopy's own beside mosquitto's, which the broker makes."""
        draft, on = self._draft, self._whole.get("persistence")
        named = {name: self._whole.get(f"persistence_{name}") for name in ("location", "file")}
        lines = [line for line in named.values() if line is not None]
        wanted = self._read(on, yes_or_no)
        if on is not None and wanted:
            where, name = (each.value if each is not None else "" for each in named.values())
            theirs = where.rstrip("/") + "/" if where else ""
            folder = f"{theirs}canopy" if theirs else FOLDER
            draft.set("store.path", folder, on, *lines)
            command = f"canopy store import {folder} --mosquitto {theirs}{name or 'mosquitto.db'}"
            draft.note(on, Kind.NEXT, f"before the first start, import what mosquitto has saved: {command}")
            return
        if on is not None and wanted is not None:
            draft.set("store.path", "", on)
        for line in lines:
            draft.note(line, Kind.NOTHING, "persistence is not on, and nothing is kept")


def refused(name: str, value: Value) -> str:
    """Return the allowed values of a setting if this one is not allowed; empty: it is."""
    section, _, key = name.partition(".")
    return allowed(name) if fault(section_models()[section], {key: value}) else ""
