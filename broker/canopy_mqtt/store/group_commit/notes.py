"""The open group's notes of retained messages and of broadcasts."""

from __future__ import annotations

from mypy_extensions import i64

from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.store.group_commit.batch import Batch, of_broadcasts, of_retained


class RetainedNotes:
    """The last message of each topic that the group sets; None: it is cleared."""

    def __init__(self) -> None:
        self._changed: dict[str, Message | None] = {}

    def any(self) -> bool:
        return len(self._changed) > 0

    def put(self, topic: str, message: Message | None) -> i64:
        """Note a change, and return by how many bytes the group shrinks, since an earlier one is not written."""
        earlier = self._changed.get(topic)
        self._changed[topic] = message
        return 0 if earlier is None else earlier.size

    def add_to(self, batch: Batch, offset: float) -> None:
        of_retained(batch, self._changed, offset)

    def clear(self) -> None:
        """Begin anew, since the batch is made."""
        self._changed = {}


class BroadcastNotes:
    """Messages for very many: which begin, which sessions had them or need them not, which are over."""

    def __init__(self) -> None:
        # The numbers of all that are under way, whichever group has them.
        self.under_way: dict[int, None] = {}
        self._begun: dict[int, Message] = {}
        self._passed: list[tuple[int, int]] = []
        self._over: list[int] = []

    def begin(self, number: int, message: Message) -> None:
        self._begun[number] = message
        self.under_way[number] = None

    def came_later(self, session: int) -> None:
        """Note a new session: none of the messages that are under way is for it."""
        for number in self.under_way:
            self._passed.append((number, session))

    def passed(self, number: int, session: int) -> None:
        self._passed.append((number, session))

    def over(self, number: int) -> None:
        self.under_way.pop(number, None)
        self._over.append(number)

    def add_to(self, batch: Batch, offset: float) -> None:
        of_broadcasts(batch, self._begun, offset)
        batch.passed = self._passed
        batch.broadcasts_over = self._over

    def clear(self) -> None:
        """Begin anew, since the batch is made."""
        self._begun = {}
        self._passed = []
        self._over = []
