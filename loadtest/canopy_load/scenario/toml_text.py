"""A scenario's data as TOML text.

Owns: how a scenario that was changed on the command line is written down again; Python's own `tomllib` only reads.

Promises: `tomllib.loads` gives the same data back, for everything that `tomllib` can have read but dates and times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

BARE_KEY: Final = re.compile("[A-Za-z0-9_-]+")
"""TOML takes such a key without quotes."""


def dumps(data: Mapping[str, Any]) -> str:
    """Data as a TOML document: lists of tables as `[[...]]`, every other table inline."""
    return "\n".join(_table(data, "")).lstrip("\n") + "\n"


def key(text: str) -> str:
    """Return a key, in quotes if it needs them."""
    return text if BARE_KEY.fullmatch(text) else value(text)


def value(item: Any) -> str:
    if isinstance(item, str):
        # JSON's escapes are TOML's as well; DEL is the one sign that only TOML wants escaped.
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, Mapping):
        return f"{{{', '.join(f'{key(name)} = {value(each)}' for name, each in item.items())}}}"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(value(each) for each in item)}]"
    return str(item)


def _table(table: Mapping[str, Any], path: str) -> list[str]:
    tables = {
        name: item
        for name, item in table.items()
        if isinstance(item, list) and item and all(isinstance(each, Mapping) for each in item)
    }
    lines = [f"{key(name)} = {value(item)}" for name, item in table.items() if name not in tables]
    for name, items in tables.items():
        full = f"{path}{key(name)}"
        for item in items:
            lines += ["", f"[[{full}]]", *_table(item, f"{full}.")]
    return lines
