"""An upstream broker played by hand: the link's core on one side, packets on the other, and no socket in between.

Owns `LinkScene`: a broker's core with clients (`tests.core.harness`), and one link whose upstream says what a test has
it say. Everything is deterministic, and moves when a test says so.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import (
    V5,
    Ack,
    Connack,
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from canopy_mqtt.core.codec.properties import SUBSCRIPTION_IDENTIFIER
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.core.persistence.restore import refill
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.links.filters.declarer import Declarer
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.protocol.link_state import LinkState
from canopy_mqtt.links.protocol.session import UplinkSession
from canopy_mqtt.links.protocol.uplink import ConnectTerms, Uplink
from tests.core.harness import Network, bag
from tests.store.grouped import GroupStore
from tests.store.observed import at_once
from tests.support.restored import restore

Kind = TypeVar("Kind", bound=Packet)

OWN = "here"
"""The broker id of the broker under test."""


class LinkScene:
    """A broker with one link. `link` is its present connection, `packets` what it has sent and nobody has asked for."""

    def __init__(
        self,
        local: str = "",
        remote: str = "",
        publish: tuple[str, ...] = ("#",),
        given: Limits | None = None,
        store: GroupStore | None = None,
        roots: tuple[str, ...] = ("#",),
    ) -> None:
        """`store`: an open one that keeps everything, and of what it has the broker and the link are made. By its
        `roots` the link takes messages without having subscribed."""
        self.network = Network(given)
        router = self.network.router
        router.broker_id = OWN
        mapping = Mapping(local, remote, roots)
        self.session = UplinkSession("up", mapping, OWN, router.limits.hop_limit, router.counters, router.sessions)
        self.store = store
        records: list[SessionRecord] = []
        if store is not None:
            router.journal = store.journal
            records = restore(router, at_once(store.load()), self.network.now)
        router.adopt(self.session)
        for record in records:
            deque(refill(router, self.session, record, self.network.now), 0)
        for topic_filter in publish:
            if topic_filter in self.session.subscriptions:
                continue
            router.subscribe(self.session, "", topic_filter, SubscriptionRequest(topic_filter, 2, True, True, 0), 0)
        self.declarer = Declarer(2)
        self.link_state = LinkState(router, self.session, self.declarer)
        self.replays = self.link_state.replays
        self.figures = self.link_state.figures
        self.terms = ConnectTerms()
        self.terms.client_id = "link"
        self.link: Uplink
        self.packets: list[Packet] = []

    def connect(
        self, version: int = V5, present: bool = False, canopy: bool = False, bridge: bool = False, **integers: int
    ) -> Connect:
        """Connect; the upstream accepts. What the CONNECT said."""
        connect = self.dial(version, bridge, not present)
        props = bag(("canopy-link", "there")) if canopy else bag()
        props.integers.update({int(name[1:], 16): value for name, value in integers.items()})
        self.say(Connack(present, 0, props))
        return connect

    def dial(self, version: int = V5, bridge: bool = False, clean: bool = True) -> Connect:
        """Open a connection, and leave the CONNECT without an answer."""
        # Its own list of touched send buffers: nobody wakes a link's writer here.
        send_buffer = SendBuffer([], self.network.router.counters, 0, 0)
        self.link = Uplink(self.link_state, self.terms, send_buffer, version, bridge)
        self.packets = []
        self._decoder = Decoder(1 << 28, server=True)
        self._decoder.feed(self.link.hello(clean))
        assert self._decoder.next_frame()
        packet = self._decoder.packet()
        assert isinstance(packet, Connect)
        return packet

    def say(self, *packets: Packet) -> None:
        """The upstream sends these in one read."""
        self.raw(b"".join(encoder.encode(each, self.link.version) for each in packets))

    def raw(self, data: bytes) -> None:
        """The upstream sends any bytes."""
        self.link.receive(data, self.network.now)
        while self.link.unfinished:
            self.link.go_on(self.network.now)
        self.settle()

    def commit(self) -> None:
        """Everything that the store was told is safe, and what waited for it leaves."""
        assert self.store is not None
        self.store.commit_all()
        self.settle()

    def settle(self) -> None:
        """Let the broker and its clients settle, and take what goes up."""
        self.network.settle()
        self.link.declare(self.network.now)
        while True:
            data = self.link.send_buffer.take(1 << 28, self.network.now)
            self._decoder.feed(data)
            if not self.link.refill(self.network.now):
                break
        if self.link.final_packet:
            self._decoder.feed(self.link.final_packet)
            self.link.final_packet = b""
        while self._decoder.next_frame():
            self.packets.append(self._decoder.packet())
        self.network.settle()

    def took(self, kind: type[Kind]) -> list[Kind]:
        """The packets of a kind that went up since the last time."""
        self.settle()
        found = [each for each in self.packets if isinstance(each, kind)]
        self.packets = [each for each in self.packets if not isinstance(each, kind)]
        return found

    def lose(self) -> None:
        """The connection breaks."""
        self.link.lost("lost", self.network.now)
        self.network.settle()

    def accept(self) -> dict[str, int]:
        """Grant every SUBSCRIBE and UNSUBSCRIBE that comes: the filters that were asked for, with their identifiers."""
        asked: dict[str, int] = {}
        while True:
            subscribes, unsubscribes = self.took(Subscribe), self.took(Unsubscribe)
            if not subscribes and not unsubscribes:
                return asked
            for one in subscribes:
                for request in one.requests:
                    asked[request.topic_filter] = one.properties.integers.get(SUBSCRIPTION_IDENTIFIER, 0)
                self.say(Suback(one.packet_id, [request.qos for request in one.requests]))
            for other in unsubscribes:
                self.say(Unsuback(other.packet_id, [0] * len(other.topic_filters)))

    def ask(self, *topic_filters: str) -> dict[str, int]:
        """Declare these filters, and let the upstream grant them."""
        for topic_filter in topic_filters:
            self.declarer.declare(topic_filter)
        return self.accept()

    def send(self, topic: str, payload: bytes = b"x", **more: Any) -> None:
        """A message from upstream."""
        self.say(Publish(topic.encode(), payload, **more))

    def acknowledgements(self) -> list[tuple[int, int, int]]:
        """Kind, packet identifier and reason code of each acknowledgement that went up."""
        return [(each.kind, each.packet_id, each.reason_code) for each in self.took(Ack)]
