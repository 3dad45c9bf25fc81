"""Loss told in band: `canopy-lost` in the next message, once, and the message otherwise as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, V311, Publish
from broker.core.codec.properties import decode_forward
from broker.core.counters import FULL_BYTES, FULL_MESSAGES
from broker.core.queues.drop_notice import with_properties
from tests.core.harness import Client, Network, limits
from tests.core.recount import notes


def parsed(frame: bytes) -> Publish:
    """The packet in a frame; the project's decoder refuses what is not well-formed."""
    decoder = Decoder(1 << 28, server=False, version=V5)
    decoder.feed(frame)
    assert decoder.next_frame()
    assert decoder.end == len(frame)
    return decoder.publish()


def told(client: Client) -> list[str]:
    """All that a client was told of its losses, in order."""
    return [
        value
        for packet in client.inbox
        for name, value in decode_forward(packet.properties).user
        if name == "canopy-lost"
    ]


def lossy(**changes: int) -> tuple[Network, Client, Client]:
    """A subscriber to everything with a queue for three messages that does not read, and a publisher."""
    network = Network(limits(live_messages=3, **changes))
    client = network.client("c", expiry=1_000)
    client.subscribe("#", qos=1)
    publisher = network.client("p")
    client.wire.frozen = True
    return network, client, publisher


def thaw(network: Network, client: Client) -> None:
    client.wire.frozen = False
    network.settle()


counts = st.sampled_from([0, 1, 9, 127, 16_384, 10**9])


class TestFrames:
    @given(
        qos=st.sampled_from([0, 1, 2]),
        retain=st.booleans(),
        section=st.sampled_from(
            [b"", b"\x01\x01", b"\x26\x00\x01a\x00\x01b" * 2, b"\x26\x00\x01a\x00\x5ab" + b"c" * 89]
        ),
        payload=st.one_of(
            st.binary(max_size=40), st.integers(60, 140).map(bytes), st.integers(16_300, 16_400).map(bytes)
        ),
        lost=st.lists(counts, min_size=10, max_size=10).filter(any),
    )
    def test_nothing_else_changes(
        self, qos: int, retain: bool, section: bytes, payload: bytes, lost: list[int]
    ) -> None:
        """Whatever the lengths are on both sides of a byte's bounds [MQTT-3.3.2-17] [MQTT-3.3.2-18]."""
        before = Publish(b"t/1", payload, qos, retain, False, 7 if qos else 0, section)
        after = parsed(with_properties(encode(before, V5), notes(lost)))
        assert (after.topic, after.payload, after.qos, after.retain, after.packet_id) == (
            before.topic, before.payload, before.qos, before.retain, before.packet_id
        )  # fmt: skip
        assert after.properties.startswith(section)
        user = decode_forward(after.properties[len(section) :]).user
        assert [name for name, _ in user] == ["canopy-lost"] * sum(1 for count in lost if count)
        assert [int(value.partition(";")[0]) for _, value in user] == [count for count in lost if count]


class TestTelling:
    def test_the_next_message_tells_and_only_that(self) -> None:
        network, client, publisher = lossy()
        for _ in range(5):
            publisher.publish("t")
        thaw(network, client)
        publisher.publish("t")
        assert told(client) == ["2;full-messages"]
        assert "canopy-lost" in repr(decode_forward(client.inbox[0].properties).user)

    def test_of_a_burst_the_first_message_tells(self) -> None:
        network, client, publisher = lossy()
        for _ in range(20):
            publisher.post("t")
        network.settle()
        thaw(network, client)
        assert told(client) == [f"{20 - len(client.inbox)};full-messages"]
        assert all(not packet.properties for packet in client.inbox[1:])

    def test_one_property_for_each_cause(self) -> None:
        network, client, publisher = lossy(live_bytes=250)
        for size in (10, 60, 60, 60, 10, 10, 10):
            publisher.publish("t", bytes(size))
        thaw(network, client)
        dropped = client.session.dropped_by_cause()
        assert dropped[FULL_MESSAGES] > 0
        assert sum(dropped) == 7 - len(client.inbox)
        assert sorted(told(client)) == sorted(
            f"{count};{name}"
            for count, name in ((dropped[FULL_MESSAGES], "full-messages"), (dropped[FULL_BYTES], "full-bytes"))
            if count
        )

    @pytest.mark.parametrize("qos", [1, 2])
    def test_with_quality(self, qos: int) -> None:
        network, client, publisher = lossy(max_inflight=2, session_messages=2)
        for _ in range(9):
            publisher.publish("t", qos=qos)
        thaw(network, client)
        assert told(client) == ["5;no-quota"]

    def test_over_a_reconnect_of_the_session(self) -> None:
        _network, client, publisher = lossy()
        for _ in range(5):
            publisher.publish("t")
        client.cut()
        client.connect(clean=False, expiry=1_000)
        publisher.publish("t")
        # Two did not fit; three went with the connection.
        assert sorted(told(client)) == ["2;full-messages", "3;disconnected"]

    def test_not_of_what_came_while_the_client_was_away(self) -> None:
        _network, client, publisher = lossy()
        client.cut()
        for _ in range(5):
            publisher.publish("t")
        client.connect(clean=False, expiry=1_000)
        publisher.publish("t")
        assert told(client) == []
        assert sum(client.session.dropped_by_cause()) == 5

    def test_not_to_3_1_1_and_not_where_it_is_turned_off(self) -> None:
        for version, tells in ((V311, True), (V5, False)):
            network = Network(limits(live_messages=3, tell_loss=tells))
            client, publisher = network.client("c", version), network.client("p")
            client.subscribe("#")
            client.wire.frozen = True
            for _ in range(5):
                publisher.publish("t")
            thaw(network, client)
            assert told(client) == []
            assert len(client.inbox) == 3
            assert all(not packet.properties for packet in client.inbox)

    def test_what_would_be_too_large_for_the_client_is_told_later(self) -> None:
        """[MQTT-3.1.2-24]"""
        network = Network(limits(live_messages=3))
        client, publisher = network.client("c", max_packet=60), network.client("p")
        client.subscribe("#")
        client.wire.frozen = True
        for _ in range(5):
            publisher.publish("t", bytes(50))
        thaw(network, client)
        assert told(client) == []
        assert len(client.inbox) == 3
        publisher.publish("t", b"small")
        assert told(client) == ["2;full-messages"]
