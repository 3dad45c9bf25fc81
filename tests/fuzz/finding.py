"""What a fuzz target reports: the input, and what it did."""

from __future__ import annotations


class Finding(Exception):
    """An input that breaks a promise. The message holds all that is needed to see it again."""

    def __init__(self, what: str, **facts: object) -> None:
        shown = "\n".join(f"  {name} = {value!r}" for name, value in facts.items())
        super().__init__(f"{what}\n{shown}")
