"""Who is connected: changed by events only, between fanouts, and nothing is left of a peer that has gone."""

from __future__ import annotations

import gc

import pytest

from broker.core.codec.packets import Will
from broker.core.hooks import EventListener
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import Message
from broker.core.routing.peers import PeerConnected, PeerDisconnected
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.topics.subscription import Subscription
from tests.core.harness import Network, limits


class Notes(EventListener):
    """Writes down whose session ended; here that is everybody who left."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def session_ended(self, client_id: str) -> None:
        self.left.append(client_id)


class Failing(Notes):
    """Raises for one of them."""

    def session_ended(self, client_id: str) -> None:
        super().session_ended(client_id)
        if client_id == "a":
            raise RuntimeError("a fault")


def watched() -> tuple[Router, Notes]:
    """A router that says who left."""
    router, notes = Network().router, Notes()
    router.event_listener = notes
    return router, notes


def peer(router: Router, name: str) -> tuple[Session, Outbox]:
    """A session and an outbox, not connected."""
    return Session(name, 0, 0, router.counters), Outbox([], router.counters, 0, 0)


class TestEvents:
    """Posting, draining, applying."""

    def test_what_an_event_raises_is_no_matter_of_the_next_one(self) -> None:
        """It was applied, and is not again; those behind it are, at the next drain."""
        router, notes = Network().router, Failing()
        router.event_listener = notes
        state = router.peers
        peers = [peer(router, name) for name in "abc"]
        for session, outbox in peers:
            state.post(PeerConnected(session, outbox))
        state.drain(router, 1.0)
        for session, outbox in peers:
            state.post(PeerDisconnected(session, outbox, "stalled"))
        with pytest.raises(RuntimeError, match="a fault"):
            state.drain(router, 1.0)
        assert notes.left == ["a"]
        state.drain(router, 1.0)
        assert notes.left == ["a", "b", "c"]
        state.drain(router, 1.0)
        assert (notes.left, state.outboxes) == (["a", "b", "c"], {})

    def test_nothing_changes_before_drain(self) -> None:
        """An event takes effect when events are drained, in order."""
        router, notes = watched()
        state = router.peers
        session, outbox = peer(router, "a")
        state.post(PeerConnected(session, outbox))
        seen = [(session.outbox, dict(state.outboxes))]
        state.drain(router, 1.0)
        seen.append((session.outbox, dict(state.outboxes)))
        state.post(PeerDisconnected(session, outbox, "stalled"))
        seen.append((session.outbox, dict(state.outboxes)))
        assert notes.left == []
        state.drain(router, 1.0)
        seen.append((session.outbox, dict(state.outboxes)))
        there = {session: outbox}
        assert seen == [(None, {}), (outbox, there), (outbox, there), (None, {})]
        assert notes.left == ["a"]

    def test_old_news(self) -> None:
        """A disconnect of a connection that was replaced, or told twice, says nothing new."""
        router, notes = watched()
        state = router.peers
        session, first = peer(router, "a")
        _, second = peer(router, "a")
        for outbox in (first, second):
            state.post(PeerConnected(session, outbox))
        state.post(PeerDisconnected(session, first, "connection-lost"))
        state.drain(router, 1.0)
        assert (notes.left, state.outboxes) == ([], {session: second})
        for _ in range(2):
            state.post(PeerDisconnected(session, second, "connection-lost"))
        state.drain(router, 1.0)
        assert (notes.left, state.outboxes) == (["a"], {})

    def test_events_posted_while_draining(self) -> None:
        """They are applied in the same drain, after those before them, not inside one another."""
        router = Network().router
        state = router.peers
        sessions = [peer(router, name) for name in "abc"]

        class Chain(Notes):
            depth = 0

            def session_ended(self, client_id: str) -> None:
                assert self.depth == 0
                self.depth += 1
                super().session_ended(client_id)
                if len(self.left) < 3:
                    session, outbox = sessions[len(self.left)]
                    state.post(PeerDisconnected(session, outbox, "stalled"))
                    state.drain(router, 1.0)
                self.depth -= 1

        notes = Chain()
        router.event_listener = notes
        for session, outbox in sessions:
            state.post(PeerConnected(session, outbox))
        state.post(PeerDisconnected(*sessions[0], "stalled"))
        state.drain(router, 1.0)
        assert notes.left == ["a", "b", "c"]
        assert state.outboxes == {}


class TestMembership:
    """Nobody joins or leaves in the middle of a fanout."""

    def test_leaving_takes_effect_between_batches(self) -> None:
        """A peer given up while a read is routed is a receiver until the events are applied."""
        network = Network()
        clients = [network.client(f"c{number}") for number in range(3)]
        for client in clients:
            client.subscribe("t")
            client.wire.frozen = True
        router = network.router
        gone = clients[1]
        router.peers.post(PeerDisconnected(gone.session, gone.wire.outbox, "stalled"))
        before = dict(router.peers.outboxes)
        router.publish(Message(b"t", b"x", 0, False, b"", 0.0, ""), None)
        assert router.peers.outboxes == before
        assert [client.wire.outbox.messages for client in clients] == [1, 1, 1]
        router.peers.drain(router, network.now)
        assert len(router.peers.outboxes) == 2
        assert clients[1].wire.outbox.messages == 0

    def test_only_connected_peers_are_listed(self) -> None:
        """Connections that are not accepted, or refused, never become peers."""
        network = Network(limits(allow_anonymous=0))
        network.idle("a").dial()
        network.idle("b").connect()
        assert network.router.peers.outboxes == {}
        network.client("c", user_name="u")
        assert [session.client_id for session in network.router.peers.outboxes] == ["c"]

    def test_shared_subscriptions_follow(self) -> None:
        """Members of share groups stand among the connected or the others, as their clients come and go."""
        network = Network()
        client = network.client("c", expiry=100)
        client.subscribe("$share/g/t", "$share/h/t", "t")
        entry = network.router.trie.find("t")
        assert entry is not None
        shared = [client.session.subscriptions[f"$share/{name}/t"] for name in "gh"]
        seen = []
        for _ in range(2):
            seen += [(group.connected.members, group.away.members) for group in entry.groups.values()]
            client.cut()
            network.settle()
            seen += [(group.connected.members, group.away.members) for group in entry.groups.values()]
            client.connect(clean=False, expiry=100)
        there: list[tuple[list[Subscription], list[Subscription]]] = [([one], []) for one in shared]
        gone: list[tuple[list[Subscription], list[Subscription]]] = [([], [one]) for one in shared]
        assert seen == [*there, *gone] * 2
        client.connect(clean=True)
        assert network.router.trie.find("t") is None

    def test_wills_of_those_who_leave_together(self) -> None:
        """The will of one is offered to those still connected when it is their turn, and to no outbox that is gone."""
        network = Network()
        clients = [network.client(f"c{number}", will=Will("w", b"%d" % number)) for number in range(4)]
        for client in clients:
            client.subscribe("w")
            client.wire.frozen = True
        for client in clients:
            network.router.peers.post(PeerDisconnected(client.session, client.wire.outbox, "stalled"))
        network.router.peers.drain(network.router, network.now)
        assert network.router.peers.outboxes == {}
        assert network.router.sessions == {}
        assert [client.wire.outbox.messages for client in clients] == [0] * 4


def test_nothing_refers_to_a_peer_that_is_gone() -> None:
    """After its PeerDisconnected was applied, neither the fanout state nor the kept session holds the outbox."""
    network = Network()
    publisher = network.client("p")
    client = network.client("c", expiry=100)
    client.subscribe("t", "$share/g/t", qos=1)
    client.wire.frozen = True
    for number in range(20):
        publisher.publish("t", b"%d" % number, number % 2)
    outbox = client.wire.outbox
    session = client.session
    held = [session.outbox]
    client.cut()
    network.settle()
    held.append(session.outbox)
    assert held == [outbox, None]
    held.clear()
    router = network.router
    assert session not in router.peers.outboxes
    assert outbox not in router.peers.outboxes.values()
    assert outbox not in router.peers.touched
    assert client.wire.protocol.session is None
    # Whatever else refers to it (its own channel and connection) goes with it; nothing that stays does.
    gc.collect()
    lasting = [session, router.peers, router, router.peers.outboxes, router.peers.touched, router.sessions]
    lasting += [vars(one) for one in (session, router.peers, router) if hasattr(one, "__dict__")]
    referrers = {id(one) for one in gc.get_referrers(outbox)}
    assert not referrers & {id(one) for one in lasting}


def test_half_open_peers_cost_nothing_after_eviction() -> None:
    """Publishing to a session whose peer was evicted touches no outbox."""
    network = Network()
    client, publisher = network.client("c", expiry=100), network.client("p")
    client.subscribe("t", qos=1)
    client.wire.frozen = True
    client.wire.lose("stalled")
    network.settle()
    outbox = client.wire.outbox
    seen = (outbox.queue.offered, outbox.messages, outbox.queue.dropped_in_all())
    for number in range(10):
        publisher.publish("t", b"x", number % 2)
    assert (outbox.queue.offered, outbox.messages, outbox.queue.dropped_in_all()) == seen
    assert client.session.queued() == 5
