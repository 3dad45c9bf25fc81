"""Topic filters that have numbers and no subscribers here: which of them match a topic.

Owns a trie of its own, and remembers the answers until a filter comes or goes.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.core.topics.subscription import FilterEntry
from canopy_mqtt.core.topics.trie import create

MAX_REMEMBERED: Final = 16_384
"""Topics whose answers are remembered; with one more all are forgotten."""

MAX_TOPIC: Final = 256
"""Bytes of a topic name whose answer is remembered, at most."""


class NumberedFilters:
    """Filters by number. A shared subscription, `$share/name/filter`, matches nothing."""

    def __init__(self) -> None:
        self._trie = create("nodes")
        self._numbers: dict[FilterEntry, int] = {}
        self._answers: dict[bytes, tuple[int, ...]] = {}
        self.max_remembered = MAX_REMEMBERED

    def __len__(self) -> int:
        """Return how many filters there are."""
        return len(self._numbers)

    def change(self, number: int, topic_filter: str, gone: bool) -> None:
        """Add a filter, or remove it. A filter that is there keeps its place, with this number."""
        if topic_filter.startswith(SHARE_PREFIX):
            return
        if not gone:
            self._numbers[self._trie.insert(topic_filter)] = number
        else:
            entry = self._trie.find(topic_filter)
            if entry is None:
                return
            del self._numbers[entry]
            self._trie.remove(entry)
        self._answers = {}

    def match(self, topic: bytes) -> tuple[int, ...]:
        """Return the numbers of the filters that match a topic name (UTF-8), in no order."""
        found = self._answers.get(topic)
        if found is None:
            found = tuple([self._numbers[entry] for entry in self._trie.match(topic.decode())])
            if len(topic) <= MAX_TOPIC:
                if len(self._answers) >= self.max_remembered:
                    self._answers = {}
                self._answers[topic] = found
        return found
