"""Whether data from a file, of TOML or JSON, has the types that a hint names, down to the innermost.

Owns: ``misfit``. Promises: what it finds nothing wrong with can be used as the hint says; an integer may stand for a
float, and a bool for neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from typing import Any, Final, get_args, get_origin, get_type_hints

TOLD: Final = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def misfit(value: object, hint: Any, name: str) -> str:
    """Return what is wrong with a value of this name, and what is right; empty: nothing."""
    kind = get_origin(hint) or hint
    if is_dataclass(kind):
        return _record(value, kind, name)
    if kind in (list, tuple):
        if not isinstance(value, list):
            return f"{name} must be a list, and is {value!r}"
        found = (misfit(each, get_args(hint)[0], f"{name}[{at}]") for at, each in enumerate(value))
    elif kind is dict:
        if not isinstance(value, Mapping):
            return f"{name} must be a table, and is {value!r}"
        found = (misfit(each, get_args(hint)[1], f"{name}.{key}") for key, each in value.items())
    else:
        return "" if _is(value, kind) else f"{name} must be {TOLD[kind]}, and is {value!r}"
    return next(filter(None, found), "")


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return isinstance(value, kind)


def _record(value: object, kind: Any, name: str) -> str:
    """The same for a table with the attributes of a dataclass as its keys."""
    if not isinstance(value, Mapping):
        return f"{name} must be a table, and is {value!r}"
    inner = f"{name}." if name else ""
    taken = {each.name: each for each in fields(kind)}
    if unknown := value.keys() - taken.keys():
        return f"{inner}{min(unknown)} is unknown"
    for each in taken.values():
        if each.name not in value and each.default is MISSING and each.default_factory is MISSING:
            return f"{inner}{each.name} is missing"
    hints = get_type_hints(kind)
    found = (misfit(each, hints[key], f"{inner}{key}") for key, each in value.items())
    return next(filter(None, found), "")
