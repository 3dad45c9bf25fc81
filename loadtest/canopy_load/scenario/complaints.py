"""The messages about an invalid scenario.

Owns: the wording of every fault that the schema finds, and the nearest known name where one is unknown.

Promises: one line for each fault, in the words of TOML and not of Python; groups and stages bear their names, other
items of lists their number from 0.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from canopy_load.scenario.scenario_schema import Scenario
from canopy_load.scenario.toml_text import key, value

MAX_SHOWN: Final = 80
"""Characters of a wrong value that a message repeats."""

Place: TypeAlias = tuple[int | str, ...]
"""A way into the data: keys of tables, and numbers in lists."""

Origin: TypeAlias = Callable[[Place], str]
"""Which file or flag a place was set by."""

_WORDS: Final = {"an object": "a table", "a valid array": "a list", "a valid string": "text"}
"""The validator speaks of JSON and Python; the user wrote TOML."""

_NAMES: Final = {
    "^[a-z0-9][a-z0-9_-]*$": "a-z, 0-9, _ and -, no sign first",
    "^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits, dots, _ and -, no sign first",
}


def complaints(error: ValidationError, data: Any, origin: Origin) -> list[str]:
    lines = [_line(fault, data, origin) for fault in error.errors(include_url=False)]
    return list(dict.fromkeys(lines))


def where(data: Any, place: Place) -> str:
    """A place in the data as people call it: `groups.subscribers.publish.0`."""
    words = []
    for step in place:
        item = _inside(data, step)
        name = item.get("name") if isinstance(step, int) and isinstance(item, dict) else None
        words.append(key(name) if isinstance(name, str) and name else key(str(step)))
        data = item
    return ".".join(words)


def suggest(wrong: str, known: Collection[str]) -> str:
    """The nearest of the known names and all of them, as the second half of a sentence."""
    listed = ", ".join(known)
    near = nearest(wrong, known)
    return f"did you mean {near}? There are {listed}" if near else f"there are {listed}"


def nearest(wrong: str, known: Collection[str]) -> str | None:
    for name in difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6):
        return name
    return None


def unknown_key(model: type[BaseModel], wrong: str) -> str:
    """Return the message about a key that a part of a scenario does not have."""
    if near := nearest(wrong, model.model_fields):
        return f"no such key; did you mean {near}?"
    return f"no such key; known are {', '.join(model.model_fields)}"


def model_at(place: Place) -> type[BaseModel] | None:
    """Return the part of the schema that describes the table at a place; None if the table has free names, or there is
    none."""
    model: type[BaseModel] | None = Scenario
    for step in place:
        if isinstance(step, str):
            if model is None or step not in model.model_fields:
                return None
            model = next(_models(model.model_fields[step].annotation), None)
    return model


def show(item: Any) -> str:
    """A value as it would be written in a scenario, shortened to fit a message."""
    return "a table" if isinstance(item, dict) else cut(value(item))


def cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _line(fault: ErrorDetails, data: Any, origin: Origin) -> str:
    place = fault["loc"]
    kind = fault["type"]
    if kind == "extra_forbidden":
        model = model_at(place[:-1])
        return _join(origin(place), where(data, place), unknown_key(model or Scenario, str(place[-1])))
    if kind == "missing":
        return _join(origin(place[:-1]), where(data, place), "is missing")
    if kind == "value_error":
        return _join(origin(place), where(data, place), str(fault["ctx"]["error"]))
    return _join(origin(place), where(data, place), f"found {show(fault['input'])}; {_wanted(fault, place)}")


def _join(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def _wanted(fault: ErrorDetails, place: Place) -> str:
    """Say in a clause what would be valid."""
    if fault["type"] == "list_type" and isinstance(fault["input"], dict):
        path = ".".join(str(step) for step in place if isinstance(step, str))
        return f"write [[{path}]], since there may be several"
    if fault["type"] == "string_pattern_mismatch":
        pattern = fault["ctx"]["pattern"]
        return f"allowed: {_NAMES.get(pattern, pattern)}"
    text = re.sub("|".join(_WORDS), lambda found: _WORDS[found[0]], fault["msg"])
    return re.sub(r"^(Input|\w+) should ", "it should ", text)


def _inside(data: Any, step: int | str) -> Any:
    if isinstance(data, dict):
        return data.get(step)
    return data[step] if isinstance(data, Sequence) and isinstance(step, int) and step < len(data) else None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
