"""A whole mosquitto.conf, converted.

Owns which line belongs to what: an option of a listener to the last `listener` above it, or to the default listener
where there is none; one of a bridge to the last `connection`. Promises: each line is a setting, or is named with the
reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from broker.convert.access import AccessOptions
from broker.convert.bridges import Bridge, convert_bridge
from broker.convert.draft import Draft, Kind, Value, fault
from broker.convert.listeners import ListenerOptions, convert_listener
from broker.convert.options import (
    ACCESS,
    BRIDGE,
    GLOBAL,
    LISTENER,
    OF_PLUGINS,
    SHARED,
    STORE,
    UNCONVERTED,
    UNLESS_ON,
    Setting,
    any_text,
    yes_or_no,
)
from broker.convert.source import Line, read
from broker.settings import Listener, section_models
from broker.settings.wording import allowed

LEVELS: Final = {"error": 3, "none": 3, "warning": 2, "notice": 1, "information": 1, "debug": 0, "all": 0}

FOLDER: Final = "/var/lib/canopy"
"""Where to keep what mosquitto keeps in the folder that it is started in."""


class Converted(NamedTuple):
    """The result: a file for Canopy, and what a reader has to know before it is used, a line each."""

    toml: str
    guards: tuple[str, ...]
    """What kept somebody out, and is missing."""
    missing: tuple[str, ...]
    """What else is missing."""


def convert(path: Path) -> Converted:
    """Convert a mosquitto.conf, with the files that it includes.

    Raises:
        ConvertError: a file cannot be read.
    """
    draft = Draft(str(path))
    _Conversion(draft).run(read(path))
    guards, missing = (tuple(str(note) for note in draft.of_kind(kind)) for kind in (Kind.GUARD, Kind.MISSING))
    return Converted(draft.toml(), guards, missing)


class _Conversion:
    """The state while lines are read."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._default = ListenerOptions(None)
        self._places: list[ListenerOptions] = []
        self._bridges: list[Bridge] = []
        self._access = AccessOptions(draft)
        self._log: list[Line] = []
        self._store: dict[str, Line] = {}

    def run(self, lines: list[Line]) -> None:
        for line in lines:
            self._take(line)
        listeners = self._places
        local_only = not listeners and not {"port", "bind_address"} & self._default.options.keys()
        if self._default.options or self._default.origins or not listeners:
            listeners = [self._default, *listeners]
        for listener in listeners:
            convert_listener(listener, local_only, self._draft)
        self._shared(listeners)
        self._access.convert(listeners, local_only)
        self._check(listeners)
        taken: set[str] = set()
        for bridge in self._bridges:
            convert_bridge(bridge, taken, self._draft)
        self._set_log()
        self._set_store()

    def _check(self, listeners: list[ListenerOptions]) -> None:
        """Hold the listeners against the settings: those that they do not take are written as comments."""
        taken: set[object] = set()
        for listener in listeners:
            table = listener.table
            found = fault(Listener, table.values())
            if not found and not table.off:
                url = table.values()["url"]
                found = "another listener is there already" if url in taken else ""
                taken.add(url)
            if found and not table.off:
                table.off = f"off: {found}"
                self._draft.note(listener.begun or next(iter(listener.options.values())), Kind.MISSING, table.off)

    def _take(self, line: Line) -> None:
        option, draft = line.option, self._draft
        listener = self._places[-1] if self._places else self._default
        if option == "listener":
            self._places.append(ListenerOptions(line))
        elif option == "connection":
            self._bridges.append(Bridge(line))
        elif option in GLOBAL:
            self._set(line, GLOBAL[option])
        elif option == "clientid_prefixes":
            if "*" in line.value or "{" in line.value or not line.value:
                draft.note(line, Kind.GUARD, "security.client_ids has patterns in which * and {user} have a meaning")
            else:
                draft.set("security.client_ids", [f"{line.value}*"], line)
        elif option in UNLESS_ON and line.value.lower() in ("false", "0"):
            draft.note(line, Kind.NOTHING, "it is off here too")
        elif option in UNCONVERTED:
            draft.note(line, *UNCONVERTED[option])
        elif option in ACCESS or option.startswith(OF_PLUGINS):
            self._access.take(line, self._places[-1] if self._places else None)
        elif option in LISTENER or option in SHARED:
            listener.add(line)
        elif option in BRIDGE:
            if self._bridges:
                self._bridges[-1].add(line)
            else:
                draft.note(line, Kind.MISSING, "no connection stands above it")
        elif option == "include_dir":
            draft.note(line, Kind.MISSING, "it names no folder")
        elif option == "log_type":
            self._log.append(line)
        elif option in STORE:
            # The last one counts, as in mosquitto.
            self._store[option] = line
        else:
            # Its value is not repeated: a misspelt option may have had a password.
            hidden = line._replace(value="***" if line.value else "")
            draft.note(hidden, Kind.MISSING, "mosquitto 2.0 and 2.1 have no such option")

    def _set(self, line: Line, setting: Setting) -> None:
        value = self._value(line, setting)
        if value is not None:
            self._draft.set(setting.name, value, line)

    def _value(self, line: Line, setting: Setting) -> Value | None:
        try:
            value = setting.read(any_text(line.value))
        except ValueError as error:
            self._draft.note(line, Kind.MISSING, f"the value has to be {error}")
            return None
        text = refused(setting.name, value) if setting.name else ""
        if text:
            self._draft.note(line, Kind.MISSING, f"{setting.name} cannot be {value}; allowed: {text}")
            return None
        return value

    def _shared(self, listeners: list[ListenerOptions]) -> None:
        """What Canopy has for all listeners together: set where all of them agree."""
        for option, setting in SHARED.items():
            lines = [listener.options[option] for listener in listeners if option in listener.options]
            values = {line.value for line in lines}
            if len(values) == 1 and len(lines) == len(listeners):
                self._set(lines[0], setting)
            else:
                for line in lines:
                    text = f"{setting.name} holds for all listeners together, and they do not agree"
                    self._draft.note(line, Kind.MISSING, text)

    def _set_log(self) -> None:
        """All `log_type` lines together: the least severe of them."""
        types = [(LEVELS[word], line) for line in self._log for word in line.value.split() if word in LEVELS]
        for line in self._log:
            if not any(word in LEVELS for word in line.value.split()):
                self._draft.note(line, Kind.INSTEAD, 'log.level = "debug" tells of it')
        if types:
            level = min(level for level, _ in types)
            name = {0: "debug", 1: "info", 2: "warning", 3: "error"}[level]
            self._draft.set("log.level", name, *(line for _, line in types))

    def _set_store(self) -> None:
        """`persistence` and where: a folder of our own there, which the broker makes."""
        draft, on, where = self._draft, self._store.get("persistence"), self._store.get("persistence_location")
        wanted = on is not None and self._value(on, Setting("", yes_or_no))
        if on is not None and wanted:
            theirs = where.value.rstrip("/") + "/" if where is not None and where.value else ""
            folder = f"{theirs}canopy" if theirs else FOLDER
            draft.set("store.path", folder, on, *([] if where is None else [where]))
            command = f"canopy store import {folder} --mosquitto {theirs}mosquitto.db"
            draft.note(on, Kind.MISSING, f"what mosquitto has saved is taken over by {command}, before the first start")
            return
        if on is not None and wanted is not None:
            draft.note(on, Kind.NOTHING, "it is off here too")
        if where is not None:
            draft.note(where, Kind.NOTHING, "persistence is not on, and nothing is kept")


def refused(name: str, value: Value) -> str:
    """What a setting may be, if this value is not allowed; empty: it is."""
    section, _, key = name.partition(".")
    return allowed(name) if fault(section_models()[section], {key: value}) else ""
