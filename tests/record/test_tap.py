"""What a tap is told: every event once, with the next number, in the order in which the broker acted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.causes import EVICTIONS
from canopy_mqtt.core.codec import properties as pr
from canopy_mqtt.core.codec.packets import V5, V311, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.ledger import DISCONNECTED, DROP_CAUSES, FULL_MESSAGES
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence.journal import Saved, SessionRecord, SubscriptionRecord
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST
from canopy_mqtt.core.routing.bursts import RUN_MESSAGES
from canopy_mqtt.record.tap import HAND_OVER, RUN, STATE_PART
from tests.core.harness import Client, Network, limits
from tests.record.taps import Listening, Row, listen
from tests.support.losses import dropped_by_cause
from tests.support.restored import restore
from tests.support.runs import for_each
from tests.support.sessions import any_subscription


def numbers(rows: list[Row]) -> list[int]:
    return [row["seq"] for row in rows]


def short(rows: list[Row], *columns: str) -> list[tuple[object, ...]]:
    """Kind and some columns of each row; None where it has no such column."""
    return [(row["kind"], *(row.get(column) for column in columns)) for row in rows]


class TestOrder:
    """One of each, from a client's first packet to its last."""

    def test_a_client_s_life(self) -> None:
        network = Network()
        heard = listen(network.router)
        client = network.client("c", user_name="u", password=b"x")
        client.subscribe(Request("a/#", 1, False, True), identifier=7)
        client.publish("a/b", b"one", 1)
        client.subscribe("a/#", qos=2)
        client.unsubscribe("a/#")
        client.unsubscribe("never/there")
        client.disconnect()
        assert heard.rows() == [
            {
                "seq": 1, "kind": "connect", "client_id": "c", "address": "client:0", "user_name": "u",
                "protocol": 5, "clean_start": True, "session_present": False,
            },
            {
                "seq": 2, "kind": "subscribe", "client_id": "c", "topic_filter": "a/#", "qos": 1, "no_local": False,
                "retain_as_published": True, "subscription_id": 7,
            },
            {
                "seq": 3, "kind": "publish", "client_id": "c", "topic": "a/b", "payload": b"one", "qos": 1,
                "retain": False,
            },
            {
                "seq": 4, "kind": "subscribe", "client_id": "c", "topic_filter": "a/#", "qos": 2, "no_local": False,
                "retain_as_published": False,
            },
            {"seq": 5, "kind": "unsubscribe", "client_id": "c", "topic_filter": "a/#"},
            {
                "seq": 6, "kind": "disconnect", "client_id": "c", "address": "client:0",
                "reason": "client-disconnect",
            },
        ]  # fmt: skip
        assert heard.note() == 6
        assert heard.tap.empty

    def test_granted_not_asked(self) -> None:
        """A subscription is told with the QoS that it got, a refused one not at all."""
        network = Network(limits(max_qos=1, max_topic_levels=1))
        heard = listen(network.router)
        client = network.client("c")
        client.subscribe("a", "a/b", qos=2)
        assert short(heard.rows("subscribe"), "topic_filter", "qos") == [("subscribe", "a", 1)]

    def test_session_end_takes_its_subscriptions(self) -> None:
        """After the will, which they do not get; and a clean start ends the old session before the new begins."""
        network = Network()
        event_listener = network.client("w")
        event_listener.subscribe("gone")
        heard = listen(network.router, deliveries=True)
        client = network.client("c", will=Will("gone", b"will", 0, False), expiry=0)
        client.subscribe("x", "$share/g/y", "gone")
        heard.rows()
        client.cut()
        rows = heard.rows()
        will = next(row["seq"] for row in rows if row["kind"] == "publish")
        told = short(rows, "client_id", "topic_filter", "reason", "ref_seq")
        assert told[:3] == [
            ("disconnect", "c", None, "connection-lost", None),
            ("publish", "c", None, None, None),
            ("deliver", "w", None, None, will),
        ]
        ended = [("unsubscribe", "c", each, "session-ended", None) for each in ("$share/g/y", "gone", "x")]
        assert sorted(told[3:], key=repr) == ended
        assert numbers(rows) == list(range(will - 1, will + 5))

    def test_clean_start_expiry_and_takeover(self) -> None:
        network = Network()
        heard = listen(network.router)
        client = network.client("c", expiry=10)
        client.subscribe("x")
        client.connect(clean=False, expiry=10)
        client.connect(clean=True, expiry=10)
        client.subscribe("y")
        client.disconnect()
        network.advance(11.0)
        assert short(heard.rows(), "topic_filter", "reason", "clean_start", "session_present") == [
            ("connect", None, None, True, False),
            ("subscribe", "x", None, None, None),
            ("evict", None, "taken-over", None, None),
            ("connect", None, None, False, True),
            ("evict", None, "taken-over", None, None),
            ("unsubscribe", "x", "session-ended", None, None),
            ("connect", None, None, True, False),
            ("subscribe", "y", None, None, None),
            ("disconnect", None, "client-disconnect", None, None),
            ("unsubscribe", "y", "session-ended", None, None),
        ]

    def test_who_was_never_in_is_not_told(self) -> None:
        network = Network(limits(allow_anonymous=False))
        heard = listen(network.router)
        assert network.idle("c").connect().reason_code >= 0x80
        assert heard.rows() == []

    def test_protocol_error_is_an_eviction(self) -> None:
        network = Network()
        heard = listen(network.router)
        network.client("c").raw(b"\xf0\xff\xff\xff\xff\xff")
        assert short(heard.rows("evict", "disconnect"), "reason") == [("evict", "protocol-error")]
        assert "connection-lost" not in EVICTIONS

    def test_what_was_there_before(self) -> None:
        """A tap that comes late is told of the subscriptions, and of nothing else."""
        network = Network()
        client = network.client("c", expiry=100)
        client.subscribe(Request("a", 2, True), Request("$share/g/#", 1))
        client.cut()
        heard = listen(network.router)
        rows = heard.rows()
        assert short(rows, "client_id", "topic_filter", "qos", "no_local", "reason") == [
            ("subscribe", "c", "a", 2, True, "snapshot"),
            ("subscribe", "c", "$share/g/#", 1, False, "snapshot"),
        ]
        assert numbers(rows) == [1, 2]

    def test_sessions_of_a_store(self) -> None:
        network = Network()
        heard = listen(network.router)
        saved = Saved()
        record = SessionRecord("c", 100, 10.0)
        record.subscriptions += [SubscriptionRecord(Request("a/+", 2, False, True, 0), 9, False)]
        saved.sessions.append(record)
        restore(network.router, saved, network.now)
        assert heard.rows() == [
            {
                "seq": 1, "kind": "subscribe", "client_id": "c", "topic_filter": "a/+", "qos": 2, "no_local": False,
                "retain_as_published": True, "subscription_id": 9, "reason": "snapshot",
            }
        ]  # fmt: skip

    def test_no_tap_no_more(self) -> None:
        """Once nobody records, nobody is told, and messages go straight again."""
        network = Network()
        client = network.client("c")
        client.subscribe("#")
        heard = listen(network.router, deliveries=True)
        client.publish("a", b"1")
        network.router.record(None, ())
        heard.rows()
        last = heard.tap.seq
        for _ in range(3):
            client.post("a", b"2")
        network.settle()
        client.unsubscribe("#")
        client.cut()
        assert heard.tap.seq == last
        assert heard.rows() == []
        assert client.payloads() == [b"1", b"2", b"2", b"2"]


class TestPublishes:
    """What is said of a message."""

    @for_each("version", [V311, V5])
    @for_each("cache", [0, 16_384])
    @for_each("listeners", [(), ("#",), ("#", "a/+"), ("$share/g/#",)])
    def test_bursts(self, version: int, cache: int, listeners: tuple[str, ...]) -> None:
        """Each with its number, in order, whoever listens; what else is sent between comes between."""
        network = Network(match_cache=cache)
        heard = listen(network.router)
        for at, topic_filter in enumerate(listeners):
            network.client(f"l{at}").subscribe(topic_filter)
        publisher = network.client("p", version)
        sent = []
        publisher.publish("a/b", b"")
        publisher.publish("c", b"")
        heard.rows()
        first = heard.tap.seq + 1
        for at in range(150):
            topic, qos = ("c" if at % 7 == 3 else "a/b"), int(at in (70, 71))
            publisher.post(topic, b"%d" % at * (1 + at % 3), qos)
            sent.append(("publish", first + at, "p", topic, b"%d" % at * (1 + at % 3), qos, False))
        network.settle()
        assert short(heard.rows(), "seq", "client_id", "topic", "payload", "qos", "retain") == sent

    def test_a_burst_is_one_entry(self) -> None:
        """As in a subscriber's queue: the bytes that came, not copied and not taken apart."""
        network = Network()
        heard = listen(network.router)
        client = network.client("c")
        client.subscribe("#")
        client.publish("a", b"")
        heard.take()
        heard.entries.clear()
        for _ in range(RUN_MESSAGES):
            client.post("a", b"x")
        network.settle()
        heard.take()
        [entry] = heard.entries
        assert (entry[0], entry[4]) == (RUN, RUN_MESSAGES)

    @for_each("deliveries", [False, True])
    @for_each("version", [V311, V5])
    def test_a_burst_of_which_a_part_is_recorded(self, deliveries: bool, version: int) -> None:
        network = Network()
        heard = listen(network.router, "a/#", "b/+/c", deliveries=deliveries)
        client = network.client("c", version)
        client.subscribe("#")
        topics = ["a", "b", "a/b", "b/x/c", "z", "ab", "a/b/c"]
        for topic in topics:
            client.publish(topic)
        client.take()
        heard.rows()
        for at in range(70):
            client.post(topics[at * at % len(topics)], b"%d" % at)
        network.settle()
        recorded = {"a", "a/b", "b/x/c", "a/b/c"}
        chosen = [(topics[at * at % len(topics)], b"%d" % at) for at in range(70)]
        rows = heard.rows()
        assert [(row["topic"], row["payload"]) for row in rows if row["kind"] == "publish"] == [
            each for each in chosen if each[0] in recorded
        ]
        assert len([row for row in rows if row["kind"] == "deliver"]) == (
            deliveries and sum(t in recorded for t, _ in chosen)
        )
        assert [(packet.topic.decode(), packet.payload) for packet in client.take()] == chosen

    def test_everything_that_a_message_has(self) -> None:
        network = Network()
        heard = listen(network.router)
        client = network.client("c")
        forward = pr.encode_forward(
            payload_format=1,
            content_type="t/x",
            response_topic="r",
            correlation_data=b"\xff\0",
            user=[("k", "v"), ("k", "w")],
        )
        heard.rows()
        client.publish("a", b"1", 2, True, forward, expiry=30)
        client.publish("b", b"2", 0, False, b"", alias=3)
        client.post("", b"3", alias=3)
        client.post("", b"", 1, alias=3)
        network.settle()
        plain = {"kind": "publish", "client_id": "c", "retain": False}
        assert heard.rows() == [
            {
                "seq": 2, "kind": "publish", "client_id": "c", "topic": "a", "payload": b"1", "qos": 2, "retain": True,
                "properties": forward, "message_expiry": 30,
            },
            {"seq": 3, **plain, "topic": "b", "payload": b"2", "qos": 0},
            {"seq": 4, **plain, "topic": "b", "payload": b"3", "qos": 0},
            {"seq": 5, **plain, "topic": "b", "payload": b"", "qos": 1},
        ]  # fmt: skip

    def test_known_packet_is_one_message(self) -> None:
        """QoS 2 that is sent again is not routed again, and so not told again."""
        network = Network()
        heard = listen(network.router)
        client = network.client("c", expiry=100)
        client.subscribe("a", qos=2)
        client.wire.frozen = True
        client.post("a", b"once", 2)
        client.wire.to_channel()
        client.cut()
        client.connect(clean=False, expiry=100)
        assert len(heard.rows("publish")) == 1
        assert client.payloads() == [b"once"]

    def test_system_topics(self) -> None:
        """Not recorded by a filter that begins with a wildcard; one that names them finds them, sent by nobody."""
        for filters, found in ((("#", "+/broker"), 0), (("$SYS/#",), 1)):
            network = Network()
            heard = listen(network.router, *filters)
            network.router.publish(Message(b"$SYS/broker", b"1", 0, True, b"", 0.0, ""), None)
            client = network.client("c")
            client.publish("$SYS/broker", b"not routed", 1)
            rows = heard.rows("publish")
            assert short(rows, "client_id", "topic") == [("publish", None, "$SYS/broker")] * found

    def test_wills(self) -> None:
        """Under the name of who left; a delayed one when it is due."""
        network = Network()
        heard = listen(network.router)
        will = Will("gone", b"bye", 1, True)
        will.delay = 5
        will.message_expiry = 60
        client = network.client("c", will=will, expiry=100)
        client.cut()
        assert heard.rows("publish") == []
        network.advance(6.0)
        assert short(heard.rows("publish"), "client_id", "payload", "retain", "message_expiry") == [
            ("publish", "c", b"bye", True, 60)
        ]

    def test_new_topics_with_a_full_match_cache(self) -> None:
        network = Network(match_cache=2)
        heard = listen(network.router, "a/+")
        client = network.client("c")
        client.subscribe("#")
        for at in range(20):
            client.post(f"{'ab'[at % 2]}/{at % 6}", b"")
        network.settle()
        assert len(heard.rows("publish")) == 10
        assert len(client.take()) == 20


def scene(policy: int = DROP_NEWEST, deliveries: bool = True, **changes: int) -> tuple[Client, Client, Listening]:
    """A subscriber with QoS 2 that does not read, under a policy, and a publisher whose topic is known."""
    given = limits(queue_policy=policy, **changes)
    given.tell_loss = False
    network = Network(given)
    client = network.client("c", expiry=1_000)
    client.subscribe("t/#", qos=2)
    publisher = network.client("p")
    publisher.publish("t/1", b"")
    publisher.publish("t/2", b"")
    client.take()
    client.wire.frozen = True
    heard = listen(network.router, deliveries=deliveries)
    heard.rows()
    return client, publisher, heard


class TestDeliveries:
    """For each publish and each session that should get it exactly one `deliver`, or one `drop` that says so."""

    def test_one_for_each_session(self) -> None:
        """However many of its filters match; with the QoS that it gets, and No Local heeded."""
        network = Network()
        heard = listen(network.router, deliveries=True)
        both, plain, own = network.client("both"), network.client("plain", V311), network.client("own")
        both.subscribe(Request("a/+", 1), Request("a/#", 0, retain_as_published=True))
        plain.subscribe(Request("a/#", 2))
        own.subscribe(Request("a/b", 2, True))
        heard.rows()
        first = heard.tap.seq + 1
        own.publish("a/b", b"1", 2, retain=True)
        plain.publish("a/b", b"2", 0)
        both.publish("a/c", b"3", 1)
        rows = heard.rows()
        assert numbers(rows) == list(range(first, first + len(rows)))
        assert sorted(short(rows, "ref_seq", "client_id", "qos", "retain", "topic_filter"), key=repr) == sorted(
            [
                ("publish", None, "own", 2, True, None),
                ("deliver", first, "both", 1, True, None),
                ("deliver", first, "plain", 2, False, None),
                ("publish", None, "plain", 0, False, None),
                ("deliver", first + 3, "both", 0, False, None),
                ("deliver", first + 3, "plain", 0, False, None),
                ("deliver", first + 3, "own", 0, False, None),
                ("publish", None, "both", 1, False, None),
                ("deliver", first + 7, "both", 1, False, None),
                ("deliver", first + 7, "plain", 1, False, None),
            ],
            key=repr,
        )

    def test_share_groups(self) -> None:
        """One of each group, with the filter that it wrote; beside what it gets through other filters."""
        network = Network()
        heard = listen(network.router, deliveries=True)
        for name in ("a", "b"):
            network.client(name).subscribe("$share/g/t", "$share/h/#", qos=1)
        network.client("c").subscribe("t")
        publisher = network.client("p")
        heard.rows()
        for _ in range(4):
            publisher.post("t", b"", 1)
        network.settle()
        found = Counter((row.get("topic_filter"), row["ref_seq"]) for row in heard.rows("deliver"))
        refs = sorted({ref for _, ref in found})
        assert len(refs) == 4
        assert found == Counter((given, ref) for ref in refs for given in ("$share/g/t", "$share/h/#", None))

    def test_a_full_member_of_a_share_group(self) -> None:
        """What it is refused names the group, so that it is not taken for what the session gets for itself."""
        network = Network(limits(live_messages=1))
        member = network.client("m")
        member.subscribe("$share/g/t", "t")
        member.wire.frozen = True
        publisher = network.client("p")
        heard = listen(network.router, deliveries=True)
        heard.rows()
        publisher.publish("t", b"")
        rows = heard.rows("deliver", "drop")
        assert short(rows, "client_id", "topic_filter", "reason") == [
            ("deliver", "m", None, None),
            ("drop", "m", "$share/g/t", "full-messages"),
        ]

    def test_retained_messages_are_not_deliveries(self) -> None:
        network = Network()
        client = network.client("c")
        client.publish("t", b"kept", retain=True)
        heard = listen(network.router, deliveries=True)
        client.subscribe("t")
        assert client.payloads() == [b"kept"]
        assert heard.rows("deliver") == []

    def test_away(self) -> None:
        """QoS 0 is lost and says so, QoS 1 waits."""
        client, publisher, heard = scene()
        client.cut()
        publisher.post("t/1", b"0")
        publisher.post("t/1", b"1", 1)
        client.network.settle()
        rows = heard.rows("publish", "deliver", "drop")
        first = rows[0]["seq"]
        assert rows[1:] == [
            {"seq": first + 1, "kind": "drop", "client_id": "c", "reason": "disconnected", "n": 1, "ref_seq": first},
            {**rows[2], "seq": first + 2, "kind": "publish", "qos": 1},
            {"seq": first + 3, "kind": "deliver", "client_id": "c", "ref_seq": first + 2, "qos": 1, "retain": False},
        ]

    @for_each(("policy", "kinds", "told"),
        [
            # The third and the fourth are refused at the door.
            (DROP_NEWEST, "pd pd px px", Counter({("full-messages", True): 2})),
            # They come in, and the oldest go: told once.
            (DROP_OLDEST, "pd pd pd pd", Counter({("full-messages", False): 2})),
            # Two topics: the third and fourth stand in for the first two.
            (LATEST, "pd pd pd pd", Counter({("replaced-by-latest", False): 2})),
            # The third ends the connection, and with it goes what waits.
            (
                DISCONNECT,
                "pd pd px px",
                Counter({("full-messages", True): 1, ("disconnected", True): 1, ("disconnected", False): 2}),
            ),
        ],
    )  # fmt: skip
    def test_full_queues(self, policy: int, kinds: str, told: Counter[tuple[str, bool]]) -> None:
        client, publisher, heard = scene(policy, live_messages=2)
        for at in range(4):
            publisher.post(f"t/{at % 2 + 1}", b"%d" % at)
        client.network.settle()
        rows = heard.rows()
        letters = "".join(
            {"publish": " p", "deliver": "d", "drop": "x"}.get(row["kind"], "")
            for row in rows
            if row.get("ref_seq") or row["kind"] == "publish"
        )
        assert letters.strip() == kinds
        drops: Counter[tuple[str, bool]] = Counter()
        for row in rows:
            if row["kind"] == "drop":
                drops[row["reason"], "ref_seq" in row] += row["n"]
                assert row["client_id"] == "c"
        assert drops == told
        assert ("evict", "queue-full") in short(rows, "reason") or policy != DISCONNECT

    def test_losses_are_told_once_without_deliveries(self) -> None:
        """A thousand messages that were refused are one event, and a new one when more are lost after it was taken."""
        client, publisher, heard = scene(DROP_NEWEST, False, live_messages=2)
        for _ in range(1_000):
            publisher.post("t/1", b"x")
        client.network.settle()
        [row] = heard.rows("drop")
        assert row == {**row, "client_id": "c", "reason": "full-messages", "n": 998}
        assert "ref_seq" not in row
        publisher.publish("t/1", b"x")
        assert short(heard.rows("drop"), "n") == [("drop", 1)]

    def test_later_losses_have_no_publish(self) -> None:
        """What expires, or goes with its session, was delivered to the queue first."""
        client, publisher, heard = scene()
        client.cut()
        publisher.publish("t/1", b"soon over", 1, expiry=1)
        client.network.now += 2.0
        client.connect(clean=False, expiry=1_000)
        client.cut()
        publisher.publish("t/1", b"stays", 1)
        publisher.publish("t/1", b"too", 1)
        client.network.advance(1_001.0)
        rows = heard.rows("deliver", "drop")
        assert short(rows, "client_id", "reason", "n") == [
            *[("deliver", "c", None, None)] * 3,
            ("drop", "c", "expired", 1),
            ("drop", "c", "session-ended", 2),
        ]
        assert not any("ref_seq" in row for row in rows[3:])

    def test_messages_that_are_not_recorded(self) -> None:
        """Their deliveries are not either; their losses are, without a publish that nobody could find."""
        network = Network()
        heard = listen(network.router, "a/#", deliveries=True)
        client = network.client("c", expiry=100)
        client.subscribe("#", qos=1)
        publisher = network.client("p")
        publisher.publish("b", b"", 1)
        publisher.publish("b", b"")
        client.cut()
        publisher.publish("b", b"")
        assert heard.rows("publish", "deliver") == []
        heard = listen(network.router, "a/#", deliveries=True)
        publisher.publish("b", b"")
        assert short(heard.rows("drop"), "client_id", "reason", "n", "ref_seq") == [
            ("drop", "c", "disconnected", 1, None)
        ]


# -- the same broker, with a tap and without --------------------------------------------------------------------------

TOPICS = ("t/1", "t/2", "t/2/x", "z")
FILTERS = ("t/#", "t/1", "t/+", "#", "$share/g/t/+", "$share/g/#")
NAMES = ("a", "b", "c")
WHAT = [
    *["burst"] * 3,
    *["publish", "subscribe"] * 2,
    *["mixed", "unsubscribe", "freeze", "thaw", "trickle", "cut", "connect", "leave", "answer", "silent", "wait"],
]


@dataclass(frozen=True)
class Step:
    """Something that a client does, or that happens to it."""

    what: str
    name: str
    topic: str
    topic_filter: str
    qos: int
    flag: bool
    count: int


steps = st.builds(
    Step,
    st.sampled_from(WHAT),
    st.sampled_from(NAMES),
    st.sampled_from(TOPICS),
    st.sampled_from(FILTERS),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 12),
)


class Side:
    """A broker with its clients, all that it wrote to them, and all its numbers."""

    def __init__(self, given: Limits) -> None:
        self.network = Network(given)
        self.clients = {
            name: self.network.client(
                name, V311 if name == "b" else V5, clean=False, **({} if name == "b" else {"expiry": 500})
            )
            for name in NAMES
        }
        for topic in TOPICS:
            self.clients["a"].publish(topic, b"warm")

    def do(self, step: Step) -> None:
        network, client = self.network, self.clients[step.name]
        up = not client.wire.cut and not client.wire.protocol.close_cause
        if step.what == "cut":
            client.cut()
        elif step.what == "connect" and not up:
            client.connect(clean=step.flag, expiry=None if client.version == V311 else 500)
            client.answering = True
        elif step.what == "wait":
            network.advance(float(step.count * 40))
        elif step.what in ("freeze", "thaw"):
            client.wire.frozen = step.what == "freeze"
        elif step.what in ("answer", "silent"):
            client.answering = step.what == "answer"
            if client.answering and up:
                client.answer()
        elif step.what == "trickle" and client.wire.frozen and up:
            client.wire.frozen, client.wire.batch = False, step.count * 10
            client.wire.flush(1)
            client.wire.frozen, client.wire.batch = True, 1 << 30
        elif up and step.what == "subscribe" and not self._in_two_groups(step):
            own = step.flag and client.version == V5 and not step.topic_filter.startswith("$")
            client.post("z", b"")
            request = Request(step.topic_filter, step.qos, own)
            _quiet(
                client,
                lambda: client.subscribe(request, identifier=step.count if step.flag and client.version == V5 else 0),
            )
        elif up and step.what == "unsubscribe":
            _quiet(client, lambda: client.unsubscribe(step.topic_filter))
        elif up and step.what == "leave":
            client.disconnect()
        elif up and step.what == "publish":
            expiry = 30 if step.flag and client.version == V5 else -1
            client.publish(step.topic, b"p%d" % step.count, step.qos, step.flag, expiry=expiry)
        elif up and step.what in ("burst", "mixed"):
            for at in range(step.count):
                topic = TOPICS[at % len(TOPICS)] if step.what == "mixed" else step.topic
                client.post(topic, b"%d" % at * step.count, step.qos if at % 5 == 4 else 0)
        network.settle()

    def numbers(self) -> object:
        """Every ledger and counter."""
        router = self.network.router
        sessions = {
            name: (
                each.offered,
                each.delivered_in_all(),
                each.queued(),
                dropped_by_cause(each),
                sorted(one.packet_id for one in each.inflight.values()),
            )
            for name, each in router.sessions.items()
        }
        counters, totals = router.counters, router.counters.totals
        return (
            sessions, counters.dropped, counters.messages_sent, counters.bytes_sent, counters.messages_received,
            totals.messages, totals.bytes, totals.inflight, router.table.count, router.budget.used >= 0,
        )  # fmt: skip

    def _in_two_groups(self, step: Step) -> bool:
        """One client in two share groups gets two copies of a message, in no order that anybody promises."""
        session = self.network.router.sessions.get(step.name)
        held = () if session is None else session.subscriptions
        return step.topic_filter.startswith("$share/") and any(
            each.startswith("$share/") and each != step.topic_filter for each in held
        )

    def heard(self) -> object:
        """Everything that was written to anybody."""
        return {name: (client.packets, bytes(client.wire.down)) for name, client in self.clients.items()}


def _quiet(client: Client, act: object) -> None:
    """A client that does not read gets no answer in time; that is no failure here."""
    frozen, client.wire.frozen = client.wire.frozen, False
    assert callable(act)
    act()
    client.wire.frozen = frozen


def terms(policy: int, room: int) -> Limits:
    given = limits(queue_policy=policy, live_messages=room, session_messages=room)
    given.tell_loss = False
    return given


@settings(deadline=None)
@given(
    moves=st.lists(steps, max_size=30),
    policy=st.sampled_from([DROP_NEWEST, DROP_OLDEST, DISCONNECT, LATEST]),
    room=st.sampled_from([3, 10, 0]),
    deliveries=st.booleans(),
    filters=st.sampled_from([("#",), ("t/#",), ("t/1", "z"), ("nobody",)]),
)
def test_a_tap_changes_nothing(
    moves: list[Step], policy: int, room: int, deliveries: bool, filters: tuple[str, ...]
) -> None:
    """Subscribers get the same bytes, and every account is the same; and the tap's account is that of the ledgers."""
    plain, tapped = Side(terms(policy, room)), Side(terms(policy, room))
    before = list(tapped.network.router.counters.dropped)
    heard = listen(tapped.network.router, *filters, deliveries=deliveries)
    rows = heard.rows()
    for step in moves:
        plain.do(step)
        tapped.do(step)
        assert repr(plain.heard()) == repr(tapped.heard())
        assert plain.numbers() == tapped.numbers()
    rows += heard.rows(last=True)
    assert numbers(rows) == list(range(1, heard.tap.seq + 1))
    dropped = [0] * len(DROP_CAUSES)
    for row in rows:
        if row["kind"] == "drop":
            dropped[DROP_CAUSES.index(row["reason"])] += row["n"]
    assert dropped == [after - old for after, old in zip(tapped.network.router.counters.dropped, before, strict=True)]
    if deliveries:
        _check_deliveries(rows)
    else:
        assert not any(row["kind"] == "deliver" or "ref_seq" in row for row in rows)


def _check_deliveries(rows: list[Row]) -> None:
    """Each refers to a publish before it; one for each session, and one for each share group."""
    published = {row["seq"]: row for row in rows if row["kind"] == "publish"}
    seen: set[tuple[object, ...]] = set()
    for row in rows:
        ref = row.get("ref_seq")
        if ref is None:
            continue
        assert ref in published
        assert ref < row["seq"]
        if row["kind"] == "deliver":
            assert row["qos"] <= published[ref]["qos"]
            shared = row.get("topic_filter")
            key = (ref, shared) if shared else (ref, None, row["client_id"])
            assert key not in seen
            seen.add(key)


# -- the queue ---------------------------------------------------------------------------------------------------------

FRAME = b"\x30\x04\x00\x01tx"


class TestQueue:
    """Bounded; what did not fit is named."""

    def test_hands_over_when_enough_has_come(self) -> None:
        heard = Listening()
        for _ in range(HAND_OVER * 2 + 1):
            heard.tap.frames(FRAME, 1, False, "p")
        assert heard.handed == 2
        assert numbers(heard.rows()) == list(range(1, HAND_OVER * 2 + 2))

    def test_one_gap_for_one_full_queue(self) -> None:
        """Not one for each message that found a place for a moment: it opens again when a part of it is free."""
        heard = Listening(max_events=800)
        heard.stalled = True
        for _ in range(1_000):
            heard.tap.frames(FRAME, 1, False, "p")
        for _ in range(1_000):
            # The thread writes one event at a time, and two come.
            heard.tap.done_events += 1
            heard.tap.frames(FRAME * 2, 2, False, "p")
        rows = heard.rows(last=True)
        gaps = [row for row in rows if row["kind"] == "gap"]
        assert 1 < len(gaps) < 8
        _whole(rows, heard)
        assert heard.tap.lost == sum(row["n"] for row in gaps)

    def test_who_came_and_who_subscribed_outlives_publishes(self) -> None:
        heard = Listening(max_events=800)
        heard.stalled = True
        for at in range(90):
            for _ in range(50):
                heard.tap.frames(FRAME, 1, False, "p")
            heard.tap.subscribed(any_subscription("c", f"t/{at}"), False)
        rows = heard.rows(last=True)
        told = [row for row in rows if row["kind"] == "subscribe"]
        assert len(told) > 800 // STATE_PART // 2 - 2
        assert told[0]["topic_filter"] == "t/0"
        reasons = {row["reason"] for row in rows if row["kind"] == "gap"}
        assert "queue-full" in reasons
        # Later even these did not fit, and it says so.
        assert "queue-full+state" in reasons
        _whole(rows, heard)

    def test_texts_of_clients_count(self) -> None:
        """A filter of 65,535 bytes is no small event: who sends many of them cannot have the queue hold them all."""
        heard = Listening(max_bytes=1_000_000)
        heard.stalled = True
        for _ in range(100):
            heard.tap.subscribed(any_subscription("c", "f" * 65_535), False)
            heard.tap.unsubscribed("c", "f" * 65_535, False)
        rows = heard.rows(last=True)
        assert len([row for row in rows if row["kind"] != "gap"]) == 1_000_000 // 65_535
        _whole(rows, heard)

    def test_a_gap_of_an_earlier_run_always_has_room(self) -> None:
        heard = Listening(max_bytes=10, max_events=1)
        heard.tap.seq = 7
        heard.tap.gap(3, 7, "crash")
        assert heard.rows() == [{"seq": 8, "kind": "gap", "from_seq": 3, "to_seq": 7, "n": 5, "reason": "crash"}]

    def test_a_message_that_was_lost_is_still_referred_to(self) -> None:
        """The number of a publish that did not fit, not of one before it."""
        heard = Listening(True, max_events=8)
        heard.stalled = True
        for _ in range(20):
            heard.tap.frames(FRAME, 1, False, "p")
        lost = heard.tap.seq
        heard.written()
        heard.tap.delivered("c", 0, False, None)
        assert heard.rows("deliver")[0]["ref_seq"] == lost


def _whole(rows: list[Row], heard: Listening) -> None:
    """Every number is in exactly one event or in exactly one gap."""
    found = Counter(numbers(rows))
    for row in rows:
        if row["kind"] == "gap":
            assert row["n"] == row["to_seq"] - row["from_seq"] + 1
            found.update(range(row["from_seq"], row["to_seq"] + 1))
    assert found == Counter(range(1, heard.tap.seq + 1))
    assert numbers(rows) == sorted(numbers(rows))


@given(
    moves=st.lists(st.tuples(st.sampled_from("rrrpdsulxtw"), st.integers(1, 64)), max_size=120),
    max_events=st.sampled_from([0, 1, 2, 8, 50, 100, 400]),
    max_bytes=st.sampled_from([0, 500, 2_000, 20_000]),
)
@example(moves=[("r", 64), ("s", 1), ("r", 1), ("w", 64), ("r", 2)], max_events=50, max_bytes=0)
def test_every_number_is_somewhere(moves: list[tuple[str, int]], max_events: int, max_bytes: int) -> None:
    """Whatever comes and however slowly it is taken: no number twice, none unnamed, never more than the bounds."""
    heard = Listening(True, max_events, max_bytes)
    tap = heard.tap
    heard.stalled = True
    lost: Counter[tuple[str, int]] = Counter()
    for move, count in moves:
        if move == "r":
            tap.frames(FRAME * count, count, False, "p")
        elif move == "p":
            tap.message(Message(b"t", b"x" * count, 1, False, b"", 0.0, "p"), 0.0)
        elif move == "d":
            tap.delivered("c", 0, False, None)
        elif move == "s":
            tap.subscribed(any_subscription("c", "t"), False)
        elif move == "u":
            tap.disconnected("c", "", "stalled")
        elif move == "l":
            tap.lost_messages("c", FULL_MESSAGES, count)
            lost["full-messages", 0] += count
        elif move == "x":
            # As a queue does: counted first, and then told.
            tap.lost_messages("c", DISCONNECTED, 1)
            tap.refused("c", DISCONNECTED, None)
            lost["disconnected", tap.ref] += 1
        elif move == "t":
            heard.take()
        else:
            waiting = tap.waiting
            tap.done_events += min(count, waiting)
            if tap.waiting == 0:
                heard.written()
        # The event that tells of a gap always has room.
        assert tap.waiting <= (max_events or 1 << 60) + 1
        assert heard.note() == tap.seq
    rows = heard.rows(last=True)
    _whole(rows, heard)
    if tap.lost == 0:
        told: Counter[tuple[str, int]] = Counter()
        for row in rows:
            if row["kind"] == "drop":
                told[row["reason"], row.get("ref_seq", 0)] += row["n"]
        assert told == lost


class TestHolding:
    """Publishers wait while more than half of what may wait does, as long as it becomes less."""

    def test_half_of_it_waits(self) -> None:
        listening, totals = Listening(max_events=40), QueueTotals()
        listening.stalled = True
        tap = listening.tap
        tap.hold_publishers(totals, 10.0)
        frame = bytes((0x30, 3, 0, 1)) + b"t"
        for _ in range(20):
            tap.frames(frame, 1, False, "p")
        assert (totals.over_half, totals.over_half_recorder, tap.half_full) == (0, None, False)
        for _ in range(2):
            tap.frames(frame, 1, False, "p")
        backlog = totals.over_half_recorder
        assert backlog is not None
        assert (totals.over_half, tap.half_full) == (2, True)
        # As long as some of it is written, and for so long after that.
        assert backlog.holds_publishers(100.0)
        assert backlog.holds_publishers(109.0)
        assert not backlog.holds_publishers(110.0)
        tap.done_events += 1
        assert backlog.holds_publishers(110.0)
        assert not backlog.holds_publishers(120.0)
        listening.take()
        listening.written()
        assert not backlog.holds_publishers(120.0)

    def test_what_is_shut_holds_nobody(self) -> None:
        listening = Listening(max_events=4)
        listening.stalled = True
        listening.tap.hold_publishers(QueueTotals(), 10.0)
        for _ in range(3):
            listening.tap.disconnected("c", "h:1", "client-disconnect")
        assert listening.tap.half_full
        listening.tap.shut()
        before = listening.tap.seq
        listening.tap.disconnected("c", "h:1", "client-disconnect")
        assert (listening.tap.half_full, listening.tap.seq, listening.tap.take(False)) == (False, before + 1, [])
