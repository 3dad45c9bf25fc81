"""The errors that end a command of `canopy load` with one line for people and no traceback."""

from __future__ import annotations


class LoadError(Exception):
    """Something that was foreseen: the message is one line, or several, for people."""

    code = 1
    """The command's exit code."""


class Misuse(LoadError):
    """The scenario or the command line is wrong."""

    code = 2
