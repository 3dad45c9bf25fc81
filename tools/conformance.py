#!/usr/bin/env python3
"""The conformance table: which normative statement is kept where in the code, and which test proves it.

Owns reading `docs/conformance/*.toml` (the statements), finding the tags `[MQTT-a.b.c-n]` and `[MQTT3-a.b.c-n]` in
`broker/` and `tests/`, writing into `docs/conformance.md` how many are kept, and the table of all of them, which stands
in the documentation's site: the same tree gives the same text. `--check` refuses a page that is out of date, a tag that
names no statement, and a statement that applies to a server and has no place in the code or no test.

    python tools/conformance.py --write|--check|--table
                           write the page, hold it against the tree, print the table
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA_DIR = "docs/conformance"
REPORT = "docs/conformance.md"
DOCUMENTS = ("mqtt5.toml", "mqtt311.toml")

# A bracket that begins like a tag is taken whole, so that a slip inside it is reported and not passed over.
TAG = re.compile(r"\[(MQTT3?-[0-9][^\]\n]*)\]")


@dataclass(frozen=True)
class Statement:
    """One normative statement. `same` names 5.0 statements of the same content, `na` why a server has no part in it.

    `party`: the party that it binds, `server`, `client` or `both`.
    """

    id: str
    party: str
    asks: str
    same: tuple[str, ...] = ()
    na: str = ""

    @property
    def chapter(self) -> str:
        """Chapter and section of the statement: `3.1` for `MQTT-3.1.2-4`."""
        return ".".join(self.id.split("-")[1].split(".")[:2])


@dataclass(frozen=True)
class Document:
    """One specification document: its title and links, its chapters and its statements, in the document's order."""

    file: str
    title: str
    date: str
    url: str
    chapters: Mapping[str, str]
    statements: tuple[Statement, ...]


@dataclass(frozen=True, order=True)
class Place:
    """Where a tag stands: a file, relative to the root, and the dotted name in it (empty for the file as a whole)."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}" if self.name else self.file


@dataclass
class Tags:
    """The places of every tag found, by statement.

    A tag counts to the innermost function or class around it, else to the module-level name it stands in or directly
    above, else to the file. A 3.1.1 statement that is the `same` as 5.0 statements counts as covered when all of those
    are.
    """

    code: dict[str, set[Place]] = field(default_factory=dict)
    tests: dict[str, set[Place]] = field(default_factory=dict)


@dataclass(frozen=True)
class Coverage:
    """The code and the tests of one statement. The places include those of the `same` statements."""

    statement: Statement
    code: tuple[Place, ...]
    tests: tuple[Place, ...]
    in_code: bool
    tested: bool


# ---------------------------------------------------------------------------------------------------------------- data


def read_documents(root: Path) -> list[Document]:
    """The statement files below `root`. The tests hold their content against the specifications."""
    documents = []
    for name in DOCUMENTS:
        data = tomllib.loads((root / DATA_DIR / name).read_text(encoding="utf-8"))
        made = []
        for entry in data["statements"]["list"]:
            same = entry.pop("same", ())
            made.append(Statement(**entry, same=(same,) if isinstance(same, str) else tuple(same)))
        head = data["document"]
        documents.append(Document(name, head["title"], head["date"], head["url"], data["chapters"], tuple(made)))
    return documents


# ---------------------------------------------------------------------------------------------------------------- tags


@dataclass(frozen=True)
class _Span:
    """A named stretch of lines of one file; the smaller of two that hold a line is the inner one."""

    first: int
    last: int
    name: str


def _assigned_name(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and node.targets and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""


def _spans(body: Sequence[ast.stmt], outer: str, comment_top: Mapping[int, int]) -> Iterator[_Span]:
    """Functions, classes and module- or class-level names of `body`, each with the comment block right above it."""
    for node in body:
        first, last = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([first, *(item.lineno for item in node.decorator_list)])
            name = f"{outer}{node.name}"
            yield _Span(comment_top.get(first, first), last, name)
            # A function inside a function is part of it: what a reader looks for is the outer name.
            if isinstance(node, ast.ClassDef):
                yield from _spans(node.body, f"{name}.", comment_top)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in (node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])):
                yield from _spans(part, outer, comment_top)
        elif name := _assigned_name(node):
            yield _Span(comment_top.get(first, first), last, f"{outer}{name}")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # `CASES.append(...)` and `table.update(...)` belong to the name on the left of the dot.
            target = node.value.func
            while isinstance(target, ast.Attribute):
                target = target.value
            if isinstance(target, ast.Name):
                yield _Span(comment_top.get(first, first), last, f"{outer}{target.id}")


def _comment_tops(lines: Sequence[str]) -> dict[int, int]:
    """For each line right below a block of comment lines, the first line of that block (lines count from 1)."""
    tops: dict[int, int] = {}
    start = 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            start = start or number
        else:
            if start:
                tops[number] = start
            start = 0
    return tops


def tags_of(source: str) -> Iterator[tuple[str, str]]:
    """Every tag of a Python source text, with the name it counts to (empty for the file as a whole)."""
    lines = source.splitlines()
    if "[MQTT" not in source:
        return
    spans = list(_spans(ast.parse(source).body, "", _comment_tops(lines)))
    for number, line in enumerate(lines, 1):
        for match in TAG.finditer(line):
            around = [span for span in spans if span.first <= number <= span.last]
            inner = min(around, key=lambda span: span.last - span.first, default=None)
            yield match.group(1), inner.name if inner else ""


def find_tags(root: Path) -> Tags:
    """Every tag below `broker/` and `tests/` of `root`."""
    found = Tags()
    for room, places in (("broker", found.code), ("tests", found.tests)):
        for path in sorted((root / room).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            for tag, name in tags_of(path.read_text(encoding="utf-8")):
                places.setdefault(tag, set()).add(Place(file, name))
    return found


# -------------------------------------------------------------------------------------------------------------- result


def coverage(documents: Sequence[Document], tags: Tags) -> dict[str, Coverage]:
    """Return the coverage of each statement by the tags."""

    def places(found: Mapping[str, set[Place]], statement: Statement) -> tuple[tuple[Place, ...], bool]:
        own = found.get(statement.id, set())
        shared = [found.get(name, set()) for name in statement.same]
        return tuple(sorted(own.union(*shared))), bool(own) or (bool(shared) and all(shared))

    result = {}
    for document in documents:
        for statement in document.statements:
            code, in_code = places(tags.code, statement)
            tests, tested = places(tags.tests, statement)
            result[statement.id] = Coverage(statement, code, tests, in_code, tested)
    return result


def unknown_tags(documents: Sequence[Document], tags: Tags) -> list[str]:
    """One line for each place of a tag that names no statement."""
    known = {statement.id for document in documents for statement in document.statements}
    return [
        f"{place}: [{tag}] names no statement"
        for found in (tags.code, tags.tests)
        for tag in sorted(set(found) - known)
        for place in sorted(found[tag])
    ]


def missing(covered: Mapping[str, Coverage]) -> list[str]:
    """One line for each statement that applies to a server and lacks a place in the code, a test, or both."""
    lines = []
    for ident, item in covered.items():
        if item.statement.na or (item.in_code and item.tested):
            continue
        lacks = " and ".join(what for what, there in (("code", item.in_code), ("test", item.tested)) if not there)
        lines.append(f"{ident}: no {lacks}: {item.statement.asks}")
    return lines


# -------------------------------------------------------------------------------------------------------------- report


def _link(place: Place, *, test: bool) -> str:
    file = place.file.removeprefix("tests/" if test else "broker/canopy_mqtt/")
    name = f"{file}::{place.name.replace('.', '::')}" if test else f"{file}:{place.name}"
    return f"[`{name if place.name else file}`](../{place.file})"


def _row(item: Coverage) -> str:
    statement = item.statement
    asks = statement.asks.replace("|", "\\|")
    if statement.same:
        asks += f" *(as {', '.join(statement.same)})*"
    if statement.party == "client" and not statement.na:
        asks += " *(binds the client; the server refuses one that breaks it)*"
    code = "<br>".join(_link(place, test=False) for place in item.code)
    tests = "<br>".join(_link(place, test=True) for place in item.tests)
    if statement.na:
        code = f"not applicable: {statement.na}" + (f"<br>{code}" if code else "")
        return f"| {statement.id} | {asks} | {code} | {tests or '–'} |"
    return f"| {statement.id} | {asks} | {code or '**missing**'} | {tests or '**missing**'} |"


_INTRO = """\
<!-- Written by tools/conformance.py from docs/conformance/*.toml and the tags in broker/ and tests/. Do not edit:
     run `python tools/conformance.py --write`. -->
# Conformance

Every normative statement of the two MQTT specifications, the code that implements it, and the test that proves it.
Code and tests name statements by tags: `[MQTT-3.1.2-1]` is a number of MQTT 5.0, `[MQTT3-3.1.2-1]` one of MQTT 3.1.1,
which numbers its statements separately. The texts here are summaries in our words; the linked documents are the
authority. A 3.1.1 statement with the same content as 5.0 statements names them, and their tags count for it.
"""


_TABLE = """\
On the site (`make docs`) a table of all statements follows; `python tools/conformance.py --table` prints it.

<!-- made at the build: statements -->"""


def statements(root: Path) -> str:
    """The table of the project at `root`."""
    documents = read_documents(root)
    return table(documents, coverage(documents, find_tags(root)))


def report(documents: Sequence[Document], covered: Mapping[str, Coverage]) -> str:
    """The text of docs/conformance.md."""
    out = [_INTRO, "## Summary", ""]
    out.append("| document | statements | apply to a server | in the code | tested | not applicable |")
    out.append("|---|---:|---:|---:|---:|---:|")
    for document in documents:
        items = [covered[statement.id] for statement in document.statements]
        apply = [item for item in items if not item.statement.na]
        in_code, tested = sum(item.in_code for item in apply), sum(item.tested for item in apply)
        out.append(
            f"| {document.title} | {len(items)} | {len(apply)} | {in_code} | {tested} | {len(items) - len(apply)} |"
        )
    return "\n".join([*out, "", _TABLE]) + "\n"


def table(documents: Sequence[Document], covered: Mapping[str, Coverage]) -> str:
    """Every statement, with its places in the code and in the tests, by document and chapter."""
    out: list[str] = []
    for document in documents:
        out += ["", f"## {document.title}", "", f"{document.date}: <{document.url}>"]
        for chapter, title in document.chapters.items():
            rows = [_row(covered[item.id]) for item in document.statements if item.chapter == chapter]
            number = chapter.removesuffix(".0")
            out += ["", f"### {number} {title}", "", "| statement | asks | code | tests |", "|---|---|---|---|", *rows]
    return "\n".join(out) + "\n"


def problems(root: Path, documents: Sequence[Document]) -> list[str]:
    """Everything that `--check` objects to, a line each."""
    tags = find_tags(root)
    covered = coverage(documents, tags)
    found = unknown_tags(documents, tags) + missing(covered)
    path = root / REPORT
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    if current != report(documents, covered):
        found.append(f"{REPORT} is out of date: run python tools/conformance.py --write")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 1 when `--check` has something to object to."""
    parser = argparse.ArgumentParser(description="Statements of the MQTT specifications: in the code, and tested.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help=f"write {REPORT}")
    what.add_argument("--check", action="store_true", help="exit 1 when the table is stale or something is missing")
    what.add_argument("--table", action="store_true", help="print every statement with its places")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the project's root")
    options = parser.parse_args(argv)
    root: Path = options.root
    documents = read_documents(root)
    lines: list[str] = []
    if options.check:
        lines = problems(root, documents)
    elif options.table:
        lines = statements(root).splitlines()
    else:
        (root / REPORT).write_text(report(documents, coverage(documents, find_tags(root))), encoding="utf-8")
    for line in lines:
        print(line)
    if options.check and lines:
        print(f"conformance: {len(lines)} problem{'s' if len(lines) > 1 else ''}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
