"""What a batch has written aside and not published yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Staged:
    """Files of a batch, and what they come to."""

    files: list[tuple[str, str, str]] = field(default_factory=list)
    """Table, day (date=2026-11-21), and the file's place under the output folder."""
    rows: Counter[str] = field(default_factory=Counter)
    """By table."""
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Dead letters by table and reason."""
    read: int = 0
    """Publishes."""
