"""The interface through which a journal tells the writer of its groups."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.queues.disk_queue import Fetch


@mypyc_attr(allow_interpreted_subclasses=True)
class JournalListener(ABC):
    """Hears from a journal when its group may or must end: the committer, which knows the event loop."""

    @abstractmethod
    def begun(self) -> None:
        """Called when a group got its first note."""

    @abstractmethod
    def fetch(self, session: int, fetch: Fetch) -> None:
        """Called when messages of the session with that number have to be read."""

    @abstractmethod
    def eased(self) -> None:
        """Called when deliveries are over: `GroupJournal.safe` may have changed. To be acted on in a later turn of the
        event loop."""

    @abstractmethod
    def due(self) -> None:
        """Called when the group has its size, or once more of it, or nothing is left of it: it need not wait for its
        window. End it in a later turn of the event loop, not in here, in the middle of a call of the core."""
