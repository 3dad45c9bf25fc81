"""Topic filters that have numbers and no subscribers here: which of them match a topic (`node.Filters`).

Owns a trie of its own, and remembers the answers until a filter comes or goes.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.core.topics.subscription import FilterEntry
from canopy_mqtt.core.topics.trie import create
from canopy_mqtt.store.shared.calls import ChangedFilter

MAX_REMEMBERED: Final = 16_384
"""Topics whose answers are remembered; with one more all are forgotten."""

MAX_TOPIC: Final = 256
"""Characters of a topic name whose answer is remembered, at most."""


class NumberedFilters:
    """The filters of all durable sessions. A shared subscription, `$share/name/filter`, matches nothing."""

    def __init__(self) -> None:
        self._trie = create("nodes")
        self._numbers: dict[FilterEntry, int] = {}
        self._answers: dict[str, tuple[int, ...]] = {}
        self.max_remembered = MAX_REMEMBERED

    def change(self, changed: ChangedFilter) -> None:
        """Add a filter, or remove it. A filter that is there keeps its place, with this number."""
        number, name, gone, _ = changed
        if name.startswith(SHARE_PREFIX):
            return
        if not gone:
            self._numbers[self._trie.insert(name)] = number
        else:
            entry = self._trie.find(name)
            if entry is None:
                return
            del self._numbers[entry]
            self._trie.remove(entry)
        self._answers = {}

    def match(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of the filters that match a topic name, in no order."""
        found = self._answers.get(topic)
        if found is None:
            found = tuple([self._numbers[entry] for entry in self._trie.match(topic)])
            if len(topic) <= MAX_TOPIC:
                if len(self._answers) >= self.max_remembered:
                    self._answers = {}
                self._answers[topic] = found
        return found
