"""The memory of subscriptions: the bytes counted for a topic filter and its subscribers.

The figures are upper bounds of what was measured in a compiled broker, so a limit on their sum is a limit on the growth
of the process. A filter's levels are by far the largest part: 128 levels of one character are 256 bytes on the wire and
up to 40 KB in the trie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

SUBSCRIPTION_BYTES: Final = 256
"""A `Subscription`, its place in its session's dict and in the list of its filter; without its spelling."""

SUB_QUEUE_BYTES: Final = 1_024
"""The queue of a subscription that has terms of its own, with the order of what waits there."""

GROUP_BYTES: Final = 768
"""A share group with its lists, and the set in which its filter keeps groups; without its name."""

ENTRY_BYTES: Final = 192
"""A `FilterEntry` and its place in a dict of the trie; without its spelling."""

FILTER_NODE_BYTES: Final = 352
"""A node of the trie with a dict for one child and the string of its level."""

PREFIX_BYTES: Final = 256
"""A prefix in the compact layout: its record and its place in the table; without its spelling."""

SHAPE_BYTES: Final = 128
"""Another shape that follows a prefix in the compact layout."""


_is_ascii: Final = str.isascii  # looked up by its name, it would take as long as all else about a new filter's size


def text_bytes(text: str) -> i64:
    """Bytes that the characters of a string take: one each in ASCII, up to four each as soon as one is not ASCII."""
    size: i64 = len(text)
    return size if size == 0 or _is_ascii(text) else 4 * size


def subscription_bytes(name: str, group_name: str) -> i64:
    """What is counted for a subscription beside its filter. `name` is as the client wrote it."""
    size: i64 = SUBSCRIPTION_BYTES + text_bytes(name)
    if group_name:
        size += GROUP_BYTES + text_bytes(group_name)
    return size


def entry_bytes(topic_filter: str) -> i64:
    """What is counted for a filter without its nodes: its characters twice where it has wildcards."""
    return spelt_entry_bytes(text_bytes(topic_filter), "+" in topic_filter or "#" in topic_filter)


def spelt_entry_bytes(text: i64, wildcards: bool) -> i64:
    """`entry_bytes` of a filter whose characters take `text` bytes."""
    if wildcards:
        return ENTRY_BYTES + 2 * text
    return ENTRY_BYTES + text


def most_subscription_bytes(length: i64) -> i64:
    """No subscription to a name of so many characters counts for more beside its filter."""
    return SUBSCRIPTION_BYTES + GROUP_BYTES + 8 * length
