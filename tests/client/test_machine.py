"""The client's machine: a broker says packets, and the test sees events and what goes back. Each test also runs with
every byte in a read of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from canopy_mqtt.client.failures import LostError, NotSupportedError, RefusedError
from canopy_mqtt.client.machine import Delivered, connect_packet
from canopy_mqtt.core.codec import properties as names
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.client.scripted import Scene, bag

Play = Callable[..., Scene]


@pytest.fixture(params=[False, True], ids=["whole", "bytewise"])
def play(request: pytest.FixtureRequest) -> Play:
    """Make a scene."""
    return lambda *given, **options: Scene(*given, bytewise=request.param, **options)


def message(qos: int, number: int = 0, **more: Any) -> Publish:
    return Publish(b"t", b"%d" % number, qos, **more)


# ---------------------------------------------------------------------------------------------------------- connecting


@pytest.mark.parametrize("version", [V311, V5])
def test_a_connect_says_all_that_it_was_told(play: Play, version: int) -> None:
    will = Will("gone", b"w", 1, True)
    scene = play(
        connect_packet(
            "c",
            version=version,
            clean_start=False,
            keep_alive=7,
            user_name="u",
            password="p",
            will=will,
            session_expiry=60,
            receive_maximum=10,
            max_packet_size=1000,
            user_properties=[("a", "b")],
        )
    )
    said = scene.open()
    assert (said.client_id, said.version, said.clean_start, said.keep_alive) == ("c", version, False, 7)
    assert (said.user_name, said.password, said.will) == ("u", b"p", will)
    given = {
        names.SESSION_EXPIRY_INTERVAL: 60,
        names.RECEIVE_MAXIMUM: 10,
        names.MAXIMUM_PACKET_SIZE: 1000,
    }
    assert said.properties.integers == (given if version == V5 else {})
    assert said.properties.user == ([("a", "b")] if version == V5 else [])


def test_an_accepted_client_knows_what_is_granted(play: Play) -> None:
    scene = play(connect_packet(""))
    scene.open()
    granted = bag({names.RECEIVE_MAXIMUM: 3}, {names.ASSIGNED_CLIENT_IDENTIFIER: "made"})
    assert scene.say(Connack(False, 0, granted)) == [Connack(False, 0, granted)]
    assert scene.machine.connected
    assert scene.machine.window == 3
    # It comes back under the same name.
    assert scene.open().client_id == "made"


@pytest.mark.parametrize(
    ("version", "code", "reason", "lasting"),
    [
        (V311, 1, reason_codes.UNSUPPORTED_PROTOCOL_VERSION, True),
        (V311, 2, reason_codes.CLIENT_IDENTIFIER_NOT_VALID, True),
        (V311, 3, reason_codes.SERVER_UNAVAILABLE, False),
        (V311, 4, reason_codes.BAD_USER_NAME_OR_PASSWORD, True),
        (V311, 5, reason_codes.NOT_AUTHORIZED, True),
        (V5, 0x87, reason_codes.NOT_AUTHORIZED, True),
        (V5, 0x97, reason_codes.QUOTA_EXCEEDED, False),
    ],
)
def test_a_refusal_is_told_by_reason_code(play: Play, version: int, code: int, reason: int, lasting: bool) -> None:
    scene = play(connect_packet("c", version=version))
    scene.open()
    assert scene.say(Connack(False, code)) == []
    failure = scene.machine.failure
    assert isinstance(failure, RefusedError)
    assert (failure.reason_code, failure.lasting) == (reason, lasting)
    assert reason_codes.name(reason) in scene.failure()
    assert scene.sent() == []


def test_a_session_after_a_clean_start_is_refused(play: Play) -> None:
    """[MQTT-3.2.2-2]"""
    scene = play()
    scene.connect(present=True)
    assert "a session is present after a clean start" in scene.failure()


@pytest.mark.parametrize("packet", [Suback(1, [0]), Pingresp(), message(0), Disconnect(0x8B)])
def test_the_first_packet_is_a_connack(play: Play, packet: Packet) -> None:
    """[MQTT-3.2.0-1]"""
    scene = play()
    scene.open()
    assert scene.say(packet) == []
    assert "the first packet is not a CONNACK" in scene.failure()


def test_nothing_is_taken_from_a_connection_that_is_over(play: Play) -> None:
    scene = play()
    scene.connect()
    scene.machine.disconnect()
    assert scene.only(Disconnect).reason_code == 0
    assert scene.say(message(0)) == []
    assert scene.machine.failure is None


@pytest.mark.parametrize(("code", "lasting"), [(0x8B, False), (0x8E, True)])
def test_the_brokers_disconnect_is_told(play: Play, code: int, lasting: bool) -> None:
    scene = play()
    scene.connect()
    said = Disconnect(code, bag(strings={names.REASON_STRING: "so it is"}))
    assert scene.say(said, message(0)) == [said]
    failure = scene.machine.failure
    assert isinstance(failure, LostError)
    assert (failure.reason_code, failure.lasting) == (code, lasting)
    assert "so it is" in scene.failure()
    assert scene.sent() == []


# ------------------------------------------------------------------------------------------- a broker that misbehaves


@pytest.mark.parametrize(
    ("packets", "reason_code", "words"),
    [
        ([b"\x00\x00"], 0x81, "packet type 0"),
        ([b"\x30\x06\x00\x01+\x00xx"], 0x81, "wildcard"),
        ([Connack()], 0x82, "does not belong here"),
        ([Suback(9, [0])], 0x82, "SUBACK without a request"),
        ([Unsuback(9, [0])], 0x82, "UNSUBACK without a request"),
        ([Publish(b"t", b"", topic_alias=1)], 0x94, "above the Topic Alias Maximum"),
        ([Auth(0x18, bag(strings={names.AUTHENTICATION_METHOD: "m"}))], 0x82, "does not belong here"),
        ([message(1, packet_id=1), message(1, packet_id=1)], 0x82, "is in use"),
        ([message(2, packet_id=1), Ack(PUBREL, 1)], 0x82, "has had no PUBREC"),
        ([b"\xc0\x00"], 0x82, "goes the other way"),
    ],
)
def test_a_broker_that_breaks_the_protocol_is_told_and_left(
    play: Play, packets: list[Packet | bytes], reason_code: int, words: str
) -> None:
    """[MQTT-4.13.1-1]"""
    scene = play(hold=True)
    scene.connect()
    scene.say(*packets)
    assert words in scene.failure()
    assert scene.only(Disconnect).reason_code == reason_code


def test_what_came_before_the_breach_is_told(play: Play) -> None:
    scene = play()
    scene.connect()
    assert scene.say(message(0, 1), b"\x00\x00") == [message(0, 1)]
    assert "breaks the protocol" in scene.failure()


def test_a_broker_of_3_1_1_hears_no_reason(play: Play) -> None:
    scene = play(connect_packet("c", version=V311))
    scene.connect()
    scene.say(b"\x00\x00")
    assert "breaks the protocol" in scene.failure()
    assert scene.sent() == []


def test_a_packet_above_the_own_maximum_is_refused(play: Play) -> None:
    """[MQTT-3.1.2-24]"""
    scene = play(connect_packet("c", max_packet_size=30))
    scene.connect()
    scene.say(Publish(b"t", bytes(30)))
    assert scene.only(Disconnect).reason_code == reason_codes.PACKET_TOO_LARGE


@pytest.mark.parametrize("kind", [PUBACK, PUBCOMP])
def test_an_acknowledgement_of_the_wrong_kind_is_a_breach(play: Play, kind: int) -> None:
    scene = play()
    scene.connect()
    number = scene.machine.publish(message(2))
    scene.say(Ack(kind, number))
    assert "not waiting for one" in scene.failure()


# ---------------------------------------------------------------------------------------------------------- keep alive


def test_without_keep_alive_there_is_no_ping(play: Play) -> None:
    scene = play(connect_packet("c", keep_alive=0))
    scene.connect()
    assert math.isinf(scene.machine.due)
    scene.machine.tick(1e9)
    assert scene.sent() == []


@pytest.mark.parametrize(("granted", "half"), [({}, 30.0), ({names.SERVER_KEEP_ALIVE: 10}, 5.0)])
def test_a_ping_goes_in_half_of_the_keep_alive(play: Play, granted: dict[int, int], half: float) -> None:
    """[MQTT-3.1.2-20] [MQTT-3.1.2-21]"""
    scene = play(connect_packet("c", keep_alive=60))
    scene.connect(granted)
    assert scene.machine.due == scene.now + half
    scene.machine.tick(scene.now + half - 0.001)
    assert scene.sent() == []
    scene.now += half
    scene.machine.tick(scene.now)
    scene.only(Pingreq)
    # One question at a time.
    scene.machine.tick(scene.now + half)
    assert scene.sent() == []
    scene.say(Pingresp())
    assert scene.machine.due == scene.now + half


def test_a_silent_broker_is_left(play: Play) -> None:
    scene = play(connect_packet("c", keep_alive=60))
    scene.connect()
    scene.now += 30
    scene.machine.tick(scene.now)
    # That something comes shows that it is there.
    scene.now += 50
    scene.say(message(0))
    scene.machine.tick(scene.now + 59)
    assert scene.machine.connected
    scene.machine.tick(scene.now + 60)
    assert "silent" in scene.failure()


def test_silence_that_was_not_listened_to_is_nobodys_fault(play: Play) -> None:
    scene = play(connect_packet("c", keep_alive=60))
    scene.connect()
    for _ in range(10):
        scene.now += 50
        scene.machine.tick(scene.now, reading=False)
        # The broker has to hear something all the same.
        scene.only(Pingreq)
    assert scene.machine.connected
    scene.say(*[Pingresp()] * 10)
    assert scene.machine.unanswered == 0


# ---------------------------------------------------------------------------------------------------------- publishing


def test_qos_0_is_sent_and_forgotten(play: Play) -> None:
    scene = play()
    scene.connect()
    assert scene.machine.publish(message(0, 1)) == 0
    assert scene.only(Publish) == message(0, 1)
    assert scene.machine.unacknowledged == 0


def test_qos_0_needs_a_connection(play: Play) -> None:
    scene = play()
    with pytest.raises(LostError):
        scene.machine.publish(message(0))


def test_qos_1_is_done_with_puback(play: Play) -> None:
    scene = play()
    scene.connect()
    number = scene.machine.publish(message(1))
    assert scene.only(Publish).packet_id == number
    assert scene.say(Ack(PUBACK, number, 0x10)) == [Delivered(number, 0x10)]
    assert scene.machine.unacknowledged == 0


def test_qos_2_is_done_with_pubcomp(play: Play) -> None:
    """[MQTT-4.3.3-3] to [MQTT-4.3.3-7]"""
    scene = play()
    scene.connect()
    number = scene.machine.publish(message(2))
    scene.only(Publish)
    assert scene.say(Ack(PUBREC, number, 0x10)) == []
    assert scene.only(Ack) == Ack(PUBREL, number)
    assert scene.say(Ack(PUBCOMP, number)) == [Delivered(number, 0)]
    assert scene.machine.unacknowledged == 0


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_a_refused_message_is_told(play: Play, qos: int, kind: int) -> None:
    scene = play()
    scene.connect()
    number = scene.machine.publish(message(qos))
    scene.sent()
    assert scene.say(Ack(kind, number, 0x87, bag(strings={names.REASON_STRING: "no"}))) == [Delivered(number, 0x87)]
    assert scene.sent() == []
    assert scene.machine.unacknowledged == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_an_acknowledgement_of_something_unknown_is_answered_and_forgotten(play: Play, version: int) -> None:
    scene = play(connect_packet("c", version=version))
    scene.connect()
    assert scene.say(Ack(PUBACK, 7), Ack(PUBREC, 8), Ack(PUBCOMP, 9), Ack(PUBREL, 10)) == []
    code = reason_codes.PACKET_IDENTIFIER_NOT_FOUND if version == V5 else 0
    assert scene.sent() == [Ack(PUBREL, 8, code), Ack(PUBCOMP, 10, code)]


def test_a_packet_identifier_in_use_is_not_given_again() -> None:
    """[MQTT-2.2.1-3]"""
    scene = Scene()
    scene.connect()
    scene.machine.publish(message(1))
    for _ in range(65_534):
        scene.say(Ack(PUBACK, scene.machine.publish(message(1))))
        scene.machine.take()
    assert scene.machine.publish(message(1)) == 2


def test_the_receive_maximum_of_the_broker_is_kept(play: Play) -> None:
    """[MQTT-3.3.4-7]"""
    scene = play()
    scene.connect({names.RECEIVE_MAXIMUM: 2})
    numbers = [scene.machine.publish(message(qos, n)) for n, qos in enumerate((1, 2, 1, 1))]
    assert [each.payload for each in scene.sent() if isinstance(each, Publish)] == [b"0", b"1"]
    scene.say(Ack(PUBREC, numbers[1]))
    # It is on its way until PUBCOMP.
    assert scene.only(Ack).kind == PUBREL
    scene.say(Ack(PUBACK, numbers[0]))
    assert scene.only(Publish).payload == b"2"
    scene.say(Ack(PUBCOMP, numbers[1]))
    assert scene.only(Publish) == message(1, 3, packet_id=numbers[3])


@pytest.mark.parametrize(
    ("granted", "packet", "reason_code"),
    [
        ({names.MAXIMUM_QOS: 1}, message(2), reason_codes.QOS_NOT_SUPPORTED),
        ({names.RETAIN_AVAILABLE: 0}, message(0, retain=True), reason_codes.RETAIN_NOT_SUPPORTED),
        ({names.MAXIMUM_PACKET_SIZE: 40}, Publish(b"t", bytes(40), 1), reason_codes.PACKET_TOO_LARGE),
        ({names.MAXIMUM_PACKET_SIZE: 40}, Publish(b"t", bytes(40)), reason_codes.PACKET_TOO_LARGE),
    ],
)
def test_what_the_broker_excludes_is_not_sent(
    play: Play, granted: dict[int, int], packet: Publish, reason_code: int
) -> None:
    """[MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-15]"""
    scene = play()
    scene.connect(granted)
    with pytest.raises(NotSupportedError) as caught:
        scene.machine.publish(packet)
    assert caught.value.reason_code == reason_code
    assert scene.sent() == []
    assert scene.machine.unacknowledged == 0


def test_what_waited_for_a_broker_that_does_not_take_it_is_told(play: Play) -> None:
    scene = play()
    large = scene.machine.publish(Publish(b"t", bytes(100), 1))
    small = scene.machine.publish(message(1))
    assert scene.connect({names.MAXIMUM_PACKET_SIZE: 50})[1:] == [Delivered(large, reason_codes.PACKET_TOO_LARGE)]
    assert scene.only(Publish).packet_id == small


# ------------------------------------------------------------------------------------------- over a lost connection


@pytest.mark.parametrize("present", [True, False])
def test_what_is_not_acknowledged_is_sent_again_in_order(play: Play, present: bool) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1]; as something new where the broker has lost the session."""
    scene = play(connect_packet("c", clean_start=False, session_expiry=60))
    scene.connect()
    first, second, third, fourth = (scene.machine.publish(message(qos, n)) for n, qos in enumerate((1, 2, 2, 1)))
    scene.say(Ack(PUBREC, second))
    scene.machine.lost("cut")
    assert "cut" in scene.failure()
    events = scene.connect({names.RECEIVE_MAXIMUM: 2}, present=present)[1:]
    again = [
        message(1, 0, packet_id=first, dup=present),
        *([Ack(PUBREL, second)] if present else []),
        message(2, 2, packet_id=third, dup=present),
    ]
    sent = scene.sent()
    assert sorted(sent, key=repr) == sorted(again, key=repr)
    assert [each for each in sent if isinstance(each, Publish)] == [each for each in again if isinstance(each, Publish)]
    # A broker that has lost the session had taken the message when it said PUBREC.
    assert events == ([] if present else [Delivered(second, 0)])
    scene.say(Ack(PUBACK, first))
    assert scene.only(Publish) == message(1, 3, packet_id=fourth, dup=present)


def test_what_was_never_written_is_no_repetition(play: Play) -> None:
    scene = play(connect_packet("c", clean_start=False))
    scene.connect({names.RECEIVE_MAXIMUM: 1})
    scene.machine.publish(message(1, 0))
    scene.machine.publish(message(1, 1))
    scene.sent()
    scene.machine.lost("cut")
    scene.connect(present=True)
    assert [(each.payload, each.dup) for each in scene.sent() if isinstance(each, Publish)] == [
        (b"0", True),
        (b"1", False),
    ]


def test_what_is_published_while_it_connects_is_sent_once_behind_what_is_sent_again(play: Play) -> None:
    """[MQTT-4.6.0-1]."""
    scene = play(connect_packet("c", clean_start=False))
    scene.connect()
    scene.machine.publish(message(2, 0))
    scene.sent()
    scene.machine.lost("cut")
    scene.open()
    scene.machine.publish(message(2, 1))
    scene.say(Connack(True))
    assert [(each.payload, each.dup) for each in scene.sent() if isinstance(each, Publish)] == [
        (b"0", True),
        (b"1", False),
    ]


def test_a_qos_2_message_that_comes_again_is_told_once(play: Play) -> None:
    """[MQTT-4.3.3-10]"""
    scene = play(connect_packet("c", clean_start=False, session_expiry=60))
    scene.connect()
    assert scene.say(message(2, packet_id=5)) == [message(2, packet_id=5)]
    assert scene.only(Ack) == Ack(PUBREC, 5)
    scene.machine.lost("cut")
    scene.connect(present=True)
    assert scene.say(message(2, packet_id=5, dup=True)) == []
    assert scene.only(Ack) == Ack(PUBREC, 5)
    assert scene.say(Ack(PUBREL, 5)) == []
    assert scene.only(Ack) == Ack(PUBCOMP, 5)
    assert scene.say(message(2, 1, packet_id=5)) == [message(2, 1, packet_id=5)]


def test_another_session_has_other_packet_identifiers(play: Play) -> None:
    """[MQTT-3.2.2-5]"""
    scene = play(connect_packet("c", clean_start=False, session_expiry=60))
    scene.connect()
    scene.say(message(2, packet_id=5))
    scene.machine.lost("cut")
    scene.connect(present=False)
    assert scene.say(message(2, 1, packet_id=5)) == [message(2, 1, packet_id=5)]


# ----------------------------------------------------------------------------------------------------------- receiving


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_a_held_message_is_acknowledged_when_the_caller_says_so(play: Play, qos: int, kind: int) -> None:
    scene = play(connect_packet("c", clean_start=False), hold=True)
    scene.connect()
    came = scene.deliver(message(qos, packet_id=5))
    assert scene.sent() == []
    # Sent again by a broker that does not wait: it is held already.
    assert scene.say(message(qos, packet_id=5, dup=True)) == []
    scene.machine.acknowledge(came)
    scene.machine.acknowledge(came)
    assert scene.only(Ack) == Ack(kind, 5)


def test_what_came_on_another_connection_is_not_acknowledged_on_this_one(play: Play) -> None:
    scene = play(connect_packet("c", clean_start=False), hold=True)
    scene.connect()
    old = scene.deliver(message(1, 1, packet_id=5))
    scene.machine.lost("cut")
    scene.connect(present=True)
    new = scene.deliver(message(1, 2, packet_id=5))
    scene.machine.acknowledge(old)
    assert scene.sent() == []
    scene.machine.acknowledge(new)
    assert scene.only(Ack) == Ack(PUBACK, 5)


def test_a_qos_2_message_that_was_taken_while_the_connection_broke_is_told_once(play: Play) -> None:
    scene = play(connect_packet("c", clean_start=False), hold=True)
    scene.connect()
    came = scene.deliver(message(2, packet_id=5))
    scene.machine.lost("cut")
    scene.machine.acknowledge(came)
    assert scene.sent() == []
    scene.connect(present=True)
    assert scene.say(message(2, packet_id=5, dup=True)) == []
    assert scene.only(Ack) == Ack(PUBREC, 5)


def test_a_broker_that_sends_more_than_it_may_is_heard_all_the_same(play: Play) -> None:
    """mosquitto 2.0 does not keep to [MQTT-3.3.4-9] where a session is far behind."""
    scene = play(connect_packet("c", receive_maximum=1), hold=True)
    scene.connect()
    for number in range(1, 5):
        scene.deliver(message(1, packet_id=number))
    assert scene.machine.connected


# --------------------------------------------------------------------------------------------------------- subscribing


@pytest.mark.parametrize("version", [V311, V5])
def test_reason_codes_of_subscriptions_are_told(play: Play, version: int) -> None:
    scene = play(connect_packet("c", version=version))
    scene.connect()
    number = scene.machine.subscribe([SubscriptionRequest("a", 1), SubscriptionRequest("b")])
    assert [each.topic_filter for each in scene.only(Subscribe).requests] == ["a", "b"]
    assert scene.say(Suback(number, [1, 0x80])) == [Suback(number, [1, 0x80])]
    number = scene.machine.unsubscribe(["a"])
    assert scene.only(Unsubscribe).topic_filters == ["a"]
    answer = Unsuback(number, [0x11] if version == V5 else [])
    assert scene.say(answer) == [answer]


@pytest.mark.parametrize("subscribe", [True, False])
def test_an_answer_of_another_length_is_a_breach(play: Play, subscribe: bool) -> None:
    scene = play()
    scene.connect()
    if subscribe:
        scene.say(Suback(scene.machine.subscribe([SubscriptionRequest("a")]), [0, 0]))
    else:
        scene.say(Unsuback(scene.machine.unsubscribe(["a"]), [0, 0]))
    assert "2 reason codes for 1 topic filters" in scene.failure()


def test_an_answer_of_the_other_kind_is_a_breach(play: Play) -> None:
    scene = play()
    scene.connect()
    scene.say(Unsuback(scene.machine.subscribe([SubscriptionRequest("a")]), [0]))
    assert "UNSUBACK without a request" in scene.failure()


def test_a_subscription_needs_a_connection_and_room_in_a_packet(play: Play) -> None:
    scene = play()
    with pytest.raises(LostError):
        scene.machine.subscribe([SubscriptionRequest("a")])
    scene.connect({names.MAXIMUM_PACKET_SIZE: 20})
    with pytest.raises(NotSupportedError):
        scene.machine.subscribe([SubscriptionRequest("a" * 20)])
    assert scene.sent() == []
