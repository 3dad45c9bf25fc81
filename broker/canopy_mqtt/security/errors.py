"""The error of all files that the security room reads."""

from __future__ import annotations


class SecurityError(Exception):
    """A file or value cannot be used. The text is one line with file, line and remedy, and repeats no secret. Nothing
    has changed.
    """
