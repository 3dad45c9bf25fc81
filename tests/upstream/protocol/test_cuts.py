"""Messages over a link whose connection breaks between any two bytes: the link's core and a whole broker's core."""

from __future__ import annotations

import random

import pytest

from broker.core.causes import CONNECTION_LOST
from broker.core.codec.packets import V5, V311
from broker.core.connection.protocol import ServerProtocol
from broker.core.hooks import Origin
from broker.core.queues.live.outbox import Outbox
from broker.upstream.protocol.uplink import CONNECTED, Uplink
from tests.core.harness import Network, limits
from tests.upstream.scripted import Scene

ALL = 1 << 20


class Wire:
    """A link and its upstream; bytes move when a test says so, and as many as it says."""

    def __init__(self, version: int, chance: random.Random) -> None:
        self.version = version
        self.chance = chance
        self.cloud = Network()
        window = chance.choice([1, 2, 5, 1_000])
        given = limits(max_inflight=window, live_messages=chance.choice([2, 10, 1_000]))
        self.scene = Scene(publish=("up/#",), given=given)
        self.scene.offer.session_expiry = 1_000
        self.scene.offer.max_inflight = window
        self.scene.declarer.declare("down/#")
        self.protocol: ServerProtocol | None = None
        self.up = bytearray()
        self.down = bytearray()

    def dial(self, clean: bool) -> None:
        scene, router = self.scene, self.cloud.router
        outbox = Outbox([], scene.network.router.counters, scene.network.router.limits.live_messages, 0)
        scene.link = Uplink(scene.link_state, scene.offer, outbox, self.version, self.version == V311)
        self.protocol = ServerProtocol(router, Outbox([], router.counters, 0, 0), Origin("link"))
        self.up = bytearray(scene.link.hello(clean))
        self.down = bytearray()

    def cut(self) -> None:
        if self.protocol is not None:
            self.scene.link.lost("cut", self.scene.network.now)
            self.protocol.lost(CONNECTION_LOST, self.cloud.now)
            self.protocol = None
            self.scene.network.settle()
            self.cloud.settle()

    def move(self, count: int) -> None:
        """So many bytes up, and so many down."""
        protocol = self.protocol
        if protocol is None:
            return
        self._write(protocol)
        data = bytes(self.up[:count])
        del self.up[:count]
        if data:
            protocol.receive(data, self.cloud.now)
        self.cloud.settle()
        data = bytes(self.down[:count])
        del self.down[:count]
        link = self.scene.link
        if data:
            link.receive(data, self.scene.network.now)
            while link.unfinished:
                link.go_on(self.scene.network.now)
        self.scene.network.settle()
        self._write(protocol)

    def _write(self, protocol: ServerProtocol) -> None:
        link, now = self.scene.link, self.scene.network.now
        if link.state == CONNECTED:
            link.declare(now)
            while True:
                self.up += link.outbox.take(self.chance.choice([50, ALL]), now)
                if not link.refill(now):
                    break
        more = True
        while more:
            self.down += protocol.outbox.take(ALL, self.cloud.now)
            session = protocol.session
            more = (session is not None and session.backlog and session.pump(self.cloud.now)) or (
                not protocol.outbox.empty
            )


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("seed", range(15))
def test_nothing_is_lost_and_qos_2_comes_once(version: int, seed: int) -> None:
    chance = random.Random(seed)
    wire = Wire(version, chance)
    below = wire.scene.network.client("below")
    below.subscribe("down/#", qos=2)
    above = wire.cloud.client("above")
    above.subscribe("up/#", qos=2)
    wire.dial(version == V5)
    for _ in range(20):
        wire.move(ALL)
    assert wire.scene.link.state == CONNECTED
    sent: dict[bytes, int] = {}
    for _ in range(chance.randrange(20, 120)):
        dice = chance.random()
        if dice < 0.6:
            payload, qos = b"%d" % len(sent), chance.choice([1, 2])
            sent[payload] = qos
            publisher, way = (below, "up") if dice < 0.3 else (above, "down")
            publisher.publish(f"{way}/{chance.randrange(2)}", payload, qos=qos)
        elif dice < 0.85:
            wire.move(chance.choice([1, 3, 10, 40, 1_000]))
        elif dice < 0.92:
            wire.cut()
        elif wire.protocol is None:
            wire.dial(False)
    if wire.protocol is None:
        wire.dial(False)
    for _ in range(200):
        wire.move(ALL)
    got = [each.payload for each in [*above.inbox, *below.inbox]]
    for payload, qos in sent.items():
        assert got.count(payload) >= 1
        assert qos == 1 or got.count(payload) == 1
    session = wire.scene.session
    assert not session.inflight
    assert session.queued() == 0
    assert session.offered == session.delivered_in_all() + session.ledger.in_all()
