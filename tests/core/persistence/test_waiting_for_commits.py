"""What stands for something that was told to a journal leaves when that is committed, and the rest as ever.

What brokers that are killed, and connections that are lost, leave of it is held by
`tests/store/test_commit_machine.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, PUBREL, V5, V311, Ack, Publish, Suback, Unsuback
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.queues.held import FILTERS_ANSWER
from canopy_mqtt.core.queues.send_buffer import MAX_CONTROL_BYTES
from tests.core.harness import Client, Network, limits
from tests.store.grouped import GroupStore
from tests.store.observed import at_once

EXPIRY = 100


class House:
    """A network whose router keeps everything in a store that commits when it is told."""

    def __init__(self, **given: Any) -> None:
        self.network = Network(limits(**given))
        self.store = GroupStore(lambda: self.network.now)
        at_once(self.store.open(lambda: self.network.now))
        self.network.router.journal = self.store.journal

    def commit(self) -> None:
        """Everything told so far is safe, and what waited for it leaves."""
        self.store.commit_all()
        self.network.settle()

    def client(self, client_id: str, version: int = V5, clean: bool = True, **connect: Any) -> Client:
        """A client with a clean session, connected."""
        return self.network.client(client_id, version, clean=clean, **connect)

    def lasting(self, client_id: str, version: int = V5, **connect: Any) -> Client:
        """A client with a session that outlives its connection."""
        client = self.network.idle(client_id, version)
        client.connect(clean=False, expiry=EXPIRY if version == V5 else None, **connect)
        self.commit()
        return client

    def receiver(self, client_id: str = "sub", topic_filter: str = "t/#", qos: int = 2, **connect: Any) -> Client:
        """A client that has subscribed, and is connected."""
        client = self.lasting(client_id, **connect)
        client.send(p.Subscribe(client.take_id(), [Request(topic_filter, qos)]))
        self.network.settle()
        self.commit()
        return client

    def away(self, client_id: str = "sub", topic_filter: str = "t/#", qos: int = 2) -> Client:
        """The same, not connected: what it is sent has to be kept."""
        client = self.receiver(client_id, topic_filter, qos)
        client.cut()
        self.commit()
        return client


def _kinds(client: Client) -> list[tuple[int, int]]:
    """The acknowledgements that came on this connection."""
    return [(each.kind, each.packet_id) for each in client.got(Ack)]


@pytest.fixture
def house() -> House:
    return House()


# -- what a client publishes -------------------------------------------------------------------------------------------


def test_acknowledgements_keep_their_order_behind_one_that_waits(house: House) -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3]"""
    house.away()
    client = house.client("pub")
    client.post("nobody", b"1", 1)
    client.post("t/1", b"2", 1)
    client.post("nobody", b"3", 1)
    client.post("nobody", b"4", 2)
    client.post("nobody", b"5", 1)
    house.network.settle()
    assert _kinds(client) == [(PUBACK, 1)]
    house.commit()
    assert _kinds(client)[:5] == [(PUBACK, 1), (PUBACK, 2), (PUBACK, 3), (PUBREC, 4), (PUBACK, 5)]


def test_a_member_that_is_not_kept_gets_qos_2_of_its_group_when_the_queue_has_given_it_up(house: House) -> None:
    """Else a broker that dies in between would find it in the queue, and give it to another member, too."""
    house.away(topic_filter="$share/g/t")
    house.client("pub").publish("t", b"1", 2)
    house.commit()
    passing = house.client("passing")
    passing.send(p.Subscribe(passing.take_id(), [Request("$share/g/t", 2)]))
    house.network.settle()
    assert passing.got(Publish) == []
    house.commit()
    assert [each.payload for each in passing.got(Publish)] == [b"1"]


def test_only_what_is_committed_leaves(house: House) -> None:
    """One group is being written, and the next one fills."""
    house.away()
    client = house.client("pub")
    client.publish("t/1", b"1", 1)
    house.store.close_group()
    client.publish("t/1", b"2", 1)
    house.store.close_group()
    assert client.got(Ack) == []
    house.store.commit()
    house.network.settle()
    assert _kinds(client) == [(PUBACK, 1)]
    house.store.commit()
    house.network.settle()
    assert _kinds(client) == [(PUBACK, 1), (PUBACK, 2)]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_client_of_311_is_not_read_from_while_as_many_are_held() -> None:
    house = House(receive_maximum=5)
    house.away()
    client = house.client("pub", V311)
    for number in range(20):
        client.post("t/1", b"%d" % number, 1)
    house.network.settle()
    assert client.wire.protocol.throttled
    assert len(house.network.session("sub").queue.pending or ()) == 5
    for _ in range(4):
        house.commit()
    assert _kinds(client) == [(PUBACK, 1 + number) for number in range(20)]


@pytest.mark.crowd
@pytest.mark.parametrize(
    "flood", [Ack(PUBREL, 7), Ack(PUBREC, 7), p.Unsubscribe(9, ["none/at/all"]), p.Subscribe(9, [Request("t", 1)])]
)
def test_what_is_held_of_other_packets_is_bounded_in_bytes(flood: p.Packet) -> None:
    """A client that has its answers held sends what Receive Maximum does not count: it is not read from any more."""
    house = House()
    client = house.lasting("pub")
    house.store.gate.journal_position += 1
    send_buffer = client.wire.send_buffer
    reads = 0
    while not send_buffer.congested:
        # What the shell asks after each read.
        for _ in range(100):
            client.send(flood)
        house.network.settle()
        reads += 1
    assert MAX_CONTROL_BYTES < send_buffer.held_bytes <= MAX_CONTROL_BYTES + 100 * (FILTERS_ANSWER + 6)
    assert reads <= (170 if isinstance(flood, Ack) else 6)
    house.commit()
    assert send_buffer.held_bytes + send_buffer.control_bytes == 0
    assert (send_buffer.unqueued, send_buffer.held_bytes) == (0, 0)
    assert len(client.packets) == 1 + 100 * reads


# -- lost connections --------------------------------------------------------------------------------------------------


# -- SUBACK and UNSUBACK -----------------------------------------------------------------------------------------------


def test_unsuback_for_what_a_lost_connection_took_back_waits_too(house: House) -> None:
    client = house.receiver()
    client.send(p.Unsubscribe(2, ["t/#"]))
    house.network.settle()
    client.cut()
    client.connect(clean=False, expiry=EXPIRY)
    client.send(p.Unsubscribe(3, ["t/#"]))
    house.network.settle()
    assert client.got(Unsuback) == []
    house.commit()
    assert [(each.packet_id, each.reason_codes) for each in client.got(Unsuback)] == [(3, [0x11])]


def test_suback_leaves_at_once_where_nobody_keeps_the_session(house: House) -> None:
    house.away()
    house.client("pub").publish("t/1", b"x", 1)
    assert house.store.gate.pending()
    client = house.client("clean")
    assert client.subscribe("u/#", qos=1) == [1]
    assert client.unsubscribe("u/#") == [0]


# -- what a client is sent ---------------------------------------------------------------------------------------------


def test_a_qos_2_publish_waits_until_it_is_kept_that_it_is_in_flight(house: House) -> None:
    client = house.receiver()
    other = house.client("pub")
    other.publish("t/1", b"first", 2)
    other.publish("t/1", b"one", 1)
    other.publish("t/1", b"second", 2)
    assert client.payloads() == [b"one"]
    house.commit()
    assert client.payloads() == [b"first", b"second"]


def test_one_that_may_leave_and_was_not_written_stays_before_what_is_not_committed(house: House) -> None:
    """The connection ends between two commits [MQTT-4.6.0-6]."""
    client = house.receiver()
    other = house.client("pub")
    commits = house.network.router.commits
    assert commits is not None
    other.publish("t/1", b"first", 2)
    told = commits.journal_position
    other.publish("t/1", b"second", 2)
    commits.advance(told)
    client.cut()
    client.connect(clean=False, expiry=EXPIRY, settle=False)
    house.network.settle()
    house.commit()
    house.commit()
    assert client.payloads() == [b"first", b"second"]


def test_a_run_of_pubrecs_is_answered_when_all_of_it_is_kept(house: House) -> None:
    """In their order [MQTT-4.6.0-4] [MQTT-4.3.3-4]."""
    client = house.receiver()
    other = house.client("pub")
    for number in range(5):
        other.publish("t/1", b"%d" % number, 2)
    client.answering = False
    house.commit()
    client.answer()
    assert client.acks(PUBREL) == []
    house.commit()
    assert [each.packet_id for each in client.acks(PUBREL)] == [1, 2, 3, 4, 5]


def test_held_publishes_that_find_no_room_go_when_the_writer_has_made_some() -> None:
    """A send buffer keeps its bounds also where many are committed at once."""
    house = House(live_messages=2)
    client = house.receiver()
    other = house.client("pub")
    client.wire.frozen = True
    for number in range(6):
        other.publish("t/1", b"%d" % number, 2)
    house.store.commit_all()
    assert client.wire.send_buffer.messages <= 2
    client.wire.frozen = False
    for _ in range(12):
        house.commit()
    assert client.payloads() == [b"%d" % number for number in range(6)]


def test_an_identifier_that_is_held_is_not_acknowledged_by_guessing(house: House) -> None:
    """What was never written has no PUBREC."""
    client = house.receiver()
    house.client("pub").publish("t/1", b"x", 2)
    client.send(Ack(PUBREC, 1))
    house.network.settle()
    assert client.session.inflight.count == 1
    house.commit()
    assert client.payloads() == [b"x"]


# -- a store that fails ------------------------------------------------------------------------------------------------


def test_refuse_ends_the_connection_of_a_client_that_cannot_be_told() -> None:
    """3.1.1 has no reason codes: an acknowledgement would be a promise."""
    house = House(store_refuses=True)
    house.away()
    client = house.client("pub", V311)
    client.publish("t/1", b"0", 0)
    house.store.gate.fail()
    client.publish("t/1", b"x", 1)
    assert client.closed
    assert client.got(Ack) == []


def test_a_refusal_stays_behind_what_is_held() -> None:
    """[MQTT-4.6.0-2]"""
    house = House(store_refuses=True)
    house.away()
    client = house.client("pub")
    client.publish("t/1", b"x", 1)
    house.store.gate.fail()
    client.publish("t/1", b"y", 1)
    assert client.got(Ack) == []
    house.store.gate.recover()
    house.commit()
    assert [each.reason_code for each in client.got(Ack)] == [0, 0x97]


def test_refuse_changes_no_subscription_that_is_kept() -> None:
    house = House(store_refuses=True)
    client = house.receiver()
    old = house.lasting("old", V311)
    house.store.gate.fail()
    client.send(p.Subscribe(7, [Request("u", 1), Request("v", 1)]))
    client.send(p.Unsubscribe(8, ["t/#"]))
    old.send(p.Subscribe(7, [Request("u", 1)]))
    house.network.settle()
    assert [each.reason_codes for each in client.got(Suback)][-1] == [0x97, 0x97]
    assert [each.reason_codes for each in client.got(Unsuback)] == [[0x83]]
    assert [each.reason_codes for each in old.got(Suback)] == [[0x80]]
    assert set(client.session.subscriptions) == {"t/#"}
    old.send(p.Unsubscribe(8, ["u"]))
    house.network.settle()
    assert old.closed
    # Nobody keeps this one.
    assert house.client("clean").subscribe("u", qos=1) == [1]
