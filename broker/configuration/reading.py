"""Finds the values of settings: defaults, then a TOML file, then the environment, then flags; the last one wins.

Owns the order, the spelling of environment variables (`load_settings`), and the messages about what is wrong; `wording`
words values and what is allowed. Promises: every fault is told at once, one line each: where it stands (line of a file,
environment variable or flag), which setting, what was found, what is allowed, and for an unknown name the nearest known
one. No value is converted to another type, and a misspelt `CANOPY_` variable is a fault: a misspelt limit must not be
no limit. A password is never repeated: not in a message, not in what `changed` and `show` make of it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from broker.configuration.environment import candidates, nearest_flat, variable
from broker.configuration.removed import removed
from broker.configuration.toml_lines import Path as Steps
from broker.configuration.toml_lines import lines, nearest
from broker.configuration.wording import SECRETS, TABLES, allowed, cut, inner_model, is_known, show, to_toml
from broker.settings import Listener, Section, Settings, defaults, flatten, section_models
from broker.settings.brokers.upstream import A_LIST, A_WORD
from broker.settings.urls import HIDDEN

DEFAULTS: Final = (
    Path(__file__).resolve().parents[1] / "settings" / "files" / "default.toml",
    Path(__file__).resolve().parents[2] / "config" / "default.toml",
)
"""Where the annotated defaults are: `files` beside the models where Canopy is installed, `config/` in the tree."""

VARIABLE: Final = "environment variable "

MAY_HIDE: Final = frozenset({"upstream", "authenticator", "listener", "store.url"})
"""Lists of tables that may hold secrets, and a URL that may."""

ADDRESSES: Final = ("listen", "http.listen")
"""Lists of addresses, which may be separated by commas outside of a file."""


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
    lines: Mapping[Steps, int] = MappingProxyType({})
    """The lines of a file on which things stand."""

    def where(self, *steps: str | int) -> str:
        """The place of the value, or of a part of it: the way to that begins with the setting's section and name."""
        section, dot, key = self.name.partition(".")
        line = nearest(self.lines, steps or ((section, key) if dot else (section,)))
        return self.origin if line is None else f"{self.origin}: line {line}"


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
    known = defaults()
    entries += _from_environment(os.environ if environ is None else environ, known)
    entries += _from_flags(sets, problems)
    if listen:
        entries.append(Entry("listen", list(listen), "--listen"))

    chosen: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in known:
            chosen[entry.name] = entry
        elif removed(entry.name) is None:
            problem = _unknown(entry, known)
            if problem is not None:
                problems.append(problem)
    problems += _of_earlier_versions(entries)

    settings: Settings | None = None
    try:
        settings = Settings.model_validate(_nested(chosen.values()))
    except ValidationError as error:
        problems += _judgements(error, chosen)
    if problems or settings is None:
        raise SettingsError(problems)
    for at, rule in enumerate(settings.rule):
        rule.stands(f"{chosen['rule'].where('rule', at)}: rule[{at}]")
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
    """Variables that are spelt like settings and come near none: a line for each. They change nothing."""
    known = defaults()
    entries = _from_environment(os.environ if environ is None else environ, known)
    return [
        f"{entry.origin}: no such setting; it is ignored"
        for entry in entries
        if "." in entry.name and entry.name not in known and _unknown(entry, known) is None
    ]


def changed(settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Settings that differ from their default: full name → (value, default)."""
    standard = defaults()
    return {name: (value, standard[name]) for name, value in flatten(settings).items() if value != standard[name]}


def of_tables(name: str, value: Any) -> dict[str, tuple[Any, Any]]:
    """What differs in a list of tables: full name (``upstream[0].url``) → (value, default). None: it has no default."""
    flat: dict[str, tuple[Any, Any]] = {}
    for at, table in enumerate(value):
        flat |= _of_table(f"{name}[{at}]", table)
    return flat


def of_listeners(before: Sequence[Listener], after: Sequence[Listener]) -> list[str]:
    """What takes a restart when other listeners are wanted than there are: a line for each listener, or key of one."""
    old = {listener.called: _of_table(f'listener "{listener.called}"', listener) for listener in before}
    new = {listener.called: _of_table(f'listener "{listener.called}"', listener) for listener in after}
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


def _one_line(text: str) -> str:
    """The text with line ends and control characters spelt out: a name or value may hold any."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


# --- where values come from ---------------------------------------------------------------------------------------


def _from_file(path: Path, problems: list[str]) -> list[Entry]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        data = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return []
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8 text (byte {error.start})")
        return []
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: not valid TOML: {error}{_about_toml(str(error))}")
        return []
    entries: list[Entry] = []
    sections = section_models()
    there = lines(text)
    for name, value in data.items():
        entry = Entry(name, value, str(path), there)
        if isinstance(value, dict) and (name in sections or (value and name not in Settings.model_fields)):
            entries += [Entry(f"{name}.{key}", item, str(path), there) for key, item in value.items()]
        elif name in sections:
            problems.append(f"{entry.where()}: {name}: found {show(value)}; allowed: a section, [{name}]")
        else:
            entries.append(entry)
    return entries


def _about_toml(complaint: str) -> str:
    """What to do about a complaint that is easily come by: tables put into a copy of default.toml."""
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
    if name in ADDRESSES and isinstance(value, str):
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


def _of_earlier_versions(entries: Iterable[Entry]) -> list[str]:
    """A line for each setting, or whole section, that there is no more: where it is first, and what to do."""
    found: dict[str, str] = {}
    for entry in entries:
        if (advice := removed(entry.name)) is not None:
            found.setdefault(advice, f"{entry.where()}: {entry.name}: {advice}")
    return list(found.values())


def _unknown(entry: Entry, known: Mapping[str, Any]) -> str | None:
    """What is wrong with a name. None: a variable that resembles no setting, and is of another program."""
    from_environment = entry.origin.startswith(VARIABLE)
    if entry.name in section_models():
        return f"{entry.where()}: {entry.name}: a section; name a setting in it, like {_first(entry.name, known)}"
    if from_environment and "." not in entry.name:
        nearest = nearest_flat(entry.name, known)
    else:
        nearest = _nearest(entry.name, known)
    if nearest is None:
        if from_environment:
            return None
        return f"{entry.where()}: {entry.name}: no such setting; canopy check-config --defaults lists them all"
    if from_environment:
        nearest = variable(nearest)
    return f"{entry.where()}: {entry.name}: no such setting; the nearest is {nearest}"


def _first(section: str, known: Mapping[str, Any]) -> str:
    return next(name for name in known if name.startswith(f"{section}."))


def _nearest(name: str, known: Mapping[str, Any]) -> str | None:
    """The known name a user most likely meant: right but for the section, or alike as a whole, or alike in its end."""
    last = name.rpartition(".")[2]
    ends = {full.rpartition(".")[2]: full for full in known}
    if last in ends:
        # Several sections may have it.
        same = [full for full in known if full.rpartition(".")[2] == last]
        return max(same, key=lambda full: difflib.SequenceMatcher(None, name, full).ratio())
    for whole in difflib.get_close_matches(name, list(known), n=1, cutoff=0.75):
        return whole
    for end in difflib.get_close_matches(last, list(ends), n=1, cutoff=0.6):
        return ends[end]
    return None


def _judgements(error: ValidationError, chosen: Mapping[str, Entry]) -> list[str]:
    problems: list[str] = []
    for fault in error.errors(include_url=False):
        steps = tuple(step for step in fault["loc"] if step not in (A_WORD, A_LIST))
        if not steps:
            # About listen and listener together: it says where by itself.
            context = fault["ctx"]
            entry = chosen[context["at"].partition("[")[0]]
            other = chosen["listen"].origin
            more = "" if other == entry.origin else f" (listen: {other})"
            where, found = entry.where(*_steps(context["at"])), show(context["found"])
            problems.append(f"{where}: {context['at']}: found {found}; allowed: {fault['msg']}{more}")
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
            problems.append(f"{where}: {name}: found {fault['msg']}")
        elif fault["type"] == "rule" and fault["ctx"]["at"]:
            where = entry.where(*steps, *_steps(fault["ctx"]["at"]))
            problems.append(f"{where}: {_about_part(fault, name, steps[length:], kind)}")
        elif length == len(steps) or name == "listen":
            wanted = fault["msg"] if fault["type"] == "rule" else allowed(name)
            problems.append(f"{where}: {name}: found {_show_whole(entry)}; allowed: {wanted}")
        else:
            problems.append(f"{where}: {_about_part(fault, name, steps[length:], kind)}")
    return list(dict.fromkeys(problems))


OF_KEYS: Final = ("extra_forbidden", "missing")
"""Faults that are about a key, which may be none of a table's."""


def _about_section(fault: ErrorDetails, section: str, chosen: Mapping[str, Entry]) -> str:
    """What is wrong with the settings of a section together; the fault names the one that has to change."""
    at = fault["ctx"]["at"]
    steps = (section, *_steps(at))
    entry = chosen.get(".".join(str(step) for step in steps[:2]))
    if entry is None:
        # It is not set: another setting of the section is why it must be.
        entry = next(each for each in chosen.values() if each.name.startswith(f"{section}."))
        steps = ()
    return f"{entry.where(*steps)}: {section}{at}: found {show(fault['ctx']['found'])}; allowed: {fault['msg']}"


def _found(value: Any) -> str:
    return "missing" if value is None else f"found {show(value)}"


def _steps(part: str) -> Steps:
    """The way to a part as it is written: `listener[0].tls` → ("listener", 0, "tls")."""
    return tuple(int(number) if number else name for number, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", part))


def _show_whole(entry: Entry) -> str:
    """The value of a setting. Text in place of tables, or of a URL, may hold a password anywhere."""
    if entry.name in MAY_HIDE and isinstance(entry.value, str):
        return "text (not shown: it may hold a password)"
    return show(entry.value)


def _keys(model: type[BaseModel], steps: Sequence[int | str]) -> Mapping[str, Any]:
    """What the table may hold that the last of these steps is a key of."""
    for step in steps[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            model = inner_model(model, step)
    return model.model_fields


def _about_part(fault: ErrorDetails, name: str, steps: Sequence[int | str], table: str) -> str:
    """What is wrong with an item of a list, or with one key of a table, whose type is `table` where there are types."""
    part = name + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    kind = re.sub(r"\[\d+\]", "[]", part)
    if fault["type"] == "union_tag_not_found":
        return f"{part}.type: missing; allowed: {allowed(f'{kind}.type')}"
    if fault["type"] == "union_tag_invalid":
        return f"{part}.type: found {show(fault['ctx']['tag'])}; allowed: {allowed(f'{kind}.type')}"
    if fault["type"] == "extra_forbidden":
        model = TABLES[name]
        keys = _keys(model[table] if isinstance(model, Mapping) else model, steps)
        nearest = _nearest(str(steps[-1]), keys)
        return f"{part}: no such setting; " + (
            f"the nearest is {nearest}" if nearest else f"known are {', '.join(keys)}"
        )
    if fault["type"] == "missing":
        return f"{part}: missing; allowed: {allowed(kind)}"
    rule = fault["type"] == "rule"
    if rule and fault["ctx"]["at"]:
        return f"{part}{fault['ctx']['at']}: {_found(fault['ctx']['found'])}; allowed: {fault['msg']}"
    found = show(fault["input"]) if len(steps) > 1 else cut(to_toml(fault["input"]))
    if any(step in SECRETS for step in steps):
        found = HIDDEN
    return f"{part}: found {found}; allowed: {fault['msg'] if rule else allowed(kind)}"
