"""Reads levels and fields of the broker's log events from the code, against which a test holds docs/logs.md.

Owns finding the calls of a log's methods in `broker/`. A call cannot say everything: its fields may be put together
elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
"""The methods of a log, the least severe first."""


@dataclass
class Event:
    """The levels and fields of an event, from its calls; `open`: there may be fields that they do not name."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)
    open: bool = False


def events(root: Path) -> dict[str, Event]:
    """Every event that a call below `root` names, by its text."""
    found: dict[str, Event] = {}
    for source in sorted(root.rglob("*.py")):
        for text, level, fields, more in calls(source):
            event = found.setdefault(text, Event())
            event.levels.add(level)
            event.fields |= dict.fromkeys(fields)
            event.open |= more
    return found


def calls(source: Path) -> Iterator[tuple[str, str, list[str], bool]]:
    """Each call of a log's method in a module: its event, which may be a constant of the module; its level; the fields
    that it names; and whether there may be others."""
    text = source.read_text(encoding="utf-8")
    if not any(f".{level}(" in text for level in LEVELS):
        return
    tree = ast.parse(text)
    constants = {
        statement.target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner = node.func.value
        if isinstance(owner, ast.Call):  # what answers with the log of the time
            owner = owner.func
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if name in ("log", "_log") and node.func.attr in LEVELS:
            fields = [word.arg for word in node.keywords if word.arg not in (None, "exc_info")]
            for text in _texts(node.args[0], constants):
                yield text, node.func.attr, [each for each in fields if each], any(w.arg is None for w in node.keywords)


def _texts(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in constants:
        yield constants[node.id]
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, constants)
        yield from _texts(node.orelse, constants)
