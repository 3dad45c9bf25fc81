"""`--set KEY=VALUE`: one value of a scenario, changed on the command line.

Owns: how a key names a place (`groups.NAME.publish.0.rate`, `stages.NAME.seconds`, `scale`), how a value is written
(as in TOML; what is no TOML value is text), and which keys give way to one that excludes them.

Promises: an item of a list that the key names is there; else an ``OverrideError`` says what there is. Setting one of
several keys of which there may be but one (`rate`, `total_rate`, `in_flight`; the kinds of payload; the two ways of
slow reading) takes the others of the file away, and never one that another `--set` set.

The schema judges keys and values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from canopy_load.scenario.complaints import Place, cut, model_at, show, suggest, where
from canopy_load.scenario.scenario_schema import PAYLOADS, Payload, Publish, Reading

EXAMPLE: Final = "--set stages.steady.seconds=30"

ALTERNATIVES: Final[dict[type[BaseModel], frozenset[str]]] = {
    Publish: frozenset({"rate", "total_rate", "in_flight"}),
    Payload: frozenset(PAYLOADS),
    Reading: frozenset({"rate", "freeze_after"}),
}
"""Keys of which a part has one."""


class OverrideError(Exception):
    """An override that names nothing, or is none. The message does not repeat it."""


class Override(NamedTuple):
    """A change that was made."""

    flag: str
    """As it was given, for messages."""
    steps: Place


def apply(data: dict[str, Any], text: str, before: Sequence[Override]) -> Override:
    """Make one change in a scenario's data. `before`: the changes made so far.

    Raises:
        OverrideError: the text is not `KEY=VALUE`, or the key names nothing.
    """
    name, equals, written = text.partition("=")
    words = _words(name.strip())
    if not equals or not words:
        raise OverrideError(f"allowed: KEY=VALUE, like {EXAMPLE}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OverrideError("not UTF-8 text") from error
    here: Any = data
    steps: Place = ()
    for at, word in enumerate(words):
        step = _step(data, here, steps, word)
        steps = (*steps, step)
        if at + 1 == len(words):
            here[step] = _value(written.strip())
        elif isinstance(here, dict):
            here.setdefault(step, {})
        _give_way(here, steps, before)
        here = here[step]
    return Override(f"--set {cut(text)}", steps)


def _words(name: str) -> list[str]:
    """Return the parts of a dotted key, as TOML reads it (a name with a dot is in quotes); an empty list if it is no
    key."""
    try:
        found: Any = tomllib.loads(f"{name} = 0")
    except (ValueError, RecursionError):
        return []
    words: list[str] = []
    while isinstance(found, dict):
        if len(found) != 1:
            return []
        ((word, found),) = found.items()
        words.append(word)
    return words


def _value(text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # Anything else (a date, a second line with a second key) was not meant as TOML.
    if len(document) == 1 and isinstance(document["value"], (bool, int, float, str, list, dict)):
        return document["value"]
    return text


def _step(data: Any, here: Any, steps: Place, word: str) -> int | str:
    """Return the key or the number that a word means in the value at `steps`."""
    place = where(data, steps)
    if isinstance(here, list):
        return _item(here, place, word)
    if not isinstance(here, dict):
        raise OverrideError(f"{place} is {show(here)}; nothing stands in it")
    return word


def _item(items: list[Any], place: str, word: str) -> int:
    """The number of an item that is called by its name or its number."""
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if word in names:
        return names.index(word)
    if word.isascii() and word.isdigit() and int(word) < len(items):
        return int(word)
    known = [name for name in names if isinstance(name, str)]
    if known:
        raise OverrideError(f"{place}: there is no {word}; {suggest(word, known)}")
    count = f"{len(items)} {'entry' if len(items) == 1 else 'entries'}, counted from 0" if items else "no entry"
    raise OverrideError(f"{place}: there is no {word}, it has {count}")


def _give_way(table: Any, steps: Place, before: Sequence[Override]) -> None:
    """Remove the keys of the table that exclude the key at `steps`."""
    *outer, name = steps
    model = model_at(tuple(outer))
    others = ALTERNATIVES.get(model, frozenset()) if model is not None else frozenset()
    if name not in others:
        return
    said = {each.steps[: len(steps)] for each in before}
    for other in others - {name}:
        if (*outer, other) not in said:
            table.pop(other, None)
