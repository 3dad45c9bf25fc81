"""Upstreams that close the connection for a message, or for none: which messages are lost, and which are not.

Owns `Fussy`, an upstream that reads what a link sends in batches and closes the connection when it is told to.
"""

from __future__ import annotations

from collections.abc import Callable

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
)
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.links.protocol.poison_messages import BARRED, IN_A_ROW, MOST, PAUSE, TOPICS, PoisonMessageDetector
from canopy_mqtt.links.protocol.session import LOOKED_AT
from canopy_mqtt.links.protocol.uplink import CLOSED
from tests.links.scripted_link import LinkScene
from tests.support.losses import dropped_by_cause
from tests.support.runs import for_each


def never(_: Publish) -> bool:
    """No message is closed for."""
    return False


def bad(publish: Publish) -> bool:
    """Those that say so."""
    return publish.payload.startswith(b"bad")


class Fussy:
    """An upstream that closes for what `closes` says, or after `packets` packets in each of the first `flaps`
    connections. `deaf`: what it has acknowledged in the batch in which it closes is lost with the connection."""

    def __init__(self, version: int = V5, closes: Callable[[Publish], bool] = never, code: int = 0) -> None:
        self.scene = LinkScene(publish=("up/#",))
        self.scene.terms.session_expiry = 1_000
        self.version = version
        self.closes = closes
        self.code = code
        self.deaf = False
        self.packets = 0
        self.flaps = 0
        self.connections = 0
        self.came: list[bytes] = []
        self.given_up: list[bytes] = []
        self.client = self.scene.network.client("client")

    def publish(self, *payloads: bytes, topic: str = "up/a", qos: int = 1) -> None:
        """A local client publishes."""
        for payload in payloads:
            self.client.publish(topic, payload, qos=qos)

    def connect(self) -> None:
        """One more connection; the session is there."""
        self.connections += 1
        self.scene.connect(self.version, present=self.connections > 1)
        self.read = 0

    def run(self, most: int = 60) -> None:
        """Connect, and again, until a connection has nothing more to say."""
        self.connect()
        while not self.turn():
            assert self.connections < most, "it never gets through"
            self.connect()

    def go_on(self, seconds: float) -> None:
        """Let so much time pass, and connect every ten seconds if there is no connection."""
        for _ in range(int(seconds / 10.0)):
            if self.connections == 0 or self.scene.link.state == CLOSED:
                self.connect()
            self.turn()
            self.wait(10.0)

    def wait(self, seconds: float) -> None:
        """Let time pass; a link that is connected then does what is due."""
        self.scene.network.advance(seconds)
        if self.scene.link.state != CLOSED:
            self.scene.link.look(self.scene.network.now)

    def turn(self) -> bool:
        """Read and answer until nothing more comes (True), or until it closes."""
        while packets := self.scene.took(Packet):
            answers: list[Packet] = []
            for packet in packets:
                self.read += 1
                flap = self.connections <= self.flaps and self.read >= self.packets
                if flap or (isinstance(packet, Publish) and self.closes(packet)):
                    self._close(answers)
                    return False
                answer = self._answer(packet)
                if answer is not None:
                    answers.append(answer)
            self.scene.say(*answers)
        return True

    def _close(self, answers: list[Packet]) -> None:
        scene = self.scene
        if not self.deaf:
            scene.say(*answers)
            scene.took(Packet)
        if self.code and self.version == V5:
            scene.say(Disconnect(self.code))
        else:
            scene.link.lost("closed", scene.network.now, True)
            scene.network.settle()
        assert scene.link.state == CLOSED
        if scene.link.given_up is not None:
            self.given_up.append(scene.link.given_up.message.payload())
        self.balanced()

    def _answer(self, packet: Packet) -> Packet | None:
        if isinstance(packet, Publish):
            self.came.append(packet.payload)
            return None if packet.qos == 0 else Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id)
        if isinstance(packet, Ack):
            return Ack(PUBCOMP, packet.packet_id) if packet.kind == PUBREL else None
        if isinstance(packet, Subscribe):
            return Suback(packet.packet_id, [request.qos for request in packet.requests])
        return Pingresp() if isinstance(packet, Pingreq) else None

    # -- what came of it -----------------------------------------------------------------------------------------------

    @property
    def lost(self) -> dict[str, int]:
        """The messages that the session lost, by cause."""
        dropped = dropped_by_cause(self.scene.session)
        return {cause: count for cause, count in zip(DROP_CAUSES, dropped, strict=True) if count}

    def balanced(self) -> None:
        """offered = delivered + dropped + queued, here and for the whole broker."""
        session = self.scene.session
        queued = session.queued()
        assert session.offered == session.delivered_in_all() + session.ledger.in_all() + queued
        assert self.scene.figures.given_up == len(self.given_up)

    def idle(self) -> None:
        """Nothing waits, nothing is doubtful, and the next message goes at once, whatever its QoS."""
        self.balanced()
        session = self.scene.session
        totals = self.scene.network.router.counters.totals
        assert (len(session.inflight), session.queued(), session.trial.on) == (0, 0, False)
        assert (totals.messages, totals.bytes, totals.inflight) == (0, 0, 0)
        for qos in (0, 1, 2):
            self.came.clear()
            self.publish(b"last", qos=qos)
            assert self.turn()
            assert self.came == [b"last"]
        assert session.fast_path == session.plain_text


GOOD = [b"%d" % number for number in range(40)]


class TestOneThatItClosesFor:
    @for_each("deaf", [False, True])
    @for_each("qos", [1, 2])
    @for_each("version", [V5, V311])
    @for_each("at", [0, 7, 39])
    def test_it_goes_and_everything_else_comes(self, at: int, version: int, qos: int, deaf: bool) -> None:
        upstream = Fussy(version, bad)
        upstream.deaf = deaf
        upstream.publish(*GOOD[:at], b"bad", *GOOD[at:], qos=qos)
        upstream.run()
        # Where nothing came after it that could vouch for the upstream, the next message does.
        upstream.publish(b"more", qos=qos)
        if not upstream.turn():
            upstream.run()
        assert set(upstream.came) == {*GOOD, b"more"}
        assert upstream.given_up == [b"bad"]
        assert upstream.lost == {"refused": 1}
        assert upstream.connections <= 8
        upstream.idle()

    def test_two_of_different_topics(self) -> None:
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad 1", topic="up/1")
        upstream.publish(b"bad 2", topic="up/2")
        upstream.publish(*GOOD)
        upstream.run()
        assert sorted(upstream.given_up) == [b"bad 1", b"bad 2"]
        assert set(upstream.came) == set(GOOD)
        upstream.idle()

    def test_what_waits_in_the_queue_comes_in_its_order(self) -> None:
        """But for the one that went in place of the doubtful one, and that is of another topic if there is one."""
        upstream = Fussy(closes=bad)
        upstream.scene.terms.max_inflight = 2
        upstream.publish(b"bad", *GOOD)
        upstream.publish(b"other", topic="up/other")
        upstream.run()
        assert list(dict.fromkeys(each for each in upstream.came if each != b"other")) == GOOD
        assert upstream.given_up == [b"bad"]

    def test_qos_0_waits_beside_it_and_is_not_to_blame(self) -> None:
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad", *GOOD)
        for _ in range(2):
            upstream.connect()
            assert not upstream.turn()
        upstream.connect()
        for number in range(5):
            upstream.publish(b"zero %d" % number, qos=0)
        assert not upstream.turn()
        assert upstream.came == []
        upstream.run()
        assert (upstream.given_up, upstream.lost) == ([b"bad"], {"refused": 1})
        assert set(upstream.came) == {*GOOD, *(b"zero %d" % number for number in range(5))}
        upstream.idle()

    def test_the_only_message_is_kept_until_another_one_vouches(self) -> None:
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad")
        upstream.run()
        session = upstream.scene.session
        assert (upstream.lost, len(session.trial.doubtful)) == ({}, 1)
        # The connection stays, and is used.
        upstream.publish(b"zero", qos=0)
        assert upstream.turn()
        assert upstream.came == [b"zero"]
        held = upstream.connections
        upstream.wait(PAUSE)
        assert not upstream.turn()
        upstream.run()
        assert upstream.connections == held + 1
        upstream.publish(b"good", topic="up/b")
        assert not upstream.turn()
        upstream.run()
        assert upstream.given_up == [b"bad"]
        upstream.idle()

    def test_the_only_message_is_acknowledged_after_all(self) -> None:
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad")
        upstream.run()
        upstream.closes = never
        upstream.wait(PAUSE)
        assert upstream.turn()
        assert (upstream.came, upstream.given_up) == ([b"bad"], [])
        upstream.idle()

    def test_one_vouches_that_comes_behind_very_many(self) -> None:
        upstream = Fussy(closes=bad)
        for number in range(LOOKED_AT * 2):
            upstream.publish(b"bad %d" % number)
        upstream.scene.terms.max_inflight = 10
        upstream.run()
        upstream.publish(b"good", topic="up/b")
        assert not upstream.turn()
        assert upstream.came == [b"good"]
        assert upstream.given_up == [b"bad 0"]

    def test_one_that_expires_before_it_is_written_is_not_waited_for(self) -> None:
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad")
        upstream.run()
        scene = upstream.scene
        session = scene.session
        upstream.client.publish("up/b", b"late", qos=1, expiry=5)
        scene.link.look(scene.network.now)
        send_buffer = session.send_buffer
        assert send_buffer is not None
        assert send_buffer.take(1 << 20, scene.network.now)[0] == 0xC0
        scene.link.receive(b"\xd0\0", scene.network.now)
        assert session.queued() == 1
        scene.network.now += 10.0
        assert send_buffer.take(1 << 20, scene.network.now) == b""
        scene.link.refill(scene.network.now)
        assert upstream.lost == {"expired": 1}
        assert session.trial.alone is None
        upstream.publish(b"good", topic="up/b")
        assert not upstream.turn()
        assert upstream.came == [b"good"]
        upstream.balanced()

    @for_each(
        "code",
        [
            reason_codes.TOPIC_NAME_INVALID,
            reason_codes.PACKET_TOO_LARGE,
            reason_codes.PAYLOAD_FORMAT_INVALID,
            reason_codes.RETAIN_NOT_SUPPORTED,
            reason_codes.QOS_NOT_SUPPORTED,
        ],
    )
    def test_a_reason_that_is_the_message_is_enough(self, code: int) -> None:
        upstream = Fussy(closes=bad, code=code)
        upstream.publish(*GOOD[:5], b"bad", *GOOD[5:])
        upstream.run()
        assert upstream.given_up == [b"bad"]
        assert set(upstream.came) == set(GOOD)
        assert upstream.connections == 3
        upstream.idle()

    @for_each(
        "code",
        [reason_codes.NOT_AUTHORIZED, reason_codes.UNSPECIFIED_ERROR, reason_codes.IMPLEMENTATION_SPECIFIC_ERROR],
    )
    def test_a_reason_that_may_be_the_message_needs_the_rest(self, code: int) -> None:
        upstream = Fussy(closes=bad, code=code)
        upstream.publish(b"bad", *GOOD)
        upstream.run()
        assert upstream.given_up == [b"bad"]
        assert 4 < upstream.connections <= 8
        upstream.idle()


class TestNothingIsLost:
    @for_each("deaf", [False, True])
    @for_each("version", [V5, V311])
    @for_each("packets", [*range(1, 10), 13, 25, 38])
    def test_connections_that_end_after_some_packets(self, packets: int, version: int, deaf: bool) -> None:
        upstream = Fussy(version)
        upstream.deaf = deaf
        upstream.packets, upstream.flaps = packets, 40
        for number, payload in enumerate(GOOD):
            upstream.publish(payload, topic=f"up/{number % 3}", qos=1 + number % 2)
        upstream.run()
        upstream.flaps = 0
        # What is still doubtful then is tried again after its pause.
        for _ in range(MOST):
            upstream.wait(200.0)
            assert upstream.turn()
        assert set(upstream.came) == set(GOOD)
        assert (upstream.given_up, upstream.lost) == ([], {})
        upstream.idle()

    @for_each("topics", [1, 2, 40])
    @for_each("closings", [1, 3, 4, 5, 6, 9, 15, 30])
    def test_every_message_is_closed_for_and_then_none(self, closings: int, topics: int) -> None:
        """A policy that allows nothing, until somebody mends it."""
        upstream = Fussy(closes=lambda _: upstream.connections <= closings)
        for number, payload in enumerate(GOOD):
            upstream.publish(payload, topic=f"up/{number % topics}")
        upstream.go_on(2_000.0)
        assert set(upstream.came) == set(GOOD)
        assert (upstream.given_up, upstream.lost) == ([], {})
        upstream.idle()

    @for_each(
        "code",
        [
            reason_codes.SERVER_SHUTTING_DOWN,
            reason_codes.SERVER_BUSY,
            reason_codes.KEEP_ALIVE_TIMEOUT,
            reason_codes.SESSION_TAKEN_OVER,
            reason_codes.MESSAGE_RATE_TOO_HIGH,
            reason_codes.QUOTA_EXCEEDED,
            reason_codes.ADMINISTRATIVE_ACTION,
            reason_codes.USE_ANOTHER_SERVER,
            reason_codes.MAXIMUM_CONNECT_TIME,
        ],
    )
    def test_another_reason_says_nothing(self, code: int) -> None:
        upstream = Fussy(closes=bad, code=code)
        upstream.publish(b"bad", *GOOD)
        for _ in range(20):
            upstream.connect()
            assert not upstream.turn()
        assert not upstream.scene.session.trial.on
        assert upstream.lost == {}

    def test_our_own_ends_and_a_lost_network_say_nothing(self) -> None:
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad", *GOOD)
        for _ in range(20):
            upstream.connect()
            upstream.scene.took(Packet)
            upstream.scene.lose()
        assert not upstream.scene.session.trial.on

    def test_an_end_long_after_the_message_says_nothing(self) -> None:
        upstream = Fussy()
        upstream.publish(b"1", topic="up/1")
        upstream.publish(b"2", topic="up/2")
        for _ in range(12):
            upstream.connect()
            scene = upstream.scene
            scene.took(Publish)
            if scene.took(Pingreq):
                scene.say(Pingresp())
                assert [each.payload for each in scene.took(Publish)] == [b"1"]
                scene.network.advance(60.0)
            scene.link.lost("closed", scene.network.now, True)
            scene.network.settle()
        assert upstream.scene.session.trial.doubtful == []

    def test_an_end_while_a_subscribe_is_unanswered_says_nothing(self) -> None:
        """The filter may be the one that is not allowed."""
        upstream = Fussy(closes=bad)
        upstream.publish(b"bad", topic="up/1")
        for _ in range(2):
            upstream.connect()
            assert not upstream.turn()
        scene = upstream.scene
        upstream.connect()
        scene.took(Pingreq)
        scene.say(Pingresp())
        assert len(scene.took(Publish)) == 1
        scene.declarer.declare("not/allowed")
        assert len(scene.took(Subscribe)) == 1
        scene.link.lost("closed", scene.network.now, True)
        scene.network.settle()
        assert scene.session.trial.doubtful == []
        # And none goes before it is answered.
        upstream.connect()
        scene.took(Pingreq)
        scene.say(Pingresp())
        assert scene.took(Publish) == []
        [subscribe] = scene.took(Subscribe)
        scene.say(Suback(subscribe.packet_id, [0x87]))
        assert len(scene.took(Publish)) == 1


class TestTopics:
    def test_one_that_is_never_allowed_is_barred_for_a_while(self) -> None:
        upstream = Fussy(closes=bad)
        for number in range(20):
            upstream.publish(b"bad %d" % number, topic="up/bad")
            upstream.publish(b"%d" % number)
        upstream.run()
        assert len(upstream.given_up) == IN_A_ROW
        assert upstream.lost == {"refused": 20}
        assert set(upstream.came) == {b"%d" % number for number in range(20)}
        assert upstream.connections <= 12
        # At the door, whatever the QoS, and retained ones too.
        connections = upstream.connections
        for qos in (0, 1, 2):
            upstream.publish(b"bad", topic="up/bad", qos=qos)
        assert upstream.turn()
        assert upstream.lost == {"refused": 23}
        upstream.balanced()
        # Afterwards it is tried again, and one is enough to be barred again.
        upstream.scene.network.advance(BARRED)
        upstream.publish(b"bad", topic="up/bad")
        assert not upstream.turn()
        upstream.publish(*GOOD[:5])
        upstream.run()
        assert upstream.given_up[IN_A_ROW:] == [b"bad"]
        assert upstream.connections <= connections + 3
        upstream.publish(b"bad", topic="up/bad")
        assert upstream.turn()
        assert upstream.lost == {"refused": 25}
        upstream.idle()

    def test_one_that_is_allowed_again(self) -> None:
        upstream = Fussy(closes=bad)
        for number in range(5):
            upstream.publish(b"bad %d" % number, topic="up/bad")
            upstream.publish(b"%d" % number)
        upstream.run()
        upstream.scene.network.advance(BARRED)
        upstream.closes = never
        upstream.publish(b"bad", topic="up/bad")
        assert upstream.turn()
        upstream.closes = bad
        # It is like any other topic now.
        upstream.publish(b"bad", topic="up/bad")
        assert not upstream.turn()
        upstream.connect()
        upstream.publish(*GOOD[:3])
        assert not upstream.turn()
        assert upstream.given_up == [b"bad 0", b"bad 1", b"bad 2"]

    def test_another_upstream_has_rules_of_its_own(self) -> None:
        upstream = Fussy(closes=bad)
        for number in range(5):
            upstream.publish(b"bad %d" % number, topic="up/bad")
            upstream.publish(b"%d" % number)
        upstream.run()
        upstream.publish(b"bad")
        upstream.scene.session.forgive()
        upstream.closes = never
        upstream.scene.lose()
        upstream.run()
        upstream.publish(b"bad", topic="up/bad")
        assert upstream.turn()
        assert upstream.came[-2:] == [b"bad", b"bad"]
        upstream.idle()

    def test_what_is_known_is_bounded(self) -> None:
        trial = PoisonMessageDetector()
        for number in range(TOPICS * 2):
            trial._give_up(b"%d" % number, 0.0)
        assert len(trial._known) == TOPICS


def test_an_upstream_that_takes_nothing_costs_bounded_memory() -> None:
    upstream = Fussy(closes=lambda _: True)
    for number in range(200):
        upstream.publish(b"x", topic=f"up/{number}")
    upstream.go_on(1_000.0)
    assert len(upstream.scene.session.trial.doubtful) <= MOST
    assert upstream.lost == {}
    assert upstream.scene.session.offered == 200


@for_each("alone", [1, 2])
def test_one_topic_stays_in_order_while_connections_break(alone: int) -> None:
    """[MQTT-4.6.0-1]: a link that breaks now and then overtakes nothing, though a message was alone each time."""
    upstream = Fussy()
    upstream.publish(*(b"%d" % number for number in range(20)))
    # Twice at the oldest; then after a PINGREQ, at the one that goes alone.
    for packets in (1, 1, *[2] * alone):
        upstream.flaps, upstream.packets = upstream.connections + 1, packets
        upstream.connect()
        assert not upstream.turn()
    upstream.run()
    assert upstream.came == [b"%d" % number for number in range(20)]
    assert upstream.given_up == []
