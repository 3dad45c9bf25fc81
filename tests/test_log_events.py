"""docs/logs.md names every event that the broker logs, and every cause of an end, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from broker.core import causes

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
LEVELS = frozenset({"debug", "info", "warning", "error"})


def first_columns(after: str) -> set[str]:
    """What stands in backticks in the first column of the tables below a heading, up to the next one."""
    text = GUIDE.partition(f"\n{after}\n")[2].partition("\n## ")[0] if after else GUIDE
    cells = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def texts(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in constants:
        yield constants[node.id]
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, constants)
        yield from texts(node.orelse, constants)


def events(source: Path) -> Iterator[str]:
    """The first argument of each call of a log's method in a module; it may be a constant of the module."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    constants = {
        statement.target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and node.args
        ):
            owner = node.func.value
            if isinstance(owner, ast.Call):  # what answers with the log of the time
                owner = owner.func
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name in ("log", "_log"):
                yield from texts(node.args[0], constants)


def logged() -> set[str]:
    found = {event for source in (ROOT / "broker").rglob("*.py") for event in events(source)}
    # What is told by other ways: warnings about clients, exceptions, and the log's own losses.
    from broker.net.connection_log import EVICTION, HANDSHAKE, PROXY, REFUSAL, VIOLATION

    found |= {EVICTION, HANDSHAKE, PROXY, REFUSAL, VIOLATION, "a hook keeps the event loop waiting", "log lines lost"}
    return found | {f"{event}{again}" for event in ("a hook failed", "internal error") for again in ("", ", again")}


def test_every_event_is_explained_and_none_that_there_is_not() -> None:
    listed = first_columns("") - causes_of_an_end()
    assert listed == logged()
    assert len(listed) > 40


def causes_of_an_end() -> set[str]:
    return {value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


def test_every_cause_of_an_end_is_explained() -> None:
    table = GUIDE.partition("| cause | what happened |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == causes_of_an_end()
