"""A broker's part in a mesh: the rooms put together, on one bus.

Owns the composition and the order: who hears of a node first, when rooms have their turns, what is told to the log.
What each room does, it knows itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from broker.core.hooks import Confirmed, Confirmer, NodeListener
from broker.core.routing.remote.loop_detection import FROM_NODE
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup
from broker.mesh.adoption import Adoption
from broker.mesh.bus import LINKS, OWNERSHIP, WILLS, Bus, ProtocolFault, Room
from broker.mesh.groups import LocalGroups
from broker.mesh.interest.confirmations import Waiter
from broker.mesh.interest.declaring import Interest
from broker.mesh.interest.receiving import Sink
from broker.mesh.interest.room import InterestRoom
from broker.mesh.links.link import NodeLink
from broker.mesh.links.session import NodeSession
from broker.mesh.ownership.room import Ownership
from broker.mesh.pipes import Pipes
from broker.mesh.presence import NodesPresence, PresenceTopics
from broker.mesh.retained.replicas import LARGEST, Replicas, ReplicaTerms
from broker.mesh.shell import NodeShell
from broker.mesh.streams import Streams
from broker.mesh.wills.room import LARGEST_WILL, Wills, WillTerms
from broker.net.connections.connection import Connection
from broker.net.listening.terms import ListenerTerms
from broker.settings import Mesh as MeshSettings
from broker.store.groups.principals import Principals

if TYPE_CHECKING:
    from broker.net.server import Server
    from broker.store.groups.principals import RuleTexts

LISTENER: Final = "mesh"
"""What stands for a listener where a node is told of."""

NUMBERED: Final = 3
"""From this version on nodes know what the number of a QoS 2 publish is (`core.routing.remote.publish_numbers`)."""

LARGE_AGAIN: Final = 60.0
"""Seconds until the log has another retained message that is too large for other nodes."""


class Mesh(NodeListener):
    """One node's part. For a server that has been started; `bus` is started and ended by whoever made it."""

    def __init__(self, server: Server, settings: MeshSettings, bus: Bus, rules: RuleTexts | None = None) -> None:
        """`rules` writes and reads what principals bring of their own, for sessions that move."""
        self.settings = settings
        self.bus = bus
        self.links: dict[str, NodeLink] = {}
        """The other nodes, by name: those that are there, and those for which something waits."""
        self.server = server
        self._loop = server.loop
        # The timer of the next turn, and its time.
        self._due: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._turning = False
        # Wakes `meet`, while that waits, after each turn.
        self._meeting: asyncio.Event | None = None
        self._stopped = False
        self.close: Callable[[], Awaitable[None]] | None = None
        """Ends the bus, where this is to be done with it."""
        self.certificates: dict[str, float] = {}
        """When the certificate of this node ends, by file, in seconds since 1970."""
        interest = Interest(bus, settings.max_filters, confirm_timeout=settings.confirm_timeout)
        self.interest = InterestRoom(
            bus, interest, self._link, self.turn_soon, settings.max_node_filters, settings.max_node_filter_bytes
        )
        self.groups = LocalGroups(server.router.table.trie, self.interest)
        pipes = Pipes(bus, settings.pipe_bytes, self._accept, server.loop)
        self.streams = Streams(pipes, bus.node, self._accept, self._socket, server.loop, server.log)
        # One message must not be more than may wait for a node.
        largest = settings.queue_bytes // 4
        terms = ReplicaTerms(
            settings.max_clock_ahead,
            settings.tombstone_time,
            settings.tombstone_bytes,
            settings.digest_interval,
            min(LARGEST, largest),
        )
        store = server.router.retained_store
        self.retained = Replicas(bus, store, terms, server.loop.time, time.time, self.turn_soon)
        self.retained.clock_differs = self._clock_differs
        self.retained.too_large = self._too_large
        self._silent_until = 0.0
        principals = Principals(rules)
        wills = WillTerms(
            settings.dead_after, settings.max_node_will_bytes, settings.tombstone_time, min(LARGEST_WILL, largest)
        )
        self.wills = Wills(
            server.router, bus, principals, wills, time.time_ns(), server.loop.time, server.log, self.turn_soon
        )
        # Before the sessions: which wills are over is heard before a session is asked for.
        bus.attach(WILLS, self.wills)
        server.router.wills.listener = self.wills
        self.ownership = Ownership(
            server.router,
            bus,
            NodeShell(server, bus, self.interest, self.links, self.turn_soon),
            server.log,
            settings.confirm_timeout,
            principals,
            largest=largest,
            expiry=settings.node_expiry,
            most_missed=settings.queue_bytes // 8,
        )
        self.ownership.claimed = self._claimed
        bus.attach(OWNERSHIP, self.ownership)
        server.router.owner = self.ownership
        # Last: a stream can be opened by then.
        bus.attach(LINKS, _Members(self))
        server.router.fanout.local_first = settings.local_members_first
        nodes = server.router.nodes
        nodes.patience = settings.confirm_timeout
        nodes.confirmer = _Confirmations(self)
        self.presence: NodesPresence | None = None
        """Shows the clients of nodes that are gone as offline; None: no clients are shown (`presence.topic`)."""
        self._survey()
        adoptions = None if server.store is None else server.store.adoptions
        self.adoption: Adoption | None = None
        """Who takes over the sessions of dead nodes, where there is a database of all."""
        if adoptions is not None:
            self.adoption = Adoption(
                server, bus, self.ownership, adoptions, settings.dead_after, self.down, self.turn_soon
            )
            self.adoption.start()

    def _survey(self) -> None:
        """Have the others told of what is wanted here already, and of what is from now on."""
        table = self.server.router.table
        for session in self.server.router.sessions.values():
            if isinstance(session, NodeSession):
                self._take_up(session)
                continue
            for subscription in session.subscriptions.values():
                entry = subscription.entry
                if entry is not None and not session.node:
                    self.wanted(entry.topic_filter, _share(subscription.group))
        self._count_links()
        table.node_listener = self.server.router.peers.node_listener = self

    def _take_up(self, session: NodeSession) -> None:
        """Go on with what is known of another node, until it tells more or has been away for too long."""
        link = self._make_link(session.name, session)
        self.interest.restore(session.name, NodeSink(link), session.subscriptions)
        link.expire_at(session.away_since + self.settings.node_expiry, self._expired)

    def watch_presence(self, topics: PresenceTopics) -> NodesPresence:
        """Have clients whose nodes are gone shown as offline."""
        self.presence = made = NodesPresence(
            self.server, self.bus, self.retained, topics, self.settings.dead_after, lambda: not self._stopped
        )
        return made

    async def stop(self, flush: float) -> None:
        """Give what waits for other nodes so many seconds to get there, and let go of them."""
        companions = self.server.companions
        if companions is not None and await companions.emptied():
            # All end: what the others' clients have published is in the store here first.
            arrived = asyncio.Event()
            self.ownership.barrier(lambda _: arrived.set())
            await arrived.wait()
            await companions.settled()
        self._stopped = True
        if self.adoption is not None:
            await self.adoption.stop()
        if self.presence is not None:
            self.presence.stop()
        router = self.server.router
        router.table.node_listener = router.peers.node_listener = None
        router.nodes.confirmer = None
        router.retained_store.listener = None
        router.owner = router.publisher.late = None
        router.wills.listener = None
        self.wills.stop()
        ends = [link.stop(flush) for link in self.links.values()]
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(error, Exception):
                self.server.faults.broke("mesh", error)
        await self.streams.stop()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self.close is not None:
            await self.close()
        self.let_go()

    def let_go(self) -> None:
        """No node is known any more; where there is a store, it has what waits for them."""
        for link in self.links.values():
            link.let_go()
        kept: list[Session] = [link.session for link in self.links.values() if not link.session.ended]
        self.links.clear()
        self._count_links()
        self.server.router.fanout.nodes = kept

    def not_ready(self) -> list[str]:
        """Why clients should go to another node, a line each."""
        waits = [node for node in self.bus.nodes() if not self.retained.ready_with(node)]
        return [f"retained messages of the node {node} are on their way" for node in waits]

    async def meet(self, seen: Iterable[str]) -> None:
        """Until nothing that is published here misses a node: those that were seen, and those that a store knows from
        before. One that does not come within `node_timeout` counts as gone."""
        sessions, companions = self.server.router.sessions, self.server.companions
        known = {each.removeprefix(FROM_NODE) for each in sessions if each.startswith(FROM_NODE)} | self.links.keys()
        if companions is not None:
            # There may have been more of them before, whose sessions the others have.
            known = {*filter(companions.may_come, known), *companions.nodes}
        expected = {*seen, *known}
        self._meeting = turned = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.node_timeout):
                while not all(map(self._met, expected)):
                    await turned.wait()
                    turned.clear()
        self._meeting = None

    def _met(self, node: str) -> bool:
        link, remote = self.links.get(node), self.interest.remotes.get(node)
        return link is not None and link.connected and remote is not None and remote.complete

    def down(self) -> dict[str, float]:
        """For how many seconds each other node has taken nothing; 0.0: it is connected."""
        now = self._loop.time()
        return {name: 0.0 if link.connected else now - link.down_since for name, link in self.links.items()}

    def _clock_differs(self, node: str, ahead: float) -> None:
        self.server.log.warning("clock differs", node=node, ahead=ahead)

    def counted(self) -> tuple[int, int]:
        """How many connections there are with other nodes, and how many sessions of theirs."""
        router = self.server.router
        sessions: list[Session] = [link.session for link in self.links.values()]
        for node in self.links:
            known = router.sessions.get(FROM_NODE + node)
            if known is not None:
                sessions.append(known)
        return sum(1 for session in sessions if session.outbox is not None), len(sessions)

    # -- what is asked for here ----------------------------------------------------------------------------------------

    def wanted(self, topic_filter: str, share: str) -> None:
        """One more local subscription (`hooks.NodeListener`)."""
        try:
            if share:
                self.groups.look(share, topic_filter)
            else:
                self.interest.wanted(topic_filter, self._loop.time())
        except Exception as error:
            self.server.faults.broke("mesh", error)

    def unwanted(self, topic_filter: str, share: str) -> None:
        """One less (`hooks.NodeListener`)."""
        try:
            if share:
                self.groups.look(share, topic_filter)
            else:
                self.interest.unwanted(topic_filter, self._loop.time())
        except Exception as error:
            self.server.faults.broke("mesh", error)

    def moved(self, topic_filter: str, share: str) -> None:
        """A member of a share group came or went (`hooks.NodeListener`)."""
        self.groups.moved(share, topic_filter)
        self.turn_soon()

    def _claimed(self, client_id: str, user_name: str | None, clean_start: bool) -> None:
        try:
            self.wills.claimed(client_id, user_name, clean_start)
        except Exception as error:
            self.server.faults.broke("mesh", error)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _link(self, node: str) -> NodeSink:
        link = self.links.get(node)
        if link is None:
            link = self._make_link(node)
            self._count_links()
            self.ownership.met(node)
        return NodeSink(link)

    def _make_link(self, node: str, session: NodeSession | None = None) -> NodeLink:
        own = self.bus.node
        link = NodeLink(self.server, self.settings, self.streams, own, node, self.turn_soon, session)
        self.links[node] = link
        return link

    def _count_links(self) -> None:
        router = self.server.router
        router.nodes.count = len(self.links)
        router.fanout.nodes = [link.session for link in self.links.values()]

    def joined(self, node: str) -> None:
        """A node is there; its interest follows."""
        self.streams.joined(node)
        if self.presence is not None:
            self.presence.joined(node)
        link = self.links[node]
        link.session.numbered = self.bus.version(node) >= NUMBERED
        self.server.router.nodes.numbers.know(FROM_NODE + node, link.session.numbered)
        link.joined()

    def left(self, node: str) -> None:
        """A node is gone."""
        self.streams.left(node)
        link = self.links[node]
        link.left()
        if self.presence is not None:
            self.presence.left(node)
        if not self._stopped:
            link.expire_at(self._loop.time() + self.settings.node_expiry, self._expired)

    def _expired(self, link: NodeLink) -> None:
        """A node has been away for too long."""
        self.server.log.warning("node is given up", node=link.node, messages=link.session.queued())
        del self.links[link.node]
        self._count_links()
        self.server.router.nodes.numbers.give_up(FROM_NODE + link.node)
        self.interest.forget(link.node)
        self.ownership.met(link.node, given_up=True)

    def _too_large(self, topic: str, size: int) -> None:
        """A retained message goes to no other node. The counter has all of them, the log one in a while."""
        now = self._loop.time()
        if now >= self._silent_until:
            self._silent_until = now + LARGE_AGAIN
            self.server.log.warning("retained message stays here", topic=topic, bytes=size)

    def _socket(self, node: str) -> Path | None:
        """Where a node of this machine takes streams."""
        companions = self.server.companions
        return None if companions is None else companions.socket(node)

    def _accept(self, node: str, transport: asyncio.Transport) -> asyncio.BaseProtocol | None:
        """A node opens a stream: it is a client here, whom nobody asks who it is."""
        del transport
        if self._stopped:
            return None
        terms = ListenerTerms(LISTENER, False, 0, "", None)
        terms.node = node
        connection = Connection(self.server.connection_table, terms)
        connection.address = f"node {node}"
        return cast(asyncio.BaseProtocol, connection)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _look_at_groups(self, now: float) -> None:
        del now
        self.groups.turn()
        if self.groups.busy:
            self.turn_soon()

    def _tick(self, now: float) -> None:
        if 0.0 < self.ownership.due <= now:
            self.ownership.tick()

    def _next_due(self, now: float) -> float:
        """When a room has something to do by time; 0.0: never, as things stand."""
        retained = self.retained.due()
        times = [self.interest.due, self.ownership.due, self.wills.due, max(retained, now) if retained >= 0.0 else 0.0]
        return min((each for each in times if each > 0.0), default=0.0)

    def turn_soon(self) -> None:
        """Something has happened: rooms get their turns."""
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        self._turning = False
        if self._stopped:
            return
        for turn in (self._look_at_groups, self.interest.turn, self.retained.turn, self.wills.turn, self._tick):
            try:
                turn(now)
            except Exception as error:
                self.server.faults.broke("mesh", error)
        self.server.after_batch()
        if self._meeting is not None:
            self._meeting.set()
        due = self._next_due(now)
        if self._due is not None:
            if due > 0.0 and self._due_at <= due:
                return
            self._due.cancel()
            self._due = None
        if due > 0.0 and not self._stopped:
            # Not asked of the timer: what uvloop gives for less than half a millisecond does not know its time.
            self._due_at = due
            self._due = self._loop.call_at(due, self._fall_due)

    def _fall_due(self) -> None:
        self._due = None
        self._turn()


class NodeSink(Sink):
    """What a node wants, as the subscriptions of its session here."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def subscribe(self, topic_filter: str) -> None:
        """The node wants a topic filter."""
        self._link.subscribe(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """And no more."""
        self._link.unsubscribe(topic_filter)

    def put_group(self, name: str, topic_filter: str, connected: int, away: bool) -> None:
        """A share group has members there, or none any more."""
        share = f"$share/{name}/{topic_filter}"
        if connected or away:
            self._link.share(share, connected)
        else:
            self._link.unsubscribe(share)


class _Members(Room):
    """Tells the mesh who comes and goes, when all other rooms have heard of it. Nothing is said of this kind."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def joined(self, node: str) -> None:
        self._mesh.joined(node)

    def left(self, node: str) -> None:
        self._mesh.left(node)

    def received(self, node: str, data: bytes) -> None:
        raise ProtocolFault(f"{len(data)} bytes from {node} of a kind that there is not")


class _Confirmations(Confirmer):
    """Has things leave when the others know what is asked for here."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def wait(self, waiting: Confirmed) -> bool:
        return self._mesh.interest.wait(_Answer(waiting), self._mesh.server.loop.time())


class _Answer(Waiter):
    """What waits in the core for the others to know of subscriptions."""

    def __init__(self, waiting: Confirmed) -> None:
        self._waiting = waiting

    def confirmed(self, everywhere: bool) -> None:
        """They do, or it has waited long enough."""
        del everywhere
        self._waiting.confirmed()


def _share(group: SharedGroup | None) -> str:
    return "" if group is None else group.name
