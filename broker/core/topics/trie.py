"""The topic-filter trie: its two layouts under one interface.

Owns the choice of layout, `create`. Each layout's file has its promises:
`trie_nodes` (a node for each prefix) and `trie_compact` (tables without nodes).

An unknown layout is a ValueError; the settings refuse it before.
"""

from __future__ import annotations

from typing import Final

from broker.core.topics.trie_base import Trie
from broker.core.topics.trie_compact import CompactTrie
from broker.core.topics.trie_nodes import NodeTrie

NODES: Final = "nodes"
COMPACT: Final = "compact"
LAYOUTS: Final[tuple[str, ...]] = (COMPACT, NODES)


def create(layout: str) -> Trie:
    """An empty trie of the layout of that name, one of `LAYOUTS`.

    Raises:
        ValueError: there is no such layout.
    """
    if layout == NODES:
        return NodeTrie()
    if layout == COMPACT:
        return CompactTrie()
    raise ValueError(f"no trie layout {layout!r}: there are {', '.join(LAYOUTS)}")
