"""The room of the mesh in which wills outlive their nodes.

Owns who publishes the will of a client whose node is dead, and when: of the nodes that hold it the first by rendezvous
hashing, and the next one after `AGAIN` if nothing was heard of it. A node is dead when no node that is there has seen
it for `dead_after`. Promises: what is published, or is not to be, is told to all; the will of a client that comes to
another node is published before its session opens there, or, in time for its Will Delay Interval, not at all
[MQTT-3.1.3-9]; the work of one turn is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from broker.core.codec.packets import Will
from broker.core.connection.connect.identity import is_link, is_reserved
from broker.core.principal import Principal
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.router import Router
from broker.core.routing.wills import WillListener
from broker.core.session.session import Session
from broker.mesh.bus import Bus, ProtocolFault, Room
from broker.mesh.ownership.moves.leaving import weight
from broker.mesh.wills.kept import KeptWill, Process
from broker.mesh.wills.messages import (
    GONE,
    HELD,
    THERE,
    Complete,
    Copies,
    Hello,
    Over,
    ProcessState,
    Stops,
    Took,
    decode,
    decode_will,
)
from broker.mesh.wills.replicating import Replicator
from broker.store.groups.principals import Principals

SINCE: Final = 2
"""From this version on nodes copy wills to each other."""

TURN: Final = 50
"""Wills that are published in one turn: some milliseconds."""

LOOKED_AT: Final = 1_000
"""Wills that are looked at in one turn."""

AGAIN: Final = 30.0
"""Seconds for which a node waits to hear that the one before it has published a will."""

LARGEST_WILL: Final = 1_048_576
"""Bytes of a will's topic, payload and properties, beyond which it is not copied to other nodes."""

MOST_STANDS: Final = 4_096
"""Processes of which another node may say how it stands to them."""


@dataclass(frozen=True)
class WillTerms:
    """`dead_after`: seconds after which a node that is gone is dead. `most_bytes`: of the wills of one other node.
    `known_for`: seconds for which it is known which wills of a node that is gone are over. `largest`: bytes of a will's
    topic, payload and properties, beyond which it is not copied to other nodes."""

    dead_after: float
    most_bytes: int
    known_for: float
    largest: int = LARGEST_WILL


class Wills(Room, WillListener):
    """The room, and what hears of each change of the wills here.

    The broker attaches it to the bus (`WILLS`), before the ownership of sessions, and to `WillQueue.listener`; it calls
    `turn` soon after `wake`, and when `due` has come.
    """

    def __init__(
        self,
        router: Router,
        bus: Bus,
        principals: Principals,
        terms: WillTerms,
        process: int,
        now: Callable[[], float],
        log: Any,
        wake: Callable[[], None],
    ) -> None:
        """`process`: a number above that of each process of this node before."""
        self.published = 0
        """Wills that this node has published for others."""
        self.left_out = 0
        """Wills of other nodes that found no room here."""
        self.replicator = Replicator(router, bus, process, principals, now, terms.largest)
        self._router = router
        self._bus = bus
        self._principals = principals
        self._terms = terms
        self._now = now
        self._log = log
        self._wake = wake
        self._processes: dict[tuple[str, int], Process] = {}
        # How other nodes stand to the processes of others.
        self._stands: dict[str, dict[tuple[str, int], int]] = {}
        # Wills by the time at which they are published.
        self._deadlines = Deadlines()
        for session in router.sessions.values():
            self.replicator.changed(session)

    @property
    def kept(self) -> int:
        """Wills of other nodes that this one would publish."""
        return sum(process.open for process in self._processes.values())

    @property
    def kept_bytes(self) -> int:
        """Bytes that is known of other nodes' wills takes."""
        return sum(process.bytes for process in self._processes.values())

    def stop(self) -> None:
        """This node stops, and its clients are gone."""
        self.replicator.stop()

    # -- the router's --------------------------------------------------------------------------------------------------

    def will_changed(self, session: Session) -> None:
        """See `WillListener.will_changed`."""
        self.replicator.changed(session)
        if self.replicator.busy:
            self._wake()

    def claimed(self, client_id: str, user_name: str | None, clean_start: bool) -> None:
        """A client has come to this node or another one, and is to have its session there.

        Its earlier connection, at a node that is gone, ends by that. The session goes on where it began without a clean
        start: then its delayed will is not published.
        """
        for process in self._processes.values():
            if process.there:
                continue
            kept = process.find(client_id)
            if kept is None or kept.over or self._read(kept)[1].user_name != user_name:
                continue
            if clean_start or (kept.delay == 0.0 and not kept.running):
                kept.due = self._now()
                if self._rank(kept) == 0:
                    self._publish(kept, True)
                else:
                    self._set(kept)
            else:
                process.end(kept, True)
                if self._rank(kept) == 0:
                    self.replicator.ended(kept)
            self._wake()

    # -- the bus's -----------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there: send it the wills here, and of those that are over."""
        if self._bus.version(node) < SINCE:
            return
        over: list[KeptWill] = []
        for process in self._processes.values():
            if process.open == 0:
                over.extend(process.wills.values())
            elif process.open < len(process.wills):
                over.extend(kept for kept in process.wills.values() if kept.over)
        self.replicator.joined(node, over)
        self._stands[node] = {}
        for process in self._processes.values():
            self._say(node, process, THERE if process.there else HELD)
        self._wake()

    def left(self, node: str) -> None:
        """A node is gone, perhaps for a moment."""
        now = self._now()
        self.replicator.left(node)
        stands = self._stands.pop(node, {})
        process = self._there(node)
        if process is not None:
            process.lost(now)
            self._stand(process, HELD)
        for each in self._processes.values():
            if not each.there:
                if stands.get((each.node, each.number)) == THERE:
                    each.lost_at = now
                if each.dead:
                    # It may have been the one to publish some of them.
                    each.look()
        self._wake()

    def received(self, node: str, data: bytes) -> None:
        """A node has said something. Raises ProtocolFault."""
        if node not in self._stands:
            raise ProtocolFault("wills of a node that does not speak of them")
        message = decode(data)
        match message:
            case Hello():
                self._hello(node, message.process)
            case Copies():
                self._copied(node, message)
                self.replicator.send(node, Took(len(data)))
            case Complete():
                self._of(node).whole()
            case Took():
                self.replicator.took(node, message.size)
            case ProcessState():
                self._stands_so(node, (message.node, message.process), message.state)
            case Over():
                self._over(message)
                self.replicator.send(node, Took(len(data)))
            case Stops():
                self._of(node).stops()
        self._wake()

    def _hello(self, node: str, number: int) -> None:
        if self._there(node) is not None:
            raise ProtocolFault("a second process")
        process = self._processes.get((node, number))
        if process is None:
            process = self._processes[node, number] = Process(node, number)
        else:
            process.back()
        self._stand(process, THERE)

    def _copied(self, node: str, message: Copies) -> None:
        process, now = self._of(node), self._now()
        others = sum(each.bytes for each in self._processes.values() if each.node == node and each is not process)
        left_out = process.left_out
        for copy in message.wills:
            if copy.data:
                decode_will(copy.data, copy.client_id, self._principals)
            process.put(copy, now, self._terms.most_bytes - others - process.bytes)
        if process.left_out > left_out:
            self.left_out += process.left_out - left_out
            if left_out == 0:
                self._log.warning("wills of a node find no room", node=node, bytes=process.bytes)

    def _stands_so(self, node: str, process: tuple[str, int], state: int) -> None:
        stands = self._stands[node]
        before = stands.pop(process, GONE)
        if state != GONE and len(stands) < MOST_STANDS:
            stands[process] = state
        known = self._processes.get(process)
        if known is not None and not known.there:
            if before == THERE and state != THERE:
                known.lost_at = self._now()
            if known.dead:
                known.look()

    def _over(self, message: Over) -> None:
        if message.node == self._bus.node:
            if message.process == self.replicator.process:
                for ended in message.wills:
                    self.replicator.over(ended)
            return
        process = self._processes.get((message.node, message.process))
        if process is None:
            return
        for ended in message.wills:
            kept = process.find(ended.client_id)
            if kept is not None and kept.serial == ended.serial:
                process.end(kept, ended.moved)

    def _there(self, node: str) -> Process | None:
        """The process of a node that is there."""
        for process in self._processes.values():
            if process.node == node and process.there:
                return process
        return None

    def _of(self, node: str) -> Process:
        process = self._there(node)
        if process is None:
            raise ProtocolFault("wills before a process is named")
        return process

    def _stand(self, process: Process, state: int) -> None:
        """Tell all how this node stands to a process."""
        for node in self._stands:
            self._say(node, process, state)

    def _say(self, node: str, process: Process, state: int) -> None:
        if node != process.node:
            self.replicator.send(node, ProcessState(process.node, process.number, state))

    # -- turns ---------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When `turn` is to be called (s, of the router's clock); 0.0: not before something happens here."""
        times = [self._due_of(process) for process in self._processes.values() if not process.there]
        return min((each for each in (*times, self._deadlines.next_due()) if each > 0.0), default=0.0)

    def _due_of(self, process: Process) -> float:
        if process.dead:
            return 0.0 if process.open else process.lost_at + self._terms.known_for
        return 0.0 if self._seen(process) else max(process.lost_at + self._terms.dead_after, self._now())

    def turn(self, now: float) -> None:
        """Send some, look at some, publish some."""
        again = False
        for process in list(self._processes.values()):
            again = self._look(process, now) or again
        for _ in range(TURN):
            kept = self._deadlines.pop_due(now)
            if kept is None:
                break
            assert isinstance(kept, KeptWill)
            self._fall_due(kept, now)
        self.replicator.turn()
        if again or self._deadlines.due(now) or self.replicator.busy:
            self._wake()

    def _look(self, process: Process, now: float) -> bool:
        """Whether there is more to be done now."""
        process.forget_stale(LOOKED_AT if process.stale else 0)
        if process.there:
            return process.stale
        if process.walking:
            for kept in process.some(LOOKED_AT):
                self._plan(kept)
        if process.walking:
            return True
        if not process.dead:
            if self._seen(process) or now < process.lost_at + self._terms.dead_after:
                return process.stale
            process.dead = True
            process.look()
            return True
        if (
            process.wills
            and process.open == 0
            and not process.stale
            and (now >= process.lost_at + self._terms.known_for or self._there(process.node))
        ):
            # Nobody can ask for it any more: it will not be there again.
            process.forget()
        if process.empty:
            del self._processes[process.node, process.number]
            self._stand(process, GONE)
            return False
        return process.stale

    def _plan(self, kept: KeptWill) -> None:
        """Look at the will of a process that is gone: set the time at which it is published, if that can be said."""
        process = kept.process
        if kept.client_id in self._router.sessions:
            # Its client has come here before the node was known to be gone.
            process.end(kept, True)
            self.replicator.ended(kept)
        elif process.dead:
            due = kept.ends if kept.running else process.lost_at + kept.delay
            kept.due = max(due, process.lost_at + self._terms.dead_after)
            self._set(kept)

    def _seen(self, process: Process) -> bool:
        """Whether a node that is there says that the process is."""
        name = process.node, process.number
        return any(stands.get(name) == THERE for stands in self._stands.values())

    def _rank(self, kept: KeptWill) -> int:
        """How many of those that hold it come before this node."""
        name, client_id = (kept.process.node, kept.process.number), kept.client_id
        mine = weight(client_id, self._bus.node), self._bus.node
        holders = [node for node, stands in self._stands.items() if stands.get(name) == HELD]
        return sum((weight(client_id, node), node) > mine for node in holders)

    def _set(self, kept: KeptWill) -> None:
        kept.losses = kept.process.losses
        self._deadlines.set(kept, kept.due + self._rank(kept) * AGAIN)

    def _fall_due(self, kept: KeptWill, now: float) -> None:
        process = kept.process
        current = process.find(kept.client_id) is kept and kept.losses == process.losses
        if process.there or kept.over or not current:
            return
        if kept.due + self._rank(kept) * AGAIN > now:
            self._set(kept)
        else:
            self._publish(kept, False)

    def _publish(self, kept: KeptWill, moved: bool) -> None:
        """Publish a will, and tell all. `moved`: its client has come to another node."""
        will, principal = self._read(kept)
        process, router = kept.process, self._router
        process.end(kept, moved)
        self.replicator.ended(kept)
        link = is_link(kept.client_id, principal.user_name, router.limits)
        if is_reserved(will.topic.encode(), link, router):
            return
        if process.published == 0:
            self._log.warning("wills of a node are published", node=process.node)
        process.published += 1
        self.published += 1
        router.wills.publish_for(will, kept.client_id, principal, self._now())

    def _read(self, kept: KeptWill) -> tuple[Will, Principal]:
        return decode_will(kept.data, kept.client_id, self._principals)
