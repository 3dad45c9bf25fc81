"""The interface of the topic-filter index, for both layouts.

Owns the names that the router and the match cache use. The layouts are `trie_nodes.NodeTrie` and
`trie_compact.CompactTrie`; `trie.create` makes one by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.topics.subscription import FilterEntry

if TYPE_CHECKING:
    from mypy_extensions import i64


class Trie:
    """An index of topic filters that finds those which match a topic name.

    Filters and topics are taken as they come: `topics.validate_filter` and `validate_topic` are the caller's. A shared
    subscription's filter comes without its `$share/name/`.
    """

    def __init__(self) -> None:
        # Look-ups made by `match` since the start: what its cost is made of, for tests and benchmarks.
        self.probes: int = 0
        # What is counted for its filters (`filter_bytes`): entries and spellings, and nodes or prefixes.
        self.bytes: i64 = 0
        # Filters that came in since the start.
        self.made: i64 = 0

    def insert(self, topic_filter: str) -> FilterEntry:
        """The entry of a filter, created if it does not exist."""
        raise NotImplementedError

    def find(self, topic_filter: str) -> FilterEntry | None:
        """The entry of a filter, or None. The filter is looked up as a string, not matched."""
        raise NotImplementedError

    def remove(self, topic_filter: str) -> bool:
        """Take a filter out, with everything that only it needed, and retire its entry; False when it is not there.

        Raises:
            ValueError: somebody still listens (see `FilterEntry.empty`). Nothing has changed then.
        """
        raise NotImplementedError

    def cost(self, topic_filter: str) -> i64:
        """By how much `bytes` may grow with a filter at most: what it takes where it shares nothing with others.

        The entry of a filter that is there has it as well.
        """
        raise NotImplementedError

    def most_cost(self, length: i64) -> i64:
        """The maximum cost of a filter of this many characters."""
        raise NotImplementedError

    def match(self, topic: str) -> list[FilterEntry]:
        """The entries of all filters that match a topic name, each once, in no order; a new list each time.

        Filters that begin with a wildcard do not see topics that begin with `$` [MQTT-4.7.2-1].
        """
        raise NotImplementedError

    def filters(self) -> list[str]:
        """All filters, in no order. Costs what it returns: for the admin API and for tests."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many filters there are."""
        raise NotImplementedError

    @property
    def node_count(self) -> int:
        """How many records the layout keeps beside the entries; what an empty trie has when all filters are gone."""
        raise NotImplementedError
