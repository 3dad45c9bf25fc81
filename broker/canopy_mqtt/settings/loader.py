"""Loads settings: defaults, then a TOML file, then the environment, then flags; the last one wins.

Owns this order, and the spelling of environment variables (`load_settings`); `validation` describes faults. Promises:
it reports all faults together, one line each: the place (line of a file, environment variable or flag), the setting,
the value, the allowed ones, and for an unknown name the nearest known one. It converts no value to another type. A
misspelt `CANOPY_` variable is a fault: a misspelt limit must not mean no limit. It never repeats a password, neither in
messages nor in the output of `changed` and `show`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.files import read_file
from canopy_mqtt.settings import Listener, Section, Settings, defaults, flatten, section_models
from canopy_mqtt.settings.descriptions import SECRETS, TABLES, show
from canopy_mqtt.settings.environment import candidates, nearest_flat, variable
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.toml_lines import lines
from canopy_mqtt.settings.urls import HIDDEN
from canopy_mqtt.settings.validation import MAY_HIDE, Entry, nearest, no_such_setting, validate

FOLDERS: Final = (Path(__file__).resolve().parent / "files", Path(__file__).resolve().parents[3] / "config")
"""The folders with the files of `config/`: of the installation, and of the source tree."""

DEFAULTS: Final = tuple(folder / "default.toml" for folder in FOLDERS)
"""The file of annotated defaults."""

VARIABLE: Final = "environment variable "

ADDRESSES: Final = ("listen", "http.listen")
"""Lists of addresses, which commas may separate outside of a file."""


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

    An environment variable is the setting's name in capitals behind `CANOPY_`, with two underscores between section and
    name: `CANOPY_LIMITS__MAX_PACKET_SIZE=4096`. Values there and in `--set` are written as in TOML; what is no TOML
    value is taken as text, so that `--set log.level=debug` needs no quotes. A list of listeners may be separated by
    commas. Rules are inline tables there: `CANOPY_QUEUE__RULES='[{client_id = "a*", policy = "latest"}]'`; and so are
    links to upstream brokers: `CANOPY_UPSTREAM='[{name = "cloud", url = "mqtt://broker.example.org"}]'`.

    Items of a list are counted from 0 in messages (`queue.rules[0].policy`); what a rule as a whole lacks is told once
    its parts are good.
    """
    problems: list[str] = []
    entries: list[Entry] = []
    if config is not None:
        entries += _from_file(config, problems)
    entries += _from_environment(os.environ if environ is None else environ, defaults())
    entries += _from_flags(sets, problems)
    if listen:
        entries.append(Entry("listen", list(listen), "--listen"))
    settings, chosen = validate(Settings, entries, problems, _unknown)
    for at, rule in enumerate(settings.rule):
        rule.stands(f"{chosen['rule'].where('rule', at)}rule[{at}]")
    return settings


def annotated_defaults() -> str:
    """The text of `config/default.toml`: every setting with its default, its unit and its reason.

    Raises:
        SettingsError: the installation lacks the file.
    """
    for path in DEFAULTS:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise SettingsError([f"{DEFAULTS[0]}: missing; install Canopy again"])


def ignored(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a line for each ignored variable with the prefix of settings."""
    known = defaults()
    entries = _from_environment(os.environ if environ is None else environ, known)
    return [
        f"{entry.origin}: no such setting; it is ignored"
        for entry in entries
        if "." in entry.name and entry.name not in known and _unknown(entry, known) is None
    ]


def changed(settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from their default: full name → (value, default)."""
    standard = defaults()
    return {name: (value, standard[name]) for name, value in flatten(settings).items() if value != standard[name]}


def of_tables(name: str, value: Any) -> dict[str, tuple[Any, Any]]:
    """Return the keys of tables that are set: full name (``upstream[0].url``) → (value, default). None: it has no
    default.
    """
    flat: dict[str, tuple[Any, Any]] = {}
    for at, table in enumerate(value):
        flat |= _of_table(f"{name}[{at}]", table)
    return flat


def of_listeners(before: Sequence[Listener], after: Sequence[Listener]) -> list[str]:
    """Return the changes of listeners that take a restart: a line for each listener, or key of one."""
    old = {listener.label: _of_table(f'listener "{listener.label}"', listener) for listener in before}
    new = {listener.label: _of_table(f'listener "{listener.label}"', listener) for listener in after}
    lines = [f'listener "{name}" stays open; to close it takes a restart' for name in old if name not in new]
    lines += [f'listener "{name}": to open it takes a restart' for name in new if name not in old]
    for name in old:
        if name in new:
            for key in old[name] | new[name]:
                # What is not there has its default, which the other one knows.
                there, wanted = old[name].get(key), new[name].get(key)
                has = there[0] if there is not None else (wanted or (None, None))[1]
                gets = wanted[0] if wanted is not None else (there or (None, None))[1]
                if has != gets:
                    lines.append(f"{key}: {show(has)} stays in force; {show(gets)} takes a restart")
    return lines


def _of_table(name: str, table: Section) -> dict[str, tuple[Any, Any]]:
    flat: dict[str, tuple[Any, Any]] = {}
    for key, field in type(table).model_fields.items():
        default = None if field.is_required() else field.default
        found = getattr(table, key)
        if isinstance(found, Section):
            flat |= _of_table(f"{name}.{key}", found)
        elif found != default:
            flat[f"{name}.{key}"] = (HIDDEN if key in SECRETS else found, default)
    return flat


# --- where values come from ---------------------------------------------------------------------------------------


def _from_file(path: Path, problems: list[str]) -> list[Entry]:
    try:
        text = read_file(path).decode("utf-8-sig")
        data = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return []
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8 text (byte {error.start})")
        return []
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: not valid TOML: {error}{_about_toml(path, str(error))}")
        return []
    except (ValueError, RecursionError):
        # Python's own limits.
        problems.append(f"{path}: cannot be read: a number in it has too many digits, or lists are nested too deeply")
        return []
    entries: list[Entry] = []
    sections = section_models()
    there = lines(text)
    for name, value in data.items():
        entry = Entry(name, value, str(path), there)
        if isinstance(value, dict) and (name in sections or (value and name not in Settings.model_fields)):
            entries += [Entry(f"{name}.{key}", item, str(path), there) for key, item in value.items()]
        elif name in sections:
            problems.append(f"{entry.where()}{name}: found {show(value)}; allowed: a section, [{name}]")
        else:
            entries.append(entry)
    return entries


def _about_toml(path: Path, complaint: str) -> str:
    """Return the remedy for a common mistake: a file of mosquitto, or tables put into a copy of default.toml."""
    if path.suffix == ".conf" and complaint.startswith("Expected '='"):
        return f"; to convert a mosquitto.conf: canopy convert {path} > canopy.toml"
    if "('queue', 'rules')" in complaint:
        return "; where [[queue.rules]] tables stand, the line rules = [] has to go"
    for name in TABLES:
        if f"('{name}',)" in complaint:
            return f"; where [[{name}]] tables stand, the line {name} = [] has to go"
    return ""


def _from_environment(environ: Mapping[str, str], known: Iterable[str]) -> list[Entry]:
    return [Entry(name, _parse(name, environ[each]), f"{VARIABLE}{each}") for each, name in candidates(environ, known)]


def _from_flags(sets: Sequence[str], problems: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    for text in sets:
        name, equals, value = text.partition("=")
        name = name.strip()
        # What may hold a password is not repeated.
        secret = name.startswith(tuple(MAY_HIDE)) or any(each in text.lower() for each in SECRETS)
        told = f"{name}=…" if equals and secret else text
        if not equals or not name:
            problems.append(f"--set {told}: allowed: name=value, like --set limits.max_connections=1000")
        else:
            entries.append(Entry(name, _parse(name, value.strip()), f"--set {told}"))
    return entries


def _parse(name: str, text: str) -> Any:
    """Parse a value outside a file: as TOML if possible, else as text."""
    value: Any = text
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        pass
    else:
        # Anything else (a date, a second line with a second key) was not meant as TOML.
        if len(document) == 1 and isinstance(document["value"], (bool, int, float, str, list, dict)):
            value = document["value"]
    if name in ADDRESSES and isinstance(value, str):
        return [url.strip() for url in value.split(",")]
    return value


def _unknown(entry: Entry, known: Mapping[str, Any]) -> str | None:
    """Describe an unknown name. None: the variable resembles no setting, and belongs to another program."""
    if not entry.origin.startswith(VARIABLE) or entry.name in section_models():
        return no_such_setting(entry, known)
    near = nearest(entry.name, known) if "." in entry.name else nearest_flat(entry.name, known)
    if near is not None:
        return f"{entry.where()}{entry.name}: no such setting; the nearest is {variable(near)}"
    return no_such_setting(entry, known) if entry.name.partition(".")[0] in section_models() else None
