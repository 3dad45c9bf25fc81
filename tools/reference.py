"""Writes the pages of reference in docs/ that the code knows best: the settings, the commands, and the figures.

    python tools/reference.py --write    # make pages
    python tools/reference.py --check    # exit 1 when a page is not what the code says

Two pages are made as a whole: the settings from their models, the commands from `canopy` itself. `sys.md` ends with a
table of the figures from their catalogue, behind a comment.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import BaseModel

from canopy_mqtt.command.cli import app
from canopy_mqtt.observe.figures.catalogue import GROUPS
from canopy_mqtt.observe.figures.figure import Figure, Kind
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.environment import variable
from canopy_mqtt.settings.values import Section

ROOT: Final = Path(__file__).resolve().parents[1]
WHOLE: Final = ("commands", "settings")
"""The pages that are made as a whole."""
PAGES: Final = {
    file.stem: file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("docs/*.md")) if file.stem not in WHOLE
}
"""The pages that are written by hand, by their names."""
MADE: Final = "<!-- Written by tools/reference.py: run `make pages`. -->\n"
"""The comment behind which a page, or the rest of it, is made."""

SETTINGS_HEAD: Final = """\
# Settings

Every setting, from the models that the broker itself checks them with and from
[config/default.toml](../config/default.toml), which `canopy check-config --defaults` prints; `canopy check-config FILE`
says what a file changes.

A later source wins: the default, the file (`canopy serve --config FILE`), the environment variable, the flag
(`--set NAME=VALUE`). Sizes are bytes, times seconds, rates per second, unless the text says otherwise. A limit of 0
means unlimited; where 0 switches something off, the text says so. What a reload takes up and what takes a restart:
[operations](operations.md#change-settings-while-it-runs).
"""

COMMANDS_HEAD: Final = """\
# Commands

Every command with its arguments and options, as `canopy COMMAND --help` prints them.
"""


def settings_page() -> str:
    """The page about settings: a table for each section, then one for each kind of table in a list."""
    schema = Settings.model_json_schema()
    models: dict[str, Any] = schema["$defs"]
    every: list[type[BaseModel]] = [Settings, *subclasses(Section)]
    for model in every:
        fields = (schema if model is Settings else models.get(model.__name__, {})).get("properties", {})
        for name, text in docstrings(model).items():
            fields.get(name, {})["description"] = text
    told = comments()
    parts = [SETTINGS_HEAD, "## At the top of the file\n\n"]
    parts += _rows("", {n: p for n, p in schema["properties"].items() if "$ref" not in p}, models, environment=True)
    lists: dict[str, list[str]] = {}
    for name, field in schema["properties"].items():
        lists[name] = _tables(field)
        if "$ref" in field:
            model = models[_model(field)]
            _describe(model, name, told)
            parts.append(f"\n## `[{name}]`\n\n{_sentence(model)}\n\n")
            parts += _rows(f"{name}.", model["properties"], models, environment=True)
            lists |= {f"{name}.{inner}": _tables(part) for inner, part in model["properties"].items()}
    for name, kinds in lists.items():
        for kind in kinds:
            model = models[kind]
            constant = model["properties"].get("type", {}).get("const")
            _describe(model, f"{name}.{constant}" if constant else name, told)
            title = f"`[[{name}]]`" + (f" of type `{constant}`" if constant else "")
            parts.append(f"\n## {title}\n\n{_sentence(model)}\n\n")
            parts += _rows("", model["properties"], models, environment=False)
            for inner, field in model["properties"].items():
                if (nested := _model(field)) and nested in models:
                    below = models[nested]
                    _describe(below, f"{name}.{inner}", told)
                    parts.append(f"\n### `{inner}` of `[[{name}]]`\n\n{_sentence(below)}\n\n")
                    parts += _rows(f"{inner}.", below["properties"], models, environment=False)
    return "".join(parts)


def _describe(model: dict[str, Any], name: str, told: Mapping[str, str]) -> None:
    """Give the settings of a section, or the keys of a table, the text that the file has for them."""
    for key, field in model["properties"].items():
        field.setdefault("description", told.get(f"{name}.{key}", ""))


def _tables(field: Mapping[str, Any]) -> list[str]:
    """The names of the models that the tables of a list may have; none where it is no list of tables."""
    items = field.get("items", {})
    return [_model(each) for each in (items, *items.get("oneOf", ())) if "$ref" in each]


def _model(field: Mapping[str, Any]) -> str:
    """The name of the model that a field is, itself or where it is not null; empty for a plain value."""
    for each in (field, *field.get("anyOf", ())):
        if "$ref" in each:
            return str(each["$ref"]).rpartition("/")[2]
    return ""


def _rows(before: str, fields: Mapping[str, Any], models: Mapping[str, Any], *, environment: bool) -> Iterator[str]:
    yield "| setting | values | default | what it does |\n|---|---|---|---|\n"
    for name, field in fields.items():
        text = _cell(_sentence(field))
        # A list of tables has no place in a variable.
        if environment and not _tables(field):
            text += f"<br>`{variable(before + name)}`"
        if pages := named_in(before + name) if before and environment else []:
            text += f"<br>See {', '.join(f'[{page}]({page}.md)' for page in pages)}."
        yield f"| `{before}{name}` | {_cell(_values(field, models))} | {_default(field)} | {text} |\n"


def named_in(setting: str) -> list[str]:
    """The pages that name a setting of a section."""
    return [page for page, text in PAGES.items() if f"`{setting}`" in text or f"`{setting} =" in text]


def _values(field: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_values(each, models) for each in field["anyOf"] if each.get("type") != "null")
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "$ref" in field:
        return _values(models[_model(field)], models) if "enum" in models[_model(field)] else "a table"
    if field.get("type") == "array":
        return "tables" if _tables(field) else f"list: {_values(field.get('items', {}), models)}"
    if field.get("type") == "object":
        return "a table"
    words = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
    kind = words.get(field.get("type", ""), "text")
    low: Any = field.get("minimum")
    high: Any = field.get("maximum")
    match low, high:
        case None, None:
            return kind
        case None, _:
            return f"{kind}, at most {_number(high)}"
        case _, None:
            return f"{kind}, at least {_number(low)}"
    return f"{kind}, {_number(low)} to {_number(high)}"


def comments() -> dict[str, str]:
    """Return the comments of `config/default.toml` above each setting, and above each key of the tables that it shows
    as comments.

    By the full name; a key of an authenticator has its type in it: `authenticator.jwt.issuer`.
    """
    found: dict[str, str] = {}
    section, above, kind, told = "", [], "", ""
    for line in (ROOT / "config" / "default.toml").read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#     ")
        if text.startswith("#"):
            above.append(text[1:].strip())
            continue
        if key := re.match(r'(\w+) = "?([\w-]*)', text):
            kind = f"{key[2]}." if section == "authenticator." and key[1] == "type" else kind
            # One comment may be about several keys.
            told = " ".join(above) or (told if line != text else "")
            found[section + kind + key[1]] = told
        elif text.startswith("["):
            section, kind = text.strip("[]") + ".", ""
        above = []
    return found


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, by their names.

    Pydantic finds it too (`use_attribute_docstrings`), but it would look whenever the broker starts.
    """
    found: dict[str, str] = {}
    for each in model.mro():
        if each is BaseModel:
            break
        [of_class] = ast.parse(inspect.getsource(each)).body
        assert isinstance(of_class, ast.ClassDef)
        for field, below in pairwise(of_class.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found.setdefault(ast.unparse(field.target), inspect.cleandoc(str(below.value.value)))
    return found


def subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All models that are made from one."""
    for each in model.__subclasses__():
        yield each
        yield from subclasses(each)


def _number(value: float) -> str:
    return f"{value:,g}" if value % 1 else f"{int(value):,}"


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return "none: must be given"
    value = field["default"]
    return "–" if value is None or isinstance(value, dict) else f"`{show(value)}`"


def _sentence(described: Mapping[str, Any]) -> str:
    return " ".join(str(described.get("description", "")).replace("Always a tuple after validation.", "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    """The page about commands: the help of each, groups before their commands."""
    parts = [COMMANDS_HEAD]
    for path, text in _helps(typer.main.get_command(app), ("canopy",), None):
        parts.append(f"\n{'##' if len(path) < 3 else '###'} {' '.join(path)}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _helps(command: Any, path: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    wide = {**command.context_settings, "terminal_width": 100, "max_content_width": 100}
    context = command.context_class(command, info_name=path[-1], parent=parent, **wide)
    yield path, command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _helps(below, (*path, name), context)


def figures() -> str:
    """A table for each group of figures."""
    parts = []
    for title, group in GROUPS.items():
        rows = "\n".join(_figure(figure) for figure in group)
        parts.append(f"### {title}\n\n| metric | `$SYS/broker/…` | what it is |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _figure(figure: Figure) -> str:
    metric = "–"
    if figure.exported:
        total = "_total" if figure.kind is Kind.COUNTER else ""
        labels = "{" + ",".join(figure.labels) + "}" if figure.labels else ""
        metric = f"`{figure.metric}{total}{labels}`"
    topics = ", ".join(f"`{topic.path}`" for topic in figure.topics) or "–"
    return f"| {metric} | {topics} | {figure.help} |"


def pages() -> dict[str, str]:
    """Return each page with what is made of it, by its name."""
    by_hand, _, _ = PAGES["sys"].partition(MADE)
    return {
        "commands": MADE + commands_page(),
        "settings": MADE + settings_page(),
        "sys": f"{by_hand}{MADE}\n{figures()}",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or name those that are out of date. Returns 0, or 1 when `--check` finds one."""
    parser = argparse.ArgumentParser(description="The pages of reference in docs/, from the code.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write them")
    what.add_argument("--check", action="store_true", help="exit 1 when one is out of date")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of the pages")
    options = parser.parse_args(argv)
    stale = 0
    for name, text in pages().items():
        file = options.docs / f"{name}.md"
        if options.write:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            print(f"canopy: docs/{name}.md is out of date: run `make pages`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
