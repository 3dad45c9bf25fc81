"""What is wrong with what the security room reads: one error for all of its files."""

from __future__ import annotations


class SecurityError(Exception):
    """Why something cannot be used, in one line: file, line, remedy. It repeats no secret. Nothing has changed."""
