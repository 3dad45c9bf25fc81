"""A link copes with an upstream, and with local clients, that do what is allowed and rarely done."""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import (
    PUBACK,
    PUBREC,
    V311,
    Ack,
    Connack,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.codec.reason_codes import PACKET_TOO_LARGE, QUOTA_EXCEEDED
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.protocol.uplink import CLOSED
from tests.core.harness import bag
from tests.links.scripted_link import LinkScene
from tests.support.runs import for_each


class TestNews:
    """A message with RETAIN is not always a retained message that comes again: live ones keep the flag."""

    def test_a_live_message_while_one_of_ours_is_on_its_way(self) -> None:
        scene = LinkScene()
        client = scene.network.client("c")
        client.subscribe("state/#", qos=1)
        scene.connect()
        scene.ask("state/#")
        scene.network.client("d").publish("state/a", b"ours", qos=1, retain=True)
        assert len(scene.took(Publish)) == 1
        scene.lose()
        client.inbox.clear()
        # The session was kept: nothing retained comes because of the connection, and this is from another client.
        scene.connect(present=True)
        scene.send("state/a", b"theirs", qos=1, packet_id=1, retain=True)
        assert [each.payload for each in client.inbox] == [b"theirs"]

    @for_each("retained", [False, True])
    def test_one_of_ours_is_no_reason_that_is_not_retained_or_was_acknowledged(self, retained: bool) -> None:
        scene = LinkScene()
        client = scene.network.client("c")
        client.subscribe("state/#", qos=1)
        scene.declarer.declare("state/#")
        scene.network.client("d").publish("state/a", b"ours", qos=1, retain=retained)
        client.inbox.clear()
        scene.connect()
        scene.accept()
        if retained:
            for sent in scene.took(Publish):
                scene.say(Ack(PUBACK, sent.packet_id))
        scene.send("state/a", b"theirs", qos=1, packet_id=1, retain=True)
        assert [each.payload for each in client.inbox] == [b"theirs"]

    def test_what_comes_again_with_more_time_to_live_is_kept_as_long(self) -> None:
        scene = LinkScene(publish=())
        scene.connect()
        scene.ask("a")
        scene.send("a", b"1", retain=True, message_expiry=100)
        scene.lose()
        scene.network.advance(90.0)
        scene.connect(present=False)
        scene.accept()
        scene.send("a", b"1", retain=True, message_expiry=100)
        scene.network.advance(50.0)
        late = scene.network.client("late")
        late.subscribe("a")
        assert [each.payload for each in late.inbox] == [b"1"]


class TestBounds:
    def test_looking_for_what_may_come_again_is_bounded(self) -> None:
        scene = LinkScene(publish=())
        client = scene.network.client("c")
        for number in range(400):
            client.publish(f"wide/{number}", b"1", retain=True)
        scene.connect()
        scene.replays.work = 1_000
        for number in range(50):
            scene.declarer.declare(f"wide/+/none{number}")
        scene.accept()
        assert -1_000 < scene.replays.work <= 0

    def test_filters_that_come_and_go_leave_no_heap_of_walks(self) -> None:
        scene = LinkScene(publish=())
        scene.network.client("c").publish("a", b"1", retain=True)
        scene.connect()
        for number in range(5_000):
            scene.replays.withdrawn([f"reply/{number}", f"+/{number}"])
        turns = 0
        while scene.replays.turn(scene.declarer.table, scene.network.now) and scene.replays.busy:
            turns += 1
        assert turns < 50

    def test_what_is_gone_is_forgotten_all_the_same(self) -> None:
        scene = LinkScene(publish=())
        scene.connect()
        scene.ask("a/#", "b")
        for topic in ("a/1", "a/2", "b"):
            scene.send(topic, b"1", retain=True)
        scene.declarer.withdraw("a/#")
        scene.replays.withdrawn([f"+/{number}" for number in range(5_000)])
        scene.accept()
        scene.network.advance(60.0)
        while scene.replays.turn(scene.declarer.table, scene.network.now):
            pass
        late = scene.network.client("late")
        late.subscribe("#")
        assert [each.topic for each in late.inbox] == [b"b"]


class TestFilters:
    def test_one_that_no_packet_holds_is_not_sent(self) -> None:
        """[MQTT-3.2.2-15]"""
        scene = LinkScene()
        scene.connect(x27=200)
        scene.declarer.declare("a" * 300)
        scene.declarer.declare("b" * 180)
        [subscribe] = scene.took(Subscribe)
        assert [each.topic_filter for each in subscribe.requests] == ["b" * 180]
        assert scene.link.refused == [("a" * 300, PACKET_TOO_LARGE)]
        assert list(scene.declarer.refused) == ["a" * 300]
        scene.say(Suback(subscribe.packet_id, [1]))
        assert scene.declarer.settled
        # What was taken by one that takes more.
        scene.lose()
        scene.connect(present=True)
        scene.accept()
        scene.lose()
        scene.declarer.withdraw("a" * 300)
        scene.connect(present=True, x27=200)
        assert scene.took(Unsubscribe) == []
        assert scene.declarer.settled

    def test_one_that_has_no_name_there_is_not_asked_for(self) -> None:
        mapping = Mapping("", "site/7/")
        assert mapping.asked("a" * 65_529) == []
        assert mapping.asked("a" * 65_528) == ["site/7/" + "a" * 65_528]
        assert mapping.asked("\u00e9" * 32_765) == []

    def test_refused_and_asked_for_again_meanwhile(self) -> None:
        """A filter that the upstream took in the end is known to be there, and can be withdrawn."""
        scene = LinkScene()
        scene.connect()
        scene.declarer.declare("a")
        [first] = scene.took(Subscribe)
        scene.declarer.withdraw("a")
        [gone] = scene.took(Unsubscribe)
        scene.declarer.declare("a")
        [second] = scene.took(Subscribe)
        scene.say(Suback(first.packet_id, [0x80]), Unsuback(gone.packet_id, [0x11]))
        scene.say(Suback(second.packet_id, [1]))
        scene.declarer.withdraw("a")
        [last] = scene.took(Unsubscribe)
        assert last.topic_filters == ["a"]

    def test_where_there_is_no_room_few_are_asked_for_again(self) -> None:
        scene = LinkScene()
        scene.connect()
        for number in range(10):
            scene.declarer.declare(f"a/{number}")
        [subscribe] = scene.took(Subscribe)
        scene.say(Suback(subscribe.packet_id, [1, 1] + [QUOTA_EXCEEDED] * 8))
        scene.declarer.withdraw("a/0")
        [gone] = scene.took(Unsubscribe)
        scene.say(Unsuback(gone.packet_id, [0]))
        [again] = scene.took(Subscribe)
        assert len(again.requests) == 1

    def test_what_came_for_a_filter_before_it_was_asked_for_anew(self) -> None:
        scene = LinkScene()
        scene.connect()
        client = scene.network.client("c")
        client.subscribe("#")
        scene.ask("a")
        scene.declarer.declare("x")
        scene.declarer.declare("y")
        [subscribe] = scene.took(Subscribe)
        both = subscribe.properties.integers[0x0B]
        scene.say(Suback(subscribe.packet_id, [1, 1]))
        scene.declarer.withdraw("x")
        scene.took(Unsubscribe)
        scene.declarer.declare("x")
        assert len(scene.took(Subscribe)) == 1
        # Sent by the upstream before it saw any of this.
        scene.send("x", b"1", subscription_ids=(both,))
        assert [each.payload for each in client.inbox] == [b"1"]


class TestAccounts:
    def test_the_status_is_a_message(self) -> None:
        scene = LinkScene()
        scene.terms.status_topic = "sites/7/up"
        client = scene.network.client("c")
        for number in range(3):
            client.publish("a", b"%d" % number, qos=1)
        scene.connect()
        assert [each.payload for each in scene.took(Publish)] == [b"1", b"0", b"1", b"2"]
        session = scene.session
        assert session.send_buffer is not None
        assert (session.send_buffer.messages, session.send_buffer.bytes, session.send_buffer.control_bytes) == (0, 0, 0)
        assert session.offered == session.delivered_in_all() == 4
        assert session.queued() == session.ledger.in_all() == 0


class TestSessions:
    def test_none_can_be_present_after_a_clean_start(self) -> None:
        """[MQTT-3.2.2-4]"""
        scene = LinkScene()
        scene.dial()
        scene.say(Connack(True))
        assert scene.link.state == CLOSED
        assert "session" in scene.link.close_text

    def test_a_connection_that_only_ends_one_touches_nothing(self) -> None:
        scene = LinkScene()
        scene.session.queue_qos0 = True
        scene.network.client("c").publish("a", b"waits")
        scene.declarer.declare("b")
        scene.dial(V311)
        scene.link.session_reset = True
        scene.say(Connack())
        assert scene.link.accepted
        assert scene.link.state == CLOSED
        assert [type(each) for each in scene.packets] == [Disconnect]
        scene.connect(V311)
        assert [each.payload for each in scene.took(Publish)] == [b"waits"]
        assert set(scene.accept()) == {"b"}


def test_no_client_holds_up_what_comes_from_upstream() -> None:
    """Whoever says that it is a link, and acknowledges nothing, is waited for a little while only."""
    scene = LinkScene(publish=())
    scene.connect(canopy=True)
    scene.ask("#")
    scene.network.router.limits.link_client_ids = ("silent",)
    silent = scene.network.idle("silent")
    silent.connect(properties=bag(("canopy-link", "nobody")))
    silent.answering = False
    silent.subscribe("#", qos=1)
    request = encode_forward(response_topic="reply", correlation_data=b"1")
    scene.send("ask", b"?", qos=1, packet_id=1, properties=request)
    scene.send("other", b"1", qos=1, packet_id=2)
    scene.send("ask", b"?", qos=2, packet_id=3, properties=request)
    assert scene.acknowledgements() == []
    due = scene.link.answer_due
    assert due == scene.network.now + Limits().answer_timeout
    scene.link.hurry(due - 0.1)
    assert scene.acknowledgements() == []
    scene.link.hurry(due)
    assert scene.acknowledgements() == [(PUBACK, 1, 0), (PUBACK, 2, 0), (PUBREC, 3, 0)]
    assert scene.link.answer_due == 0.0
    # What it says later is of no interest.
    for got in silent.got(Publish):
        silent.send(Ack(PUBACK if got.qos == 1 else PUBREC, got.packet_id))
    scene.network.settle()
    assert scene.acknowledgements() == []
