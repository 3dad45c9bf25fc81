"""The code that all commands of `canopy` share: standard streams, failures, exit codes, and the look of help.

Owns `fail` and `foreseen`: a foreseen failure is a line for people, never a traceback; and `Group`, the help of a group
of commands.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperGroup

FAILED: Final = 1
MISUSED: Final = 2
"""Exit codes: a failure, or a wrong command line."""


MAX_SENTENCE: Final = 1_000
"""Characters of a command's description in a list of commands: longer than any sentence."""

HELP: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""The options for help, and its width on a wide terminal."""


class Group(TyperGroup):
    """A group of commands, listed with a whole sentence each, whose options come before the command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. If it got an option of the group, say where to put it."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # By its name: from version to version it is click's class, or typer's copy of it.
            option = error.option_name if type(error).__name__ == "NoSuchOption" else None  # type: ignore[attr-defined]
            if not any(option in each.opts for each in self.params):
                raise
            place = f"{ctx.command_path} {option} … {ctx.invoked_subcommand}"
            ctx.fail(f"{option} is an option of `{ctx.command_path}`; it comes before the command: {place}")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(MAX_SENTENCE))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class Anywhere(Group):
    """A group whose options may also follow the command, unless the command has one of that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes = {
            name: not getattr(each, "is_flag", False)
            for each in self.params
            for name in each.opts
            if name.startswith("--")
        }
        for name in _options(self):
            takes.pop(name, None)
        front: list[str] = []
        rest: list[str] = []
        given = iter(args)
        for word in given:
            name, equals, _ = word.partition("=")
            if word == "--":
                rest += [word, *given]
            elif name in takes:
                front.append(word)
                if takes[name] and not equals:
                    front += [value for value in [next(given, None)] if value is not None]
            else:
                rest.append(word)
        parsed: list[str] = super().parse_args(ctx, [*front, *rest])
        return parsed


def _options(group: Any) -> set[str]:
    found = {"--help"}
    for command in group.commands.values():
        found |= {name for each in command.params for name in each.opts}
        if hasattr(command, "commands"):
            found |= _options(command)
    return found


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a message; every line of it begins with the command's name."""
    for line in text.splitlines():
        typer.echo(f"canopy: {line}", err=True)
    raise typer.Exit(code)


def foreseen(command: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """Decorate a command: failures of one kind, and a reader that has gone, end it in order."""

    @wraps(command)
    def guarded(*arguments: Any, **flags: Any) -> Any:
        try:
            return command(*arguments, **flags)
        except error as failure:
            fail(str(failure))
        except BrokenPipeError:
            # Whoever read has had enough, and Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None

    return guarded


@contextmanager
def system_failures() -> Iterator[None]:
    """End the process with one line where the system refuses a file, or the output's disk is full.

    Any step of a command may be the first to touch a folder that its user may not enter. Other errors of the system are
    faults of the program, and keep their traceback.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        place = "output" if error.filename is None else error.filename
        print(f"canopy: {place}: {error.strerror}", file=sys.stderr)
        if error.filename is None:
            # Python would write the rest of it at its end, and complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def open_missing_streams() -> None:
    """Open /dev/null in place of each closed standard stream. Call it before any other file is opened."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def escape_what_cannot_be_written() -> None:
    """Write characters that the locale's encoding lacks as escapes, as Python does on standard error: names of clients
    have any character."""
    out = sys.stdout
    # In UTF-8, what Python calls `surrogateescape` writes names of files as they are.
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or codecs.lookup(out.encoding).name != "utf-8"):
        out.reconfigure(errors="backslashreplace")
