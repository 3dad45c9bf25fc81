"""The wills of this node's clients, copied to the other nodes.

Owns what was copied, and what each node has still to get: names of clients, each once however often its will
changed, so that a node gets what is so when its turn comes. Promises: at most `WINDOW` bytes are on the way to a
node that it has not taken, but for one message; what a store keeps is copied to nobody: that publishes it.
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
    Complete,
    Copies,
    Ended,
    Hello,
    Message,
    Over,
    Stops,
    WillCopy,
    encode,
    encode_will,
)
from broker.store.groups.principals import Principals

WINDOW: Final = 262_144
"""Bytes on their way to a node that it has not taken, but for one message."""

TURN_BYTES: Final = 32_768
"""Bytes that are sent to a node in one turn: about a hundred wills, and a millisecond or two where they are read."""

ITEM: Final = 32
"""Bytes that a will takes besides its data and its client's name, about."""


class Own:
    """The will of a client here."""

    __slots__ = ("serial", "session", "will")

    def __init__(self, serial: int, session: Session, will: Will) -> None:
        self.serial = serial
        self.session = session
        self.will = will


class Backlog:
    """What is still to be sent to one node."""

    def __init__(self, wills: Iterable[str], over: Iterable[KeptWill]) -> None:
        # The clients that had wills when the node came, and how many of them it was sent.
        self._first = list(wills)
        self._at = 0
        # Those whose wills have changed since, each once.
        self._changed: deque[str] = deque()
        self._named: set[str] = set()
        self.over = deque(over)
        self.whole = False
        """The node knows that it was sent all that there were when it came."""
        self.unread = 0

    @property
    def first_left(self) -> bool:
        """Whether some of those that there were when it came are still to be sent."""
        return self._at < len(self._first)

    @property
    def wills(self) -> bool:
        """Whether wills are to be sent."""
        return self.first_left or bool(self._changed)

    @property
    def busy(self) -> bool:
        """Whether something is to be sent, and may be now."""
        return self.unread < WINDOW and bool(self.wills or self.over or not self.whole)

    def add(self, client_id: str) -> None:
        """A client's will has changed."""
        if client_id not in self._named:
            self._named.add(client_id)
            self._changed.append(client_id)

    def next(self) -> str:
        """The next client whose will is to be sent."""
        if self.first_left:
            client_id = self._first[self._at]
            self._at += 1
            return client_id
        client_id = self._changed.popleft()
        self._named.discard(client_id)
        return client_id


class Replicator:
    """Copies them to the nodes. `process`: see `messages`; `principals`: how a principal stands there."""

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
        """Wills of clients here that no other node gets, since they are larger than that."""
        self.copied: dict[str, Own] = {}
        """The wills that other nodes get, by client identifier."""
        self.nodes: dict[str, Backlog] = {}
        self._router = router
        self._bus = bus
        self._principals = principals
        self._now = now
        self._largest = largest
        self._serial = 0

    @property
    def busy(self) -> bool:
        """Whether `turn` has something to do."""
        return any(backlog.busy for backlog in self.nodes.values())

    def send(self, node: str, message: Message) -> int:
        """Say something; how many bytes it is."""
        data = encode(message)
        self._bus.send(node, WILLS, data)
        return len(data)

    def changed(self, session: Session) -> None:
        """See `WillListener.will_changed`."""
        client_id, will = session.client_id, session.will
        known = self.copied.get(client_id)
        if will is not None and session.journal is None and not session.ended and not session.node:
            if len(will.topic) + len(will.payload) + len(will.properties) > self._largest:
                self.too_large += session.will_due == 0.0
                return
            if known is None or known.will is not will:
                self._serial += 1
                self.copied[client_id] = Own(self._serial, session, will)
        elif known is not None and known.session is session:
            del self.copied[client_id]
        else:
            return
        for backlog in self.nodes.values():
            backlog.add(client_id)

    def joined(self, node: str, over: list[KeptWill]) -> None:
        """A node is there, and knows nothing. `over`: wills of which it is to hear that they are over."""
        self.nodes[node] = Backlog(self.copied, over)
        self.send(node, Hello(self.process))

    def left(self, node: str) -> None:
        """A node is gone."""
        self.nodes.pop(node, None)

    def took(self, node: str, size: int) -> None:
        """It has taken so many bytes."""
        backlog = self.nodes[node]
        backlog.unread = max(backlog.unread - size, 0)

    def ended(self, kept: KeptWill) -> None:
        """A will of another node is over: tell all."""
        for backlog in self.nodes.values():
            backlog.over.append(kept)

    def over(self, ended: Ended) -> None:
        """A will of this node is over, since others took it for dead, or a client has come to them.

        A client that is still connected here keeps it, unless it came elsewhere: when that connection ends nobody has
        heard of it.
        """
        own = self.copied.get(ended.client_id)
        if own is not None and own.serial == ended.serial and (ended.moved or own.session.outbox is None):
            self._router.wills.forget(own.session)

    def turn(self) -> None:
        """Send each node some more."""
        written: dict[str, WillCopy] = {}
        for node, backlog in self.nodes.items():
            if backlog.busy:
                self._send_some(node, backlog, written)

    def stop(self) -> None:
        """This node stops: its clients are gone, and their wills published, but for those whose delay runs."""
        written: dict[str, WillCopy] = {}
        running = [client_id for client_id, own in self.copied.items() if own.session.will_due != 0.0]
        for node, before in self.nodes.items():
            self.send(node, Stops())
            backlog = Backlog(running, before.over)
            while backlog.wills or backlog.over:
                self._send_some(node, backlog, written)

    def _send_some(self, node: str, backlog: Backlog, written: dict[str, WillCopy]) -> None:
        size = 0
        copies: list[WillCopy] = []
        while backlog.wills and size < TURN_BYTES and len(copies) < MOST:
            client_id = backlog.next()
            will = written.get(client_id)
            if will is None:
                will = written[client_id] = self._written(client_id)
            copies.append(will)
            size += len(will.data) + len(client_id) + ITEM
        if copies:
            backlog.unread += self.send(node, Copies(copies))
        if not backlog.first_left and not backlog.whole:
            backlog.whole = True
            self.send(node, Complete())
        while backlog.over and size < TURN_BYTES:
            size += self._send_over(node, backlog)

    def _send_over(self, node: str, backlog: Backlog) -> int:
        """Send what has become of wills, as many as are of one process."""
        process = backlog.over[0].process
        ended: list[Ended] = []
        size = 0
        while backlog.over and backlog.over[0].process is process and size < TURN_BYTES and len(ended) < MOST:
            kept = backlog.over.popleft()
            ended.append(Ended(kept.client_id, kept.serial, kept.moved))
            size += len(kept.client_id) + ITEM
        backlog.unread += self.send(node, Over(process.node, process.number, ended))
        return size

    def _written(self, client_id: str) -> WillCopy:
        own = self.copied.get(client_id)
        if own is None:
            return WillCopy(client_id, 0, 0, False, b"")
        session, will = own.session, own.will
        running = session.will_due != 0.0
        delay = session.will_due - self._now() if running else min(will.delay, session.expiry_interval)
        data = encode_will(will, self._principals.write(session.principal))
        return WillCopy(client_id, own.serial, max(round(delay * MILLISECONDS), 0), running, data)
