"""Lists what is in the tries of topic filters: a broker never has to."""

from __future__ import annotations

from canopy_mqtt.core.topics.trie import CompactTrie, Node, Trie


def filters_of(trie: Trie) -> list[str]:
    """All filters of a trie, in no order."""
    if isinstance(trie, CompactTrie):
        return list(trie._filters)
    names = list(trie._exact)
    stack = [trie._root]
    while stack:
        node = stack.pop()
        below = [node.hash, node.entry, node.plus, *(node.children or {}).values()]
        names += [each.topic_filter for each in below if each is not None and not isinstance(each, Node)]
        stack += [each for each in below if isinstance(each, Node)]
    return names
