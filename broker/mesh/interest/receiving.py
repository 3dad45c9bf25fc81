"""What another node's clients want, as that node declares it: the other side of the interest tables.

Owns `RemoteInterest`: the keys that a node has declared, and what of them stands in this node's trie, by way of a
`Sink`.

Promises: a node's keys are what it has declared, or wider; what its node still wants when it begins anew has no gap. A
version is confirmed when all up to it stands in the sink. Messages are looked at when they come, so that a bad one is a
ProtocolFault there; they are applied by `turn`, so many keys at a time. A node has one message waiting here at most,
and `most` keys and `most_bytes` of them, or twice that while something is exchanged for something else.
"""

from __future__ import annotations

from collections.abc import Iterable

from mypy_extensions import mypyc_attr

from broker.core.codec.topic_names import parse_shared
from broker.mesh.bus import INTEREST, Bus, ProtocolFault
from broker.mesh.interest import wire
from broker.mesh.interest.wire import ABSENT, AWAY, DECLARE_BYTES, DECLARE_KEYS, MASK, WANTED, Message, is_group, mark


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """What a node wants, in this node's trie: the subscriptions of the node's session."""

    def subscribe(self, topic_filter: str) -> None:
        """The node wants a topic filter, which it did not."""

    def unsubscribe(self, topic_filter: str) -> None:
        """And no more."""

    def put_group(self, name: str, topic_filter: str, connected: int, away: bool) -> None:
        """So many members of a share group are connected there, 255 standing for more. `away`: none is, but some exist.

        0 and not `away`: the group is no more.
        """


class RemoteInterest:
    """What one other node wants. `most`, `most_bytes`: keys that are taken of it, and their bytes in UTF-8.

    `work`: keys that were applied or looked at, so far. `count`, `bytes`: what it has declared. `differed`: how often
    its digest was another than ours.
    """

    def __init__(self, bus: Bus, node: str, sink: Sink, most: int, most_bytes: int) -> None:
        self.node = node
        self.sink = sink
        self.most = most
        self.most_bytes = most_bytes
        self.work = 0
        self.bytes = 0
        self.differed = 0
        self.complete = False
        """All that the node wanted when it declared its full set stands in the sink."""
        self._bus = bus
        # What the node has declared since its last full set began; and what it declared before, and has not named
        # since. All of both stands in the sink.
        self._held: dict[str, int] = {}
        self._stale: dict[str, int] = {}
        self._marks = 0
        # The message that is applied, and how far. `_joining`: what is held becomes stale before.
        self._message: Message | None = None
        self._at = 0
        self._joining = False
        self._begun = False
        self._forgetting = False

    @property
    def count(self) -> int:
        """How many keys the node has declared."""
        return len(self._held)

    @property
    def busy(self) -> bool:
        """Whether `turn` has something to do."""
        return self._message is not None or self._forgetting

    @property
    def empty(self) -> bool:
        """Whether nothing of the node stands in the sink."""
        return not self._held and not self._stale

    def restore(self, keys: Iterable[str]) -> None:
        """The node has declared these before, and they stand in the sink: of groups, that all members are away."""
        for key in keys:
            state = AWAY if is_group(key) else WANTED
            self._held[key] = state
            self._count(key, ABSENT, state)

    def joined(self) -> None:
        """The node is there, and declares all anew: what it declared before stands until it has done so."""
        self._message = None
        self._begun = self.complete = False
        self._bus.send(self.node, INTEREST, wire.hello(self.most, self.most_bytes))

    def left(self) -> None:
        """The node is gone. What it wants stands until it is back, or `forget`."""
        self._message = None
        self._begun = self.complete = False

    def expect(self, topic_filters: Iterable[str]) -> None:
        """The node wants these, as another one says: they stand until it has declared its full set itself."""
        if self.complete or self._forgetting:
            return
        for key in topic_filters:
            if len(self._held) + len(self._stale) >= self.most:
                return
            if key not in self._held and key not in self._stale:
                self._stale[key] = WANTED
                self.sink.subscribe(key)

    def forget(self) -> None:
        """The node is gone for good: take all of it out of the sink, in turns."""
        self._message = None
        self._begun = False
        self._forgetting = not self.empty

    def received(self, message: Message) -> None:
        """The node says DECLARE or DIGEST. Raises ProtocolFault."""
        if self._message is not None:
            raise ProtocolFault("a message of the interest before the last one was answered")
        if message.kind == wire.DECLARE:
            if not self._begun and not message.begins:
                raise ProtocolFault("a DECLARE before the full set began")
            if message.begins:
                # Whatever it declared before, with a bound of then.
                self._begin()
            elif len(self._held) > 2 * self.most + DECLARE_KEYS or self.bytes > 2 * self.most_bytes + DECLARE_BYTES:
                raise ProtocolFault(f"{len(self._held)} topic filters of {self.bytes} bytes: more than was agreed to")
        elif message.kind == wire.DIGEST:
            if not self._begun:
                raise ProtocolFault("a DIGEST before the full set began")
            if len(self._held) > self.most or self.bytes > self.most_bytes:
                raise ProtocolFault(f"{len(self._held)} topic filters of {self.bytes} bytes: more than was agreed to")
        else:
            raise ProtocolFault(f"a message of the interest of kind {message.kind} for the one who hears")
        self._message = message
        self._at = 0

    def turn(self, units: int) -> int:
        """Apply so many keys at most. How many it was."""
        left = units
        while left > 0 and self.busy:
            left -= 1
            message = self._message
            if self._joining or self._forgetting:
                self._turn_stale()
            elif message is None:
                break
            elif self._at < len(message.keys):
                self._apply(message.keys[self._at], message.states[self._at])
                self._at += 1
            elif message.version > 0 and self._stale:
                key, state = self._stale.popitem()
                self._tell(key, state, ABSENT)
            else:
                self._message = None
                self._answer(message)
        self.work += units - left
        return units - left

    def _begin(self) -> None:
        self._begun = True
        self._forgetting = False
        self._joining = bool(self._stale)
        if not self._joining:
            self._stale = self._held
            self._held = {}
            self._marks = 0
            self.bytes = 0

    def _turn_stale(self) -> None:
        # One key of what is held becomes stale, or, when all are, one of these goes.
        if self._held:
            key, state = self._held.popitem()
            self._stale[key] = state
            self._count(key, state, ABSENT)
        elif self._forgetting and self._stale:
            key, state = self._stale.popitem()
            self._tell(key, state, ABSENT)
        else:
            self._joining = False
            self._forgetting = False

    def _apply(self, key: str, state: int) -> None:
        held = self._held.get(key, ABSENT)
        before = self._stale.pop(key, ABSENT) if self._stale else ABSENT
        if state == ABSENT:
            self._held.pop(key, ABSENT)
        else:
            self._held[key] = state
        self._count(key, held, state)
        self._tell(key, before if held == ABSENT else held, state)

    def _count(self, key: str, before: int, after: int) -> None:
        if before == after:
            return
        if before != ABSENT:
            self._marks -= mark(key, before)
            self.bytes -= len(key.encode())
        if after != ABSENT:
            self._marks += mark(key, after)
            self.bytes += len(key.encode())
        self._marks &= MASK

    def _tell(self, key: str, before: int, after: int) -> None:
        if before == after:
            return
        if is_group(key):
            name, topic_filter = parse_shared(key)
            away = after == AWAY
            self.sink.put_group(name, topic_filter, 0 if away else after, away)
        elif after == ABSENT:
            self.sink.unsubscribe(key)
        else:
            self.sink.subscribe(key)

    def _answer(self, message: Message) -> None:
        if message.kind == wire.DECLARE:
            self.complete = self.complete or message.version > 0
            self._bus.send(self.node, INTEREST, wire.confirm(message.version))
            return
        same = message.most == len(self._held) and message.digest == self._marks and not self._stale
        if not same:
            self.differed += 1
        self._bus.send(self.node, INTEREST, wire.answer(same))
