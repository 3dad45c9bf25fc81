"""What ends a command of `canopy load` with words and no traceback."""

from __future__ import annotations


class LoadError(Exception):
    """Something that was foreseen: the message is one line, or several, for people."""

    code = 1
    """What the command ends with."""


class Misuse(LoadError):
    """The scenario or the command line is wrong."""

    code = 2
