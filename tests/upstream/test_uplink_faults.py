"""What a link makes of an upstream, and of local clients, that do what is allowed and rarely done."""

from __future__ import annotations

from broker.core.packets import PUBACK, Ack, Publish
from tests.upstream.scripted import Scene


class TestNews:
    """What came with RETAIN is not always a retained message that comes again: live ones keep the flag."""

    def test_a_live_message_while_one_of_ours_is_on_its_way(self) -> None:
        scene = Scene()
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

    def test_one_of_ours_that_is_not_retained_is_no_reason(self) -> None:
        scene = Scene()
        client = scene.network.client("c")
        client.subscribe("state/#", qos=1)
        scene.declarer.declare("state/#")
        scene.network.client("d").publish("state/a", b"ours", qos=1)
        client.inbox.clear()
        scene.connect()
        scene.accept()
        scene.send("state/a", b"theirs", qos=1, packet_id=1, retain=True)
        assert [each.payload for each in client.inbox] == [b"theirs"]

    def test_one_of_ours_that_was_acknowledged_is_no_reason_any_more(self) -> None:
        scene = Scene()
        client = scene.network.client("c")
        client.subscribe("state/#", qos=1)
        scene.declarer.declare("state/#")
        scene.network.client("d").publish("state/a", b"ours", qos=1, retain=True)
        client.inbox.clear()
        scene.connect()
        scene.accept()
        for sent in scene.took(Publish):
            scene.say(Ack(PUBACK, sent.packet_id))
        scene.send("state/a", b"theirs", qos=1, packet_id=1, retain=True)
        assert [each.payload for each in client.inbox] == [b"theirs"]

    def test_what_comes_again_with_more_time_to_live_is_kept_as_long(self) -> None:
        scene = Scene(publish=())
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
        scene = Scene(publish=())
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
        scene = Scene(publish=())
        scene.network.client("c").publish("a", b"1", retain=True)
        scene.connect()
        for number in range(5_000):
            scene.replays.withdrawn([f"reply/{number}", f"+/{number}"])
        turns = 0
        while scene.replays.turn(scene.declarer.table, scene.network.now) and scene.replays.busy:
            turns += 1
        assert turns < 50

    def test_what_is_gone_is_forgotten_all_the_same(self) -> None:
        scene = Scene(publish=())
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
