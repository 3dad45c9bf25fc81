"""The wills of this node's clients, as the other nodes are told of them.

Owns what was told, and what each node has still to be told: names of clients, each once however often its will
changed, so that a node is told what is so when its turn comes. Promises: at most `WINDOW` bytes are on the way to a
node that it has not taken, but for one message; what a store keeps is told to nobody: that publishes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broker.core.codec.packets import Will
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.bus import WILLS, Bus
from broker.mesh.wills.kept import KeptWill
from broker.mesh.wills.messages import (
    MILLISECONDS,
    MOST,
    Ended,
    Hello,
    Message,
    Over,
    Stops,
    Tell,
    Told,
    Whole,
    encode,
    encode_will,
)
from broker.store.groups.principals import Principals

WINDOW: Final = 262_144
"""Bytes on their way to a node that it has not taken, but for one message."""

TURN_BYTES: Final = 32_768
"""Bytes that are told to a node in one turn: about a hundred wills, and a millisecond or two where they are read."""

ITEM: Final = 32
"""Bytes that a will takes besides its data and its client's name, about."""


class Own:
    """The will of a client here."""

    __slots__ = ("serial", "session", "will")

    def __init__(self, serial: int, session: Session, will: Will) -> None:
        self.serial = serial
        self.session = session
        self.will = will


class Telling:
    """What one node has still to be told."""

    def __init__(self, wills: Iterable[str], over: Iterable[KeptWill]) -> None:
        # The clients that had wills when the node came, and how many of them it was told of.
        self._first = list(wills)
        self._at = 0
        # Those whose wills have changed since, each once.
        self._changed: deque[str] = deque()
        self._named: set[str] = set()
        self.over = deque(over)
        self.whole = False
        """The node knows that it was told of all that there were when it came."""
        self.unread = 0

    @property
    def first_left(self) -> bool:
        """Whether some of those that there were when it came are still to be told."""
        return self._at < len(self._first)

    @property
    def wills(self) -> bool:
        """Whether wills are to be told."""
        return self.first_left or bool(self._changed)

    @property
    def busy(self) -> bool:
        """Whether something is to be told, and may be now."""
        return self.unread < WINDOW and bool(self.wills or self.over or not self.whole)

    def add(self, client_id: str) -> None:
        """A client's will has changed."""
        if client_id not in self._named:
            self._named.add(client_id)
            self._changed.append(client_id)

    def next(self) -> str:
        """The next client whose will is to be told."""
        if self.first_left:
            client_id = self._first[self._at]
            self._at += 1
            return client_id
        client_id = self._changed.popleft()
        self._named.discard(client_id)
        return client_id


class Teller:
    """Tells the nodes. `process`: see `messages`; `principals`: how a principal stands there."""

    def __init__(
        self,
        router: Router,
        bus: Bus,
        process: int,
        principals: Principals,
        now: Callable[[], float],
        largest: int,
    ) -> None:
        """`largest`: see `WillTerms`."""
        self.process = process
        self.too_large = 0
        """Wills of clients here that no other node is told of, since they are larger than that."""
        self.told: dict[str, Own] = {}
        """The wills that other nodes are told of, by client identifier."""
        self.nodes: dict[str, Telling] = {}
        self._router = router
        self._bus = bus
        self._principals = principals
        self._now = now
        self._largest = largest
        self._serial = 0

    @property
    def busy(self) -> bool:
        """Whether `turn` has something to do."""
        return any(telling.busy for telling in self.nodes.values())

    def send(self, node: str, message: Message) -> int:
        """Say something; how many bytes it is."""
        data = encode(message)
        self._bus.send(node, WILLS, data)
        return len(data)

    def changed(self, session: Session) -> None:
        """See `WillListener.will_changed`."""
        client_id, will = session.client_id, session.will
        known = self.told.get(client_id)
        if will is not None and session.journal is None and not session.ended and not session.node:
            if len(will.topic) + len(will.payload) + len(will.properties) > self._largest:
                self.too_large += session.will_due == 0.0
                return
            if known is None or known.will is not will:
                self._serial += 1
                self.told[client_id] = Own(self._serial, session, will)
        elif known is not None and known.session is session:
            del self.told[client_id]
        else:
            return
        for telling in self.nodes.values():
            telling.add(client_id)

    def joined(self, node: str, over: list[KeptWill]) -> None:
        """A node is there, and knows nothing. `over`: wills of which it is told that they are over."""
        self.nodes[node] = Telling(self.told, over)
        self.send(node, Hello(self.process))

    def left(self, node: str) -> None:
        """A node is gone."""
        self.nodes.pop(node, None)

    def took(self, node: str, size: int) -> None:
        """It has taken so many bytes."""
        telling = self.nodes[node]
        telling.unread = max(telling.unread - size, 0)

    def ended(self, kept: KeptWill) -> None:
        """A will of another node is over: tell all."""
        for telling in self.nodes.values():
            telling.over.append(kept)

    def over(self, ended: Ended) -> None:
        """A will of this node is over, since others took it for dead, or a client has come to them.

        A client that is still connected here keeps it, unless it came elsewhere: when that connection ends nobody has
        heard of it.
        """
        own = self.told.get(ended.client_id)
        if own is not None and own.serial == ended.serial and (ended.moved or own.session.outbox is None):
            self._router.wills.forget(own.session)

    def turn(self) -> None:
        """Tell each node some more."""
        written: dict[str, Told] = {}
        for node, telling in self.nodes.items():
            if telling.busy:
                self._tell(node, telling, written)

    def stop(self) -> None:
        """This node stops: its clients are gone, and their wills published, but for those whose delay runs."""
        written: dict[str, Told] = {}
        running = [client_id for client_id, own in self.told.items() if own.session.will_due != 0.0]
        for node, before in self.nodes.items():
            self.send(node, Stops())
            telling = Telling(running, before.over)
            while telling.wills or telling.over:
                self._tell(node, telling, written)

    def _tell(self, node: str, telling: Telling, written: dict[str, Told]) -> None:
        size = 0
        told: list[Told] = []
        while telling.wills and size < TURN_BYTES and len(told) < MOST:
            client_id = telling.next()
            will = written.get(client_id)
            if will is None:
                will = written[client_id] = self._written(client_id)
            told.append(will)
            size += len(will.data) + len(client_id) + ITEM
        if told:
            telling.unread += self.send(node, Tell(told))
        if not telling.first_left and not telling.whole:
            telling.whole = True
            self.send(node, Whole())
        while telling.over and size < TURN_BYTES:
            size += self._tell_over(node, telling)

    def _tell_over(self, node: str, telling: Telling) -> int:
        """Tell what has become of wills, as many as are of one process."""
        process = telling.over[0].process
        ended: list[Ended] = []
        size = 0
        while telling.over and telling.over[0].process is process and size < TURN_BYTES and len(ended) < MOST:
            kept = telling.over.popleft()
            ended.append(Ended(kept.client_id, kept.serial, kept.moved))
            size += len(kept.client_id) + ITEM
        telling.unread += self.send(node, Over(process.node, process.number, ended))
        return size

    def _written(self, client_id: str) -> Told:
        own = self.told.get(client_id)
        if own is None:
            return Told(client_id, 0, 0, False, b"")
        session, will = own.session, own.will
        running = session.will_due != 0.0
        delay = session.will_due - self._now() if running else min(will.delay, session.expiry_interval)
        data = encode_will(will, self._principals.write(session.principal))
        return Told(client_id, own.serial, max(round(delay * MILLISECONDS), 0), running, data)
