"""The interface to which a store writes its groups, and from which it reads: a file, or a database."""

from __future__ import annotations

from abc import ABC, abstractmethod

from broker.core.persistence.journal import Fetch
from broker.store.groups.group import Batch


class Medium(ABC):
    """Does one thing after another, and tells `Groups` and `Fetches` how each came out, on the event loop."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Begin to write a group; `Groups.written` or `Groups.failed` is to be called then."""

    @abstractmethod
    def read(self, fetch: Fetch, session: int) -> None:
        """Begin to read, after the group that is being written; one of the three of `Fetches` is to be called then."""

    @abstractmethod
    def discard(self, numbers: list[int]) -> None:
        """Have deliveries that cannot be used go, when there is time."""

    @abstractmethod
    def stalled(self) -> str:
        """What an operator is told of a write that takes too long, in one line."""
