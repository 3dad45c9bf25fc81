"""Validates settings, and describes each fault in one line.

Owns the messages: the place of the value, the setting, the value, the allowed ones, and for an unknown name the nearest
known one. `loader` uses it for files, the environment and flags, `Settings` for the arguments of a program. Promises: a
password is never repeated.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from canopy_mqtt.settings.brokers.upstream import A_LIST, A_WORD
from canopy_mqtt.settings.descriptions import SECRETS, TABLES, Steps, allowed, cut, inner_model, is_known, show, to_toml
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.root import AllSettings, defaults, section_models
from canopy_mqtt.settings.urls import HIDDEN
from canopy_mqtt.settings.values import Section

MAY_HIDE: Final = frozenset({"upstream", "authenticator", "listener", "store.url"})
"""Lists of tables that may contain secrets, and a URL that may."""


class Entry(NamedTuple):
    """One value before its validation."""

    name: str
    value: Any
    origin: str
    """The place for the user: `canopy.toml`, `environment variable CANOPY_…`, `--set …`; "": the program."""
    lines: Mapping[Steps, int] = MappingProxyType({})
    """The lines of tables, keys and items in the file."""

    def where(self, *steps: str | int) -> str:
        """Return the place of the value or of a part of it, followed by a colon; empty if there is none.

        The path of a part begins with the setting's section and name.
        """
        if not self.origin:
            return ""
        section, dot, key = self.name.partition(".")
        line = line_of(self.lines, steps or ((section, key) if dot else (section,)))
        return f"{self.origin}: " if line is None else f"{self.origin}: line {line}: "


Model = TypeVar("Model", bound=AllSettings)


def faults(given: Mapping[str, Any], model: type[AllSettings]) -> list[str]:
    """Return the faults of the keyword arguments of a model of all settings, a line each."""
    sections = section_models()
    entries: list[Entry] = []
    problems: list[str] = []
    for name, value in given.items():
        if isinstance(value, Mapping) and (name in sections or (value and name not in model.model_fields)):
            entries += [Entry(f"{name}.{key}", item, "") for key, item in value.items()]
        elif name not in sections:
            entries.append(Entry(name, value, ""))
        elif not isinstance(value, Section):
            first = next(iter(sections[name].model_fields))
            problems.append(f"{name}: found {show(value)}; allowed: a section, like {name}={{{first!r}: …}}")
    try:
        validate(model, entries, problems)
    except SettingsError as error:
        return list(error.problems)
    return []


def validate(
    model: type[Model],
    entries: Sequence[Entry],
    problems: list[str],
    unknown: Callable[[Entry, Mapping[str, Any]], str | None] | None = None,
) -> tuple[Model, dict[str, Entry]]:
    """Return the settings of these entries and the entries in force: the last one of each name.

    `problems` are those found before; `unknown` describes an entry that is no setting (default: `no_such_setting`).

    Raises:
        SettingsError: there are problems, an entry is no setting, or a value is not allowed.
    """
    tell = no_such_setting if unknown is None else unknown
    known = defaults()
    chosen: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in known:
            chosen[entry.name] = entry
        else:
            problem = tell(entry, known)
            if problem is not None:
                problems.append(problem)
    settings: Model | None = None
    try:
        settings = model.model_validate(_nested(chosen.values()))
    except ValidationError as error:
        problems += _judgements(error, chosen)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings, chosen


def no_such_setting(entry: Entry, known: Mapping[str, Any]) -> str:
    """Describe an unknown name, with the nearest known one."""
    if entry.name in section_models():
        first = next(name for name in known if name.startswith(f"{entry.name}."))
        return f"{entry.where()}{entry.name}: a section; name a setting in it, like {first}"
    near = nearest(entry.name, known)
    if near is None:
        return f"{entry.where()}{cut(entry.name)}: no such setting; canopy check-config --defaults lists them all"
    return f"{entry.where()}{cut(entry.name)}: no such setting; the nearest is {near}"


def line_of(found: Mapping[Steps, int], steps: Steps) -> int | None:
    """Return the line of a path, or of the innermost table around it; None: the document has neither."""
    while steps:
        if steps in found:
            return found[steps]
        steps = steps[:-1]
    return None


def _nested(entries: Iterable[Entry]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for entry in entries:
        section, dot, key = entry.name.partition(".")
        if dot:
            tree.setdefault(section, {})[key] = entry.value
        else:
            tree[section] = entry.value
    return tree


def nearest(name: str, known: Mapping[str, Any]) -> str | None:
    """Return the most similar known name: with another section, similar as a whole, or similar at its end."""
    last = name.rpartition(".")[2]
    ends = {full.rpartition(".")[2]: full for full in known}
    if last in ends:
        # Several sections may have it.
        same = [full for full in known if full.rpartition(".")[2] == last]
        if last == name:
            return same[0]
        return max(same, key=lambda full: difflib.SequenceMatcher(None, name, full).ratio())
    for whole in difflib.get_close_matches(name, list(known), n=1, cutoff=0.75):
        return whole
    # In its own section what resembles it little is meant; in another one only what resembles it much.
    section = name[: len(name) - len(last)]
    own = {end: section + end for end in ends if section + end in known}
    for there, cutoff in ((own, 0.6), (ends, 0.8)):
        for end in difflib.get_close_matches(last, list(there), n=1, cutoff=cutoff):
            return there[end]
    return None


def _judgements(error: ValidationError, chosen: Mapping[str, Entry]) -> list[str]:
    problems: list[str] = []
    for fault in error.errors(include_url=False):
        steps = tuple(step for step in fault["loc"] if step not in (A_WORD, A_LIST))
        if not steps:
            # About several settings together: it says where by itself.
            context = fault["ctx"]
            entry = chosen[context["at"].partition("[")[0]]
            other = chosen.get("listen", entry).origin
            more = "" if other == entry.origin else f" (listen: {other})"
            where, found = entry.where(*_steps(context["at"])), show(context["found"])
            problems.append(f"{where}{context['at']}: found {found}; allowed: {fault['msg']}{more}")
            continue
        types = TABLES.get(str(steps[0]))
        kind = str(steps[2]) if isinstance(types, Mapping) and len(steps) > 2 else ""
        if kind:
            # Behind the number of a table pydantic names its type.
            steps = (*steps[:2], *steps[3:])
        while len(steps) > 1 and isinstance(steps[-1], str) and fault["type"] not in OF_KEYS and not is_known(steps):
            # Of a setting that may be several things pydantic tells which of them the value is not.
            steps = steps[:-1]
        # A setting's own name, and the way to a part of its value.
        length = 2 if len(steps) > 1 and isinstance(steps[1], str) else 1
        name = ".".join(str(step) for step in steps[:length])
        if name not in chosen:
            problems.append(_about_section(fault, name, chosen))
            continue
        entry = chosen[name]
        # What is said of the tag of a table is said of the table.
        where = entry.where(*steps, *(("type",) if fault["type"].startswith("union_tag_") else ()))
        if fault["type"] == "listen":
            problems.append(f"{where}{name}: found {fault['msg']}")
        elif fault["type"] == "rule" and fault["ctx"]["at"]:
            where = entry.where(*steps, *_steps(fault["ctx"]["at"]))
            problems.append(f"{where}{_about_part(fault, name, steps[length:], kind)}")
        elif length == len(steps) or name == "listen":
            wanted = fault["msg"] if fault["type"] == "rule" else allowed(name)
            problems.append(f"{where}{name}: found {_show_whole(entry)}; allowed: {wanted}")
        else:
            problems.append(f"{where}{_about_part(fault, name, steps[length:], kind)}")
    return list(dict.fromkeys(problems))


OF_KEYS: Final = ("extra_forbidden", "missing")
"""Faults of a key, which may not exist in the table."""


def _about_section(fault: ErrorDetails, section: str, chosen: Mapping[str, Entry]) -> str:
    """Describe the fault of a section as a whole; the fault names the setting to change."""
    at = fault["ctx"]["at"]
    steps = (section, *_steps(at))
    entry = chosen.get(".".join(str(step) for step in steps[:2]))
    if entry is None:
        # The setting is missing, and another one of the section requires it.
        entry = next(each for each in chosen.values() if each.name.startswith(f"{section}."))
        steps = ()
    return f"{entry.where(*steps)}{section}{at}: found {show(fault['ctx']['found'])}; allowed: {fault['msg']}"


def _found(value: Any) -> str:
    return "missing" if value is None else f"found {show(value)}"


def _steps(part: str) -> Steps:
    """Parse the path of a part: `listener[0].tls` → ("listener", 0, "tls")."""
    return tuple(int(number) if number else name for number, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", part))


def _show_whole(entry: Entry) -> str:
    """Format the value of a setting. A text in place of tables or of a URL may contain a password anywhere, and is
    hidden.
    """
    if entry.name in MAY_HIDE and isinstance(entry.value, str):
        return "text (not shown: it may hold a password)"
    return show(entry.value)


def _keys(model: type[BaseModel], steps: Sequence[int | str]) -> Mapping[str, Any]:
    """Return the allowed keys of the table that contains the last of these steps."""
    for step in steps[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            model = inner_model(model, step)
    return model.model_fields


def _about_part(fault: ErrorDetails, name: str, steps: Sequence[int | str], table: str) -> str:
    """Describe the fault of an item in a list or of a key in a table. `table`: its type, if there are types."""
    part = name + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    kind = re.sub(r"\[\d+\]", "[]", part)
    if fault["type"] == "union_tag_not_found":
        return f"{part}.type: missing; allowed: {allowed(f'{kind}.type')}"
    if fault["type"] == "union_tag_invalid":
        return f"{part}.type: found {show(fault['ctx']['tag'])}; allowed: {allowed(f'{kind}.type')}"
    if fault["type"] == "extra_forbidden":
        model = TABLES[name]
        keys = _keys(model[table] if isinstance(model, Mapping) else model, steps)
        near = nearest(str(steps[-1]), keys)
        return f"{part}: no such setting; " + (f"the nearest is {near}" if near else f"known are {', '.join(keys)}")
    if fault["type"] == "missing":
        return f"{part}: missing; allowed: {allowed(kind)}"
    rule = fault["type"] == "rule"
    if rule and fault["ctx"]["at"]:
        return f"{part}{fault['ctx']['at']}: {_found(fault['ctx']['found'])}; allowed: {fault['msg']}"
    found = show(fault["input"]) if len(steps) > 1 else cut(to_toml(fault["input"]))
    if any(step in SECRETS for step in steps):
        found = HIDDEN
    return f"{part}: found {found}; allowed: {fault['msg'] if rule else allowed(kind)}"
