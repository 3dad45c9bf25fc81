"""Maps topics between local and upstream names, and local filters to upstream ones.

Owns the two prefixes of a link: the local topic `local` + x is `remote` + x upstream. A prefix is empty or whole levels
that end in "/". Topics outside the prefix do not cross the link.

Promises: `local_topic` reverses `remote_topic`; `asked` returns exactly the part of a filter that is below the local
prefix and within the roots, as the upstream names it; `$SYS` is never included, because each broker has its own.

Filters and topics are already validated.
"""

from __future__ import annotations

from collections.abc import Sequence

from canopy_mqtt.core.codec.topic_names import MAX_BYTES, covers, intersect, is_system, matches


class Mapping:
    """The names of one link. `roots`: local filters outside of which nothing is asked for; empty: no restriction."""

    def __init__(self, local: str = "", remote: str = "", roots: Sequence[str] = ()) -> None:
        self.local = local
        self.remote = remote
        self.roots = tuple(roots)
        self.plain = local == remote
        """True if every topic has the same name on both sides (and, without prefixes, all of them cross)."""
        self._local = local.encode()
        self._remote = remote.encode()
        self._levels = local.split("/")[:-1]

    def alike(self, other: Mapping) -> bool:
        """Return whether topics have the same names with the other one."""
        return self.local == other.local and self.remote == other.remote

    def remote_topic(self, topic: bytes) -> bytes | None:
        """Return the upstream name of a local topic; None: it has no name there."""
        if not topic.startswith(self._local):
            return None
        return _named(self._remote + topic[len(self._local) :])

    def local_topic(self, topic: bytes) -> bytes | None:
        """Return the local name of an upstream topic; None: it has no name here, or one that is the broker's own."""
        if not topic.startswith(self._remote):
            return None
        name = _named(self._local + topic[len(self._remote) :])
        return None if name is None or is_system(name) else name

    def within_roots(self, topic: bytes) -> bool:
        name = topic.decode()
        return any(matches(root, name) for root in self.roots)

    def remote_filter(self, topic_filter: str) -> str | None:
        """The upstream filter for what a local one matches under the local prefix; None: nothing there."""
        levels = topic_filter.split("/")
        at = 0
        for wanted in self._levels:
            if at >= len(levels):
                return None
            level = levels[at]
            if level in ("+", "#") and at == 0 and wanted.startswith("$"):
                return None  # [MQTT-4.7.2-1]
            if level == "#":
                return _filter(self.remote + "#")
            if level not in ("+", wanted):
                return None
            at += 1
        rest = levels[at:]
        return _filter(self.remote + "/".join(rest)) if rest else None

    def asked(self, topic_filter: str) -> list[str]:
        """The upstream filters, each once, for what a local one matches within the roots."""
        if is_system(topic_filter.encode()):
            return []
        parts = [topic_filter]
        if self.roots:
            parts = _clip(topic_filter, self.roots)
        found: dict[str, None] = {}
        for part in parts:
            name = self.remote_filter(part)
            if name is not None:
                found[name] = None
        return list(found)


def _clip(topic_filter: str, roots: Sequence[str]) -> list[str]:
    """Return the parts of a filter that lie within some roots; no part lies within another."""
    parts: list[str] = []
    for root in roots:
        part = intersect(topic_filter, root)
        if part is not None and not any(covers(other, part) for other in parts):
            parts = [other for other in parts if not covers(part, other)]
            parts.append(part)
    return parts


def _filter(topic_filter: str) -> str | None:
    """Return a topic filter, or None if the protocol has none so long."""
    return topic_filter if len(topic_filter) * 4 <= MAX_BYTES or len(topic_filter.encode()) <= MAX_BYTES else None


def _named(topic: bytes) -> bytes | None:
    """Return a topic name, or None if the protocol has no such name: empty, or too long."""
    return topic if 0 < len(topic) <= MAX_BYTES else None
