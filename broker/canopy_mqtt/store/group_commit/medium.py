"""The interface to which a store writes its groups, and from which it reads: a file, or a database."""

from __future__ import annotations

from abc import ABC, abstractmethod

from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.store.group_commit.batch import Batch


class Medium(ABC):
    """Does one thing after another, and tells `GroupCommitter` and `Fetches` how each came out, on the event loop."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Begin to write a group; `GroupCommitter.written` or `GroupCommitter.failed` is to be called then."""

    @abstractmethod
    def read(self, fetch: Fetch, session: int) -> None:
        """Begin to read, after the group that is being written; one of the three of `Fetches` is to be called then."""

    @abstractmethod
    def discard(self, numbers: list[int]) -> None:
        """Remove deliveries that cannot be used, when there is time."""

    @abstractmethod
    def stalled(self) -> str:
        """Return the line that tells an operator of a write that takes too long."""
