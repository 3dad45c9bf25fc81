"""Finds the values of settings: defaults, then a TOML file, then the environment, then flags; the last one wins.

Owns: the order, the spelling of environment variables, and the messages about what is wrong.

Promises: every fault is told at once, one line each: where it stands (file, environment variable or flag), which
setting, what was found, what is allowed, and for an unknown name the nearest known one. A `CANOPY_` variable that is no
setting is a fault too: a misspelt limit must not be no limit.

Refuses: to guess. A value of the wrong type is not converted.

An environment variable is the setting's name in capitals behind `CANOPY_`, with two underscores between section and
name: `CANOPY_LIMITS__MAX_PACKET_SIZE=4096`. Values there and in `--set` are written as in TOML; what is no TOML value
is taken as text, so that `--set log.level=debug` needs no quotes. A list of listeners may be separated by commas.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from broker.settings import Settings, defaults, flatten, section_models

PREFIX: Final = "CANOPY_"

NOT_SETTINGS: Final = frozenset({"CANOPY_PURE", "CANOPY_REQUIRE_COMPILED", "CANOPY_EXPECT", "CANOPY_NO_SKIP"})
"""Variables of the build and the test run. They share the prefix and say nothing about a broker."""

LONGEST_SHOWN: Final = 80
"""Characters of a wrong value that a message repeats."""

# Where the bounds alone do not tell what is allowed.
ALLOWED: Final = {
    "listen": 'a list of URLs, like ["mqtt://127.0.0.1:1883"]',
    "limits.max_client_id_length": "0, or an integer from 23 to 65535",
}


class SettingsError(Exception):
    """Settings that cannot be used. Its text is one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(_one_line(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


class Entry(NamedTuple):
    """One value, before it is judged."""

    name: str
    value: Any
    origin: str
    """The place a user has to look at: `canopy.toml`, `environment variable CANOPY_…`, `--set …`."""


def load_settings(
    config: Path | None = None,
    sets: Sequence[str] = (),
    listen: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Put the settings of a daemon together.

    Args:
        config: the TOML file, if any.
        sets: what followed each `--set`, as ``name=value``.
        listen: what followed each `--listen`; together they replace the list of the file and the environment.
        environ: the environment, `os.environ` when None.

    Raises:
        SettingsError: something cannot be read, or is no setting, or has a value that is not allowed.
    """
    problems: list[str] = []
    entries: list[Entry] = []
    if config is not None:
        entries += _from_file(config, problems)
    entries += _from_environment(os.environ if environ is None else environ)
    entries += _from_flags(sets, problems)
    if listen:
        entries.append(Entry("listen", list(listen), "--listen"))

    known = defaults()
    chosen: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in known:
            chosen[entry.name] = entry
        else:
            problems.append(_unknown(entry, known))

    settings: Settings | None = None
    try:
        settings = Settings.model_validate(_nested(chosen.values()))
    except ValidationError as error:
        problems += _judgements(error, chosen)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def changed(settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Settings that differ from their default: full name → (value, default)."""
    standard = defaults()
    return {name: (value, standard[name]) for name, value in flatten(settings).items() if value != standard[name]}


def show(value: Any) -> str:
    """A value as one would write it in a settings file, shortened to fit a message."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (str, bool, list, tuple)):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _one_line(text: str) -> str:
    """The text with line ends and control characters spelt out: a name or value may hold any."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


# --- where values come from ---------------------------------------------------------------------------------------


def _from_file(path: Path, problems: list[str]) -> list[Entry]:
    try:
        data = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return []
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8 text (byte {error.start})")
        return []
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: not valid TOML: {error}")
        return []
    entries: list[Entry] = []
    sections = section_models()
    for name, value in data.items():
        if isinstance(value, dict) and (name in sections or value):
            entries += [Entry(f"{name}.{key}", item, str(path)) for key, item in value.items()]
        elif name in sections:
            problems.append(f"{path}: {name}: found {show(value)}; allowed: a section, [{name}]")
        else:
            entries.append(Entry(name, value, str(path)))
    return entries


def _from_environment(environ: Mapping[str, str]) -> list[Entry]:
    entries: list[Entry] = []
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in NOT_SETTINGS:
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            entries.append(Entry(name, _parse(name, environ[variable]), f"environment variable {variable}"))
    return entries


def _from_flags(sets: Sequence[str], problems: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    for text in sets:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            problems.append(f"--set {text}: allowed: name=value, like --set limits.max_connections=1000")
        else:
            entries.append(Entry(name, _parse(name, value.strip()), f"--set {text}"))
    return entries


def _parse(name: str, text: str) -> Any:
    """A value outside a file: TOML if it is that, else text."""
    value: Any = text
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        pass
    else:
        # Anything else (a date, a second line with a second key) was not meant as TOML.
        if len(document) == 1 and isinstance(document["value"], (bool, int, float, str, list, dict)):
            value = document["value"]
    if name == "listen" and isinstance(value, str):
        return [url.strip() for url in value.split(",")]
    return value


# --- what is said about them --------------------------------------------------------------------------------------


def _nested(entries: Iterable[Entry]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for entry in entries:
        section, dot, key = entry.name.partition(".")
        if dot:
            tree.setdefault(section, {})[key] = entry.value
        else:
            tree[section] = entry.value
    return tree


def _unknown(entry: Entry, known: Mapping[str, Any]) -> str:
    if entry.name in section_models():
        return f"{entry.origin}: {entry.name}: a section; name a setting in it, like {_first(entry.name, known)}"
    nearest = _nearest(entry.name, known)
    if nearest is None:
        return f"{entry.origin}: {entry.name}: no such setting; config/default.toml lists them all"
    if entry.origin.startswith("environment"):
        nearest = PREFIX + nearest.upper().replace(".", "__")
    return f"{entry.origin}: {entry.name}: no such setting; the nearest is {nearest}"


def _first(section: str, known: Mapping[str, Any]) -> str:
    return next(name for name in known if name.startswith(f"{section}."))


def _nearest(name: str, known: Mapping[str, Any]) -> str | None:
    """The known name a user most likely meant: right but for the section, or alike as a whole, or alike in its end."""
    last = name.rpartition(".")[2]
    ends = {full.rpartition(".")[2]: full for full in known}
    if last in ends:
        return ends[last]
    for whole in difflib.get_close_matches(name, list(known), n=1, cutoff=0.75):
        return whole
    for end in difflib.get_close_matches(last, list(ends), n=1, cutoff=0.6):
        return ends[end]
    return None


def _judgements(error: ValidationError, chosen: Mapping[str, Entry]) -> list[str]:
    problems: list[str] = []
    for fault in error.errors(include_url=False):
        name = ".".join(str(step) for step in fault["loc"] if isinstance(step, str))
        entry = chosen[name]
        if fault["type"] == "listen":
            problems.append(f"{entry.origin}: {name}: found {fault['msg']}")
        else:
            problems.append(f"{entry.origin}: {name}: found {show(entry.value)}; allowed: {allowed(name)}")
    return list(dict.fromkeys(problems))


def allowed(name: str) -> str:
    """What the setting of this full name may be, in words, from its model."""
    if name in ALLOWED:
        return ALLOWED[name]
    section, _, key = name.partition(".")
    field = section_models()[section].model_fields[key]
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is Literal:
        return " or ".join(show(choice) for choice in get_args(field.annotation))
    noun = "an integer" if field.annotation is int else "a number"
    return f"{noun} {_bounds(field)}"


def _bounds(field: FieldInfo) -> str:
    low = high = ""
    for bound in field.metadata:
        if isinstance(bound, Ge):
            low = f"from {bound.ge}"
        elif isinstance(bound, Gt):
            low = f"above {bound.gt}"
        elif isinstance(bound, Le):
            high = f"to {bound.le}"
    return " ".join(part for part in (low, high) if part)
