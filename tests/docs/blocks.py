"""The blocks of code of the pages, and the command lines in them, as the tests of the pages need them.

A page is README, CONTRIBUTING, SECURITY or a file of docs/. Each block is fenced and names its language.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from markdown_it import MarkdownIt

from canopy_mqtt.command.cli import app

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = (*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *ROOT.glob("docs/*.md"))
PAGES: Final = {file.stem: file.read_text(encoding="utf-8") for file in sorted(FILES)}
"""The text of each page, by its name."""

ENDS: Final = {";", "&&", "||", "|", "&", "(", ")"}
"""What ends a command in a line of the shell."""

COMMAND: Final[Any] = typer.main.get_command(app)
"""`canopy`."""

MISUSED: Final[Any] = typer.BadParameter.__base__
"""What Typer raises for a command line that it does not take."""


@dataclass(frozen=True)
class Block:
    """A block of a page: where it begins, its language (empty: it has none), its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page, those that are only indented too."""
    # What stands within lines is not needed, and takes most of the time.
    for token in MarkdownIt("commonmark").disable("inline").parse(text):
        if token.type in ("fence", "code_block") and token.map is not None:
            language = token.info.split()[0] if token.info.strip() else ""
            yield Block(page, token.map[0] + 1, language, token.content)


def inline(text: str) -> Iterator[str]:
    """What stands in a page's sentences and tables as code."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content


BLOCKS: Final = tuple(block for page, text in PAGES.items() for block in blocks(page, text))


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script: words, without redirections and assignments before them.

    Raises:
        ValueError: a quotation mark is not closed.
    """
    for line in script.replace("\\\n", " ").splitlines():
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        given = iter([*lexer, ";"])
        for word in given:
            if word in ENDS:
                if words:
                    yield words
                words = []
            elif word in (">", ">>", "<", "<<"):
                next(given)
            elif words or not re.match(r"\w+=", word):
                words.append(word)


def refused(words: list[str], *, whole: bool = True) -> str:
    """What `canopy` would say against a command line; empty where it would take it. Files need not be there.

    `words` begins with what comes after `canopy`. Not `whole`: what is missing may be missing.
    """
    command = COMMAND
    context: Any = command.context_class(command, info_name="canopy")
    try:
        while True:
            values, words, _ = command.make_parser(context).parse_args(list(words))
            for parameter in command.params:
                parameter.callback = None  # they look at files, or act
                _take(parameter, context, values, whole)
            if not words or not hasattr(command, "commands"):
                return f"too much: {words}" if words else ""
            name, command, words = command.resolve_command(context, words)
            context = command.context_class(command, info_name=name, parent=context)
    except MISUSED as error:
        return "" if not whole and "requires an argument" in str(error) else str(error)


def _take(parameter: Any, context: Any, values: dict[str, Any], whole: bool) -> None:
    try:
        parameter.process_value(context, parameter.consume_value(context, values)[0])
    except MISUSED as error:
        if "does not exist" not in str(error) and (whole or "Missing parameter" not in str(error)):
            raise
