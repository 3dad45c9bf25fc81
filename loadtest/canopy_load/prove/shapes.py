"""Data from a file, of TOML or JSON, as the type that a hint names, down to the innermost.

Owns: ``shaped``. Promises: what it returns is of that type, dataclasses included; an integer may stand for a float, and
a bool for neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from typing import Any, Final, get_args, get_origin, get_type_hints

TOLD: Final = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def shaped(value: object, hint: Any, name: str) -> Any:
    """Return a value of this name as its type. Raises ValueError: what is wrong with it, and what is right."""
    kind = get_origin(hint) or hint
    if is_dataclass(kind):
        return _record(value, kind, name)
    if kind in (list, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, and is {value!r}")
        return kind(shaped(each, get_args(hint)[0], f"{name}[{at}]") for at, each in enumerate(value))
    if kind in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a table, and is {value!r}")
        return {key: shaped(each, get_args(hint)[1], f"{name}.{key}") for key, each in value.items()}
    if not _is(value, kind):
        raise ValueError(f"{name} must be {TOLD[kind]}, and is {value!r}")
    return value


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return isinstance(value, kind)


def _record(value: object, kind: Any, name: str) -> Any:
    """The same for a table with the attributes of a dataclass as its keys."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a table, and is {value!r}")
    inner = f"{name}." if name else ""
    taken = {each.name: each for each in fields(kind)}
    if unknown := value.keys() - taken.keys():
        raise ValueError(f"{inner}{min(unknown)} is unknown; known are {', '.join(taken)}")
    for each in taken.values():
        if each.name not in value and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{inner}{each.name} is missing")
    hints = get_type_hints(kind)
    return kind(**{key: shaped(each, hints[key], f"{inner}{key}") for key, each in value.items()})
