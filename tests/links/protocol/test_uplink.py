"""The client's side of a link, held against an upstream that is played by hand."""

from __future__ import annotations

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import (
    PUBACK,
    PUBREC,
    V5,
    V311,
    Ack,
    Connack,
    Disconnect,
    Publish,
    Subscribe,
)
from canopy_mqtt.core.codec.properties import RESPONSE_TOPIC, decode_forward, encode_forward
from canopy_mqtt.core.codec.reason_codes import NO_MATCHING_SUBSCRIBERS
from canopy_mqtt.core.jobs import TURN_WORK
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.links.filters.declarer import FIRST_ID
from canopy_mqtt.links.protocol.uplink import CLOSED
from tests.core.harness import bag, limits
from tests.links.scripted_link import LinkScene
from tests.support.runs import for_each


class TestConnect:
    @for_each("codes", [[], [1], [1, 1, 1]])
    @for_each("version", [V311, V5])
    def test_a_suback_without_one_code_for_each_filter_ends_it(self, version: int, codes: list[int]) -> None:
        """[MQTT-3.8.4-6] Nothing that it was about counts as held."""
        scene = LinkScene()
        scene.declarer.declare("a")
        scene.declarer.declare("b")
        scene.connect(version)
        [asked] = scene.took(Subscribe)
        # By hand: the encoder writes no SUBACK without codes.
        scene.raw(
            bytes([0x90, (3 if version == V5 else 2) + len(codes)])
            + asked.packet_id.to_bytes(2, "big")
            + (b"\x00" if version == V5 else b"")
            + bytes(codes)
        )
        assert scene.link.state == CLOSED
        assert scene.declarer.confirmed == 0
        assert "reason codes" in scene.link.close_text
        assert [told.reason_code for told in scene.took(Disconnect)] == ([0x82] if version == V5 else [])

    def test_a_packet_beyond_what_was_announced_ends_it(self) -> None:
        scene = LinkScene(given=limits(max_packet_size=100))
        scene.terms.max_packet_size = 100
        assert scene.dial().properties.integers[0x27] == 100
        scene.say(Connack())
        scene.send("a", b"x" * 200)
        assert scene.link.state == CLOSED


class TestUp:
    def test_a_response_topic_without_a_name_there_is_left_out(self) -> None:
        """In both directions: what is answered to it would never come back."""
        scene = LinkScene("plant/", "site/7/")
        scene.connect()
        client = scene.network.client("c")
        client.publish("plant/a", b"?", qos=1, properties=encode_forward(response_topic="back", correlation_data=b"1"))
        [sent] = scene.took(Publish)
        assert decode_forward(sent.properties).strings.get(RESPONSE_TOPIC) is None
        client.subscribe("#")
        scene.send("site/7/a", b"?", properties=encode_forward(response_topic="back", correlation_data=b"1"))
        assert decode_forward(client.inbox[0].properties).strings.get(RESPONSE_TOPIC) is None

    def test_without_qos(self) -> None:
        scene = LinkScene()
        scene.network.client("c").publish("a", b"waits", qos=2)
        scene.connect(x24=0)
        scene.network.client("d").publish("b", b"1", qos=1)
        assert [(each.payload, each.qos) for each in scene.took(Publish)] == [(b"waits", 0), (b"1", 0)]
        assert scene.session.queued() == 0

    def test_packet_identifiers_are_not_the_declarers(self) -> None:
        """[MQTT-2.2.1-4]"""
        scene = LinkScene()
        scene.connect()
        scene.session.inflight.last_id = FIRST_ID - 3
        client = scene.network.client("c")
        for _ in range(4):
            client.publish("a", qos=1)
        assert [each.packet_id for each in scene.took(Publish)] == [FIRST_ID - 2, FIRST_ID - 1, 1, 2]


class TestDown:
    @for_each(("roots", "wanted"), [(("in/#",), ()), ((), ("in/#",)), (("in/#",), ("in/x",))])
    def test_what_no_filter_and_no_root_matches(self, roots: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        """It is neither delivered nor retained, but counted and acknowledged: no access rule is about a link."""
        scene = LinkScene(roots=roots)
        for topic_filter in wanted:
            scene.declarer.declare(topic_filter)
        scene.connect()
        client = scene.network.client("c")
        client.subscribe("#")
        scene.send("in/x", b"fine", qos=1, packet_id=1, retain=True)
        scene.send("actuators/valve", b"OPEN", qos=1, packet_id=2, retain=True)
        assert [each.topic for each in client.inbox] == [b"in/x"]
        assert [scene.network.router.retained.get(each) is not None for each in ("in/x", "actuators/valve")] == [
            True,
            False,
        ]
        assert [ack.packet_id for ack in scene.took(Ack)] == [1, 2]
        assert scene.figures.outside == 1

    def test_what_it_retains_leaves_room_for_clients(self) -> None:
        """The link has an account like any user: it does not fill the whole, and gives way to clients."""
        scene = LinkScene(given=limits(max_retained_messages=40))
        scene.connect()
        for number in range(100):
            scene.send(f"flood/{number}", b"x", retain=True)
        retained = scene.network.router.retained
        client = scene.network.client("c")
        for number in range(10):
            client.publish(f"mine/{number}", b"1", 0, retain=True)
        assert all(retained.get(f"mine/{number}") is not None for number in range(10))
        assert len(retained) <= 40

    def test_a_payload_above_the_limit(self) -> None:
        """As from a client."""
        scene = LinkScene(given=limits(max_payload_size=10))
        scene.connect()
        client = scene.network.client("c")
        client.subscribe("#")
        scene.send("a", b"x" * 11)
        scene.send("a", b"x" * 10)
        assert client.payloads() == [b"x" * 10]
        assert scene.network.router.counters.oversized == 1

    @for_each("size", [10, 500])
    def test_a_turn_is_bounded(self, size: int) -> None:
        """As a client's: thousands of retained messages in one read are taken in turns."""
        scene = LinkScene()
        scene.connect()
        data = b"".join(encoder.encode(Publish(b"a/%d" % number, b"x" * size, 0, True), V5) for number in range(4_000))
        link = scene.link
        budget = scene.network.router.budget
        link.receive(data, scene.network.now)
        turns = 1
        while link.unfinished:
            before = budget.used
            link.go_on(scene.network.now)
            assert budget.used - before < 2 * TURN_WORK
            turns += 1
        assert turns > 4
        assert len(scene.network.router.retained) == 4_000
        # Nothing of a read is acted on in a round that has no room.
        before = budget.used
        link.receive(data[:100], scene.network.now, 0)
        assert (budget.used - before, link.unfinished) == (0, True)

    @for_each("retain", [False, True])
    def test_an_upstream_does_not_say_who_is_connected_here(self, retain: bool) -> None:
        """But elsewhere, where that stands below the same topic."""
        scene = LinkScene(given=limits(presence_topic=b"who"))
        scene.connect()
        client = scene.network.client("c")
        client.subscribe("#")
        scene.network.router.publish(Message(b"who/c", b"online", 1, True, b"", 0.0, ""), None)
        for payload in (b"", b"forged"):
            scene.send("who/c", payload, retain=retain)
        scene.send("who/other", b"online", retain=retain)
        assert [(each.topic, each.payload) for each in client.inbox] == [
            (b"who/c", b"online"),
            (b"who/other", b"online"),
        ]
        assert scene.figures.nameless == 2

    def test_an_alias_was_not_allowed(self) -> None:
        scene = LinkScene()
        scene.connect()
        scene.send("a", topic_alias=1)
        assert scene.link.state == CLOSED
        assert [told.reason_code for told in scene.took(Disconnect)] == [0x94]


class TestRetained:
    def publish(self, scene: LinkScene, topic: str, payload: bytes, *identifiers: int) -> None:
        scene.say(Publish(topic.encode(), payload, 0, True, subscription_ids=identifiers))

    def test_ours_goes_up_to_a_session_that_begins_anew(self) -> None:
        """Also where it did not wait, having QoS 0: both sides have the same in the end."""
        scene = LinkScene()
        client = scene.network.client("c")
        scene.connect()
        scene.ask("state/#")
        scene.lose()
        client.publish("state/a", b"new", retain=True)
        scene.connect(present=False)
        scene.accept()
        self.publish(scene, "state/a", b"old")
        assert [(each.topic, each.payload) for each in scene.took(Publish)] == [(b"state/a", b"new")]
        late = scene.network.client("late")
        late.subscribe("#")
        assert [each.payload for each in late.inbox] == [b"new"]
        # What comes after that is news.
        self.publish(scene, "state/a", b"newer")
        assert [each.payload for each in late.inbox] == [b"new", b"newer"]


class TestRequests:
    REQUEST = encode_forward(response_topic="reply", correlation_data=b"1")

    @for_each("code", [0, NO_MATCHING_SUBSCRIBERS])
    def test_from_upstream_to_another_link(self, code: int) -> None:
        """The acknowledgements keep their order [MQTT-4.6.0-2]."""
        scene = LinkScene(publish=())
        scene.connect(canopy=True)
        scene.ask("#")
        scene.network.router.limits.link_client_ids = ("branch",)
        branch = scene.network.idle("branch")
        branch.connect(properties=bag(("canopy-link", "below")))
        branch.answering = False
        branch.subscribe("ask/#", qos=1)
        scene.send("ask/x", b"?", qos=1, packet_id=1, properties=self.REQUEST)
        scene.send("other", b"1", qos=1, packet_id=2)
        assert scene.acknowledgements() == []
        # It comes again before it was acknowledged: still one request.
        scene.send("ask/x", b"?", qos=1, packet_id=1, dup=True, properties=self.REQUEST)
        [got] = branch.got(Publish)
        branch.send(Ack(PUBACK, got.packet_id, code))
        assert scene.acknowledgements() == [(PUBACK, 1, code), (PUBACK, 2, NO_MATCHING_SUBSCRIBERS)]

    def test_an_upstream_that_is_no_canopy_is_told_success(self) -> None:
        scene = LinkScene(publish=())
        scene.connect()
        scene.ask("#")
        scene.send("ask", b"?", qos=1, packet_id=1, properties=self.REQUEST)
        scene.send("ask", b"?", qos=2, packet_id=2)
        assert scene.acknowledgements() == [(PUBACK, 1, 0), (PUBREC, 2, 0)]
