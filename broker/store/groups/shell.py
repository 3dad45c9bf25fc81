"""The interface through which a journal tells the writer of its groups."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mypy_extensions import mypyc_attr

from broker.core.persistence.journal import Fetch


@mypyc_attr(allow_interpreted_subclasses=True)
class Shell(ABC):
    """Who gives the groups their time: the store, which knows the event loop."""

    @abstractmethod
    def begun(self) -> None:
        """A group got its first note."""

    @abstractmethod
    def fetch(self, session: int, fetch: Fetch) -> None:
        """Something of the session with that number is to be read."""

    @abstractmethod
    def eased(self) -> None:
        """Deliveries are over: `GroupJournal.safe` may have more to say, in a turn of the event loop of its own."""

    @abstractmethod
    def due(self) -> None:
        """The group has its size, or once more of it, or nothing is left of it: it need not wait for its window. Not
        to be ended in here, in the middle of a call of the core, but in a turn of the event loop of its own."""
