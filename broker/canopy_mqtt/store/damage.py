"""Counts the rows that a store could not read back, by kind, and names the first ones."""

from __future__ import annotations

from typing import Final, NamedTuple

NAMED: Final = 20
"""Damaged rows that are named; further ones are counted."""

LONGEST: Final = 256
"""Characters of a client identifier or topic, which may be any text in a damaged row."""


class Damage(NamedTuple):
    """A row that no broker wrote, or in which a byte has changed. Empty fields: not known."""

    what: str
    """The table that it is in, or `will`."""
    client_id: str
    topic: str
    why: str


class Damages:
    """The damaged rows of one reading."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.named: list[Damage] = []
        # Numbers of deliveries whose rows were read while the broker runs and hold nothing that can be used.
        self.deliveries: list[int] = []

    def add(self, what: str, client_id: object, topic: object, why: str) -> None:
        """Count a damaged row. Client identifier and topic may be of any type."""
        self.counts[what] = self.counts.get(what, 0) + 1
        if len(self.named) < NAMED:
            self.named.append(Damage(what, _text(client_id), _text(topic), why[:LONGEST]))

    def of(self, client_id: str) -> None:
        self.named = [each._replace(client_id=client_id) for each in self.named]

    def told(self) -> str:
        return ", ".join(f"{count:,} of {what}" for what, count in sorted(self.counts.items()))


def _text(value: object) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""
