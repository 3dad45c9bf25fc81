"""Who is connected: changed by events only, between fanouts, and nothing is left of a peer that has gone."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.hooks import EventListener
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.peers import PeerConnected, PeerDisconnected
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from tests.core.harness import Network


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


def peer(router: Router, name: str) -> tuple[Session, SendBuffer]:
    """A session and a send buffer, not connected."""
    return Session(name, 0, 0, router.counters), SendBuffer([], router.counters, 0, 0)


class TestEvents:
    """Posting, draining, applying."""

    def test_what_an_event_raises_is_no_matter_of_the_next_one(self) -> None:
        """It was applied, and is not again; those behind it are, at the next drain."""
        router, notes = Network().router, Failing()
        router.event_listener = notes
        state = router.peers
        peers = [peer(router, name) for name in "abc"]
        for session, send_buffer in peers:
            state.events.append(PeerConnected(session, send_buffer))
        state.drain(router, 1.0)
        for session, send_buffer in peers:
            state.events.append(PeerDisconnected(session, send_buffer, "stalled"))
        with pytest.raises(RuntimeError, match="a fault"):
            state.drain(router, 1.0)
        assert notes.left == ["a"]
        state.drain(router, 1.0)
        assert notes.left == ["a", "b", "c"]
        state.drain(router, 1.0)
        assert (notes.left, state.send_buffers) == (["a", "b", "c"], {})

    def test_a_connection_that_the_broker_ends_is_told_of_whatever_that_end_raises(self) -> None:
        """Its shell hears of it, and its client gets the reason."""
        network = Network()
        client = network.client("a")
        network.router.event_listener = Failing()
        with pytest.raises(RuntimeError, match="a fault"):
            client.wire.protocol.take_over(network.now)
        assert client.wire.send_buffer in network.router.peers.touched
        network.settle()
        assert client.end == 0x8E

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
                    session, send_buffer = sessions[len(self.left)]
                    state.events.append(PeerDisconnected(session, send_buffer, "stalled"))
                    state.drain(router, 1.0)
                self.depth -= 1

        notes = Chain()
        router.event_listener = notes
        for session, send_buffer in sessions:
            state.events.append(PeerConnected(session, send_buffer))
        state.events.append(PeerDisconnected(*sessions[0], "stalled"))
        state.drain(router, 1.0)
        assert notes.left == ["a", "b", "c"]
        assert state.send_buffers == {}
