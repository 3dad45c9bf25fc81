"""What is published and subscribed to in other ways: shares, overlaps, retained messages, wills, payloads, sessions.

All of it is played in three runs; each test looks at its own groups.
"""

from __future__ import annotations

import json

import pytest

from canopy_load.report.result import Result
from canopy_mqtt.core.codec.packets import Packet, Pingreq, Publish
from canopy_mqtt.core.codec.properties import SERVER_KEEP_ALIVE, TOPIC_ALIAS_MAXIMUM
from tests.loadtest.account import Account, Message
from tests.loadtest.playing import Cases, agrees, balanced, group, named, play, reader, sender, stage, stated
from tests.loadtest.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.scripted import ScriptedServer

Played = tuple[ScriptedServer, Result]

KINDS = Cases()
_aliased: list[tuple[bytes, int]] = []
_pinged: set[str] = set()


def _looks(client: str, _: int, packet: Packet) -> bool:
    """Note who sends PINGREQ, and the aliases of one publisher; no connection ends."""
    if isinstance(packet, Pingreq):
        _pinged.add(client)
    elif isinstance(packet, Publish) and client == "p-in-turn-0":
        _aliased.append((packet.topic, packet.topic_alias))
    return False


@pytest.fixture(scope="module")
def kinds() -> Played:
    def prepare(server: ScriptedServer) -> None:
        for number, payload in enumerate((b"on", bytes(64), b"x" * 500)):
            topic = f"old/{number}"
            server.retained[topic] = Message("stranger", topic, payload, number, 0, True)

    limits = {TOPIC_ALIAS_MAXIMUM: 2, SERVER_KEEP_ALIVE: 1}
    script = Script(connack_properties=limits, hangs_up=_looks)
    return KINDS.play(script, prepare, stages=[stage(0.35, "one"), stage(0.3, "two")])


KINDS.add(
    "share",
    sender("p-share", "share/%c", 2),
    reader("s-share", "$share/g/share/#", 3),
    reader("alone", "share/#"),
    fates={4: DROP, 9: DROP, 12: Fate(copies=2)},
)


def test_a_share_gets_each_message_once_whoever_takes_it(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-share", "alone"])
    agrees(server, result, ["s-share"], share="$share/g/share/#")
    receivers = {one.receiver for one in server.books.written("$share/g/share/#")}
    assert receivers == {"s-share-0", "s-share-1", "s-share-2"}
    assert stated(named(result, "s-share").deliveries) == Account(60, 56, 4, duplicates=2)
    pairs = [each for each in result.pairs if each.group == "s-share"]
    assert sorted(each.publisher for each in pairs) == ["p-share-0", "p-share-1"]
    assert len({each.subscriber for each in pairs}) == 1, "its members together are one subscriber"


KINDS.add(
    "overlap",
    sender("p-overlap", "overlap/%c/%n", topics=2),
    reader("s-overlap", "overlap/# overlap/+/0 other/#"),
    fates={4: DROP, 9: Fate(copies=2)},
)
KINDS.add(
    "thrice",
    sender("p-thrice", "thrice/%c"),
    reader("s-thrice", "thrice/# thrice/+"),
    fates={4: Fate(copies=2), 5: DROP},
)


def test_overlapping_filters(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-overlap", "s-overlap"])
    # Number 9 is on overlap/0/1, of which one filter matches: a duplicate. Half of the others come twice.
    assert stated(named(result, "s-overlap").deliveries) == Account(30, 29, 1, duplicates=1, overlapping=14)


def test_more_copies_than_filters_are_duplicates(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-thrice", "s-thrice"])
    assert stated(named(result, "s-thrice").deliveries) == Account(30, 29, 1, overlapping=29, duplicates=2)


for _name, _keys, _more in (("echo", {}, {}), ("deaf", {}, {"no_local": True}), ("old3", {"version": "3.1.1"}, {})):
    KINDS.add(
        _name,
        group(
            _name,
            2,
            publish=[{"topic": f"{_name}/%c", "rate": 100, "messages": 10}],
            subscribe=[{"filter": f"{_name}/#", **_more}],
            **_keys,
        ),
    )


@pytest.mark.parametrize(("name", "expected"), [("echo", 40), ("deaf", 20), ("old3", 40)])
def test_clients_that_hear_themselves_and_clients_that_do_not(kinds: Played, name: str, expected: int) -> None:
    server, result = kinds
    agrees(server, result, [name])
    assert stated(named(result, name).deliveries) == Account(expected, expected)


KINDS.add(
    "retained",
    sender("p-retained", "retained/%n", topics=5, messages=10, retain=True, stages=["one"]),
    reader("s-retained", "retained/#"),
    reader("late", "retained/#", keys={"joins": "two"}),
)


def test_retained_messages_are_counted_apart(kinds: Played) -> None:
    _, result = kinds
    assert stated(named(result, "s-retained").deliveries) == Account(10, 10)
    assert stated(named(result, "late").deliveries) == Account(retained=5)


def test_the_brokers_keep_alive_counts(kinds: Played) -> None:
    """60 seconds in the scenario, one of the broker: PINGREQ after half of it."""
    server, _ = kinds
    assert {each.client_id for each in server.connects if each.version == 5 and each.client_id[:2] == "s-"} <= _pinged


KINDS.add("old", reader("s-old", "old/#"), reader("content", "old/#", retain_handling=2))


def test_retained_messages_of_others_are_no_faults(kinds: Played) -> None:
    server, result = kinds
    assert len(server.books.written("s-old-0")) == 3
    assert stated(named(result, "s-old").deliveries) == Account()
    assert server.books.written("content-0") == []
    assert sum(result.errors.values()) == 3, result.errors


TEMPLATE = '{"id": %c, "group": "%g", "odd": %{c%2}, "share": "100%%", "mark": "%m"}'
KINDS.add(
    "template",
    sender("p-template", "template/%c", 2, payload={"template": TEMPLATE}),
    reader("s-template", "template/#"),
    fates={
        3: Fate(payload=lambda payload: payload.replace(b"100%", b"101%")),
        5: Fate(payload=lambda payload: payload + b" "),
        7: Fate(payload=lambda payload: payload[:-1] + b"]"),
    },
)


def test_payloads_from_a_template(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-template", "s-template"])
    assert stated(named(result, "s-template").deliveries) == Account(60, 60, altered=6)
    messages = [each for each in server.messages if each.topic.startswith("template/")]
    assert len(messages) == 60
    for message in messages:
        said = json.loads(message.payload)
        number = int(message.publisher[-1])
        assert (said["id"], said["group"], said["odd"], said["share"]) == (number, "p-template", number % 2, "100%")
        kind, _, digits = said["mark"].partition(":")
        assert (kind, len(digits)) == ("mark", 32)
        bytes.fromhex(digits)


SIZES = {
    "fixed": ({"size": 16}, {16}),
    "between": ({"between": [16, 19]}, {16, 17, 18, 19}),
    "weighed": ({"sizes": {"100": 3, "5000": 1}}, {100, 5000}),
    "large": ({"size": 300_000}, {300_000}),
}
for _name, (_payload, _sizes) in SIZES.items():
    _count = 3 if _name == "large" else 30
    KINDS.add(_name, sender(f"p-{_name}", _name, payload=_payload, messages=_count), reader(f"s-{_name}", _name))


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_payloads(kinds: Played, name: str) -> None:
    server, result = kinds
    agrees(server, result, [f"p-{name}", f"s-{name}"])
    assert {len(each.payload) for each in server.messages if each.topic == name} == SIZES[name][1]


for _name in ("in-turn", "random", "zipf"):
    _aliases = {"topic_alias": True}
    KINDS.add(
        _name,
        sender(f"p-{_name}", f"{_name}/%n", topics=4, choose=_name, messages=40, rate=200, properties=_aliases),
        reader(f"s-{_name}", f"{_name}/#"),
    )


@pytest.mark.parametrize("name", ["in-turn", "random", "zipf"])
def test_topics_are_chosen_and_aliased(kinds: Played, name: str) -> None:
    server, result = kinds
    agrees(server, result, [f"p-{name}", f"s-{name}"])
    counts = [sum(each.topic == f"{name}/{number}" for each in server.messages) for number in range(4)]
    assert sum(counts) == 40
    if name == "in-turn":
        assert counts == [10] * 4
        topics = [(b"in-turn/0", 1), (b"in-turn/1", 2), (b"in-turn/2", 0), (b"in-turn/3", 0)]
        assert _aliased[:8] == [*topics, (b"", 1), (b"", 2), *topics[2:]]
    elif name == "zipf":
        assert counts[0] == max(counts) > 10


WISHES = {
    "content_type": "text/plain",
    "response_topic": "a/b",
    "correlation_data": "c",
    "text": True,
    "message_expiry": 60,
    "user": {"k": "v"},
}
KINDS.add("wishes", sender("p-wishes", "wishes", properties=WISHES), reader("s-wishes", "wishes"))


def test_properties_arrive(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-wishes", "s-wishes"])
    assert {message.properties for message in server.messages if message.topic == "wishes"} == {
        b"\x01\x01" + b"\x03\0\x0atext/plain" + b"\x08\0\x03a/b" + b"\x09\0\x01c" + b"\x26\0\x01k\0\x01v"
    }


KINDS.add(
    "narrow",
    sender("p-narrow", "narrow", qos=1),
    sender("q-narrow", "narrow", qos=2),
    reader("s-narrow", "narrow", keys={"receive_maximum": 1}, qos=2),
)


def test_a_subscriber_that_takes_one_at_a_time(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-narrow", "q-narrow", "s-narrow"])
    assert stated(named(result, "s-narrow").deliveries) == Account(60, 60)


KINDS.add(
    "churn",
    sender("p-churn", "churn"),
    reader("s-churn", "churn", 2, keys={"churn": {"filter": "c/%c/%n", "rate": 20, "filters": 3}}),
)


def test_churn_beside_a_subscription(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-churn", "s-churn"])
    assert stated(named(result, "s-churn").deliveries) == Account(60, 60)
    churned = [each for who, each in server.subscribed if who == "s-churn-1" and each.startswith("c/1/")]
    assert set(churned) == {"c/1/0", "c/1/1", "c/1/2"}
    left = [each for who, each in server.unsubscribed if who == "s-churn-1"]
    assert left[: len(churned) - 1] == churned[:-1], "each leaves the one before"


def _thaws(delivery: Delivery) -> Fate:
    return DROP if delivery.subscriber == "ice-0" and delivery.message.number > 9 else DELIVER


KINDS.add(
    "ice",
    sender("p-ice", "ice"),
    reader("water", "ice"),
    reader("ice", "ice", keys={"reading": {"freeze_after": 0.1}}),
    fates=_thaws,
)


def test_losses_of_a_frozen_reader_are_its_own(kinds: Played) -> None:
    server, result = kinds
    agrees(server, result, ["p-ice", "ice", "water"])
    assert named(result, "ice").frozen
    assert stated(named(result, "ice").deliveries) == Account(30, 10, 20)
    # That the totals leave it out is in `balanced`.
    assert result.deliveries.lost == sum(each.deliveries.lost for each in result.groups) - 20


MORTAL = Cases()


@pytest.fixture(scope="module")
def mortal() -> Played:
    return MORTAL.play(stages=[stage(0.8)])


for _qos in (0, 1):
    MORTAL.add(
        f"cut{_qos}",
        group(
            f"cut{_qos}",
            3,
            will={"topic": f"cut{_qos}/%c", "qos": _qos},
            cycle={"up": 0.2, "down": 0.05, "spread": 0.5, "goodbye": "cut"},
        ),
        reader(f"s-cut{_qos}", f"cut{_qos}/#", qos=_qos),
        fates=lambda each: DROP if (each.message.publisher[-1], each.message.number) == ("1", 0) else DELIVER,
    )


@pytest.mark.parametrize("name", ["cut0", "cut1"])
def test_wills_of_clients_that_are_cut_off(mortal: Played, name: str) -> None:
    server, result = mortal
    wills = [each for each in server.messages if each.publisher.startswith(name)]
    assert len(wills) >= 3
    assert all(each.will for each in wills)
    assert named(result, name).sent == len(wills), "each will has a mark of its own"
    assert stated(named(result, f"s-{name}").deliveries) == Account(len(wills), len(wills) - 1, 1)
    assert named(result, name).connects == sum(each.client_id.startswith(name) for each in server.connects)


MORTAL.add(
    "polite",
    group("polite", 2, will={"topic": "polite/%c"}, cycle={"up": 0.15, "down": 0.05}),
    reader("s-polite", "polite/#"),
)


def test_no_wills_of_clients_that_say_goodbye(mortal: Played) -> None:
    server, result = mortal
    assert server.disconnected.count("polite-0") > 1
    assert [each for each in server.messages if each.publisher.startswith("polite")] == []
    assert named(result, "polite").sent == 0
    assert named(result, "polite").connections_lost == 0
    assert stated(named(result, "s-polite").deliveries) == Account()


async def test_a_share_in_two_processes_and_messages_that_two_members_get() -> None:
    """The server forgets that the filter is a shared one, for three of each publisher's messages."""

    class Forgetful(ScriptedServer):
        def route(self, message: Message) -> None:
            super().route(message)
            if message.number in (3, 5, 7):
                super().route(message)

    script = Script(fate=lambda each: DROP if each.message.number == 9 else DELIVER, copies_by_filter=False)
    async with Forgetful(script) as server:
        result = await play(
            server,
            sender(clients=2),
            reader(filters="$share/g/t/#", clients=2),
            # One copy for both filters, which the specification leaves to the server.
            sender("other", "o/%c"),
            reader("both", "o/# o/+"),
            processes=2,
        )
        twice = [one.receiver for one in server.books.written("$share/g/t/#") if one.message.number == 3]
    assert set(twice) == {"sub-0", "sub-1"}
    balanced(result)
    assert stated(named(result, "sub").deliveries) == Account(60, 58, 2, duplicates=6)
    found = named(result, "both").deliveries
    assert (found.received, found.lost, found.overlapping + found.duplicates) == (29, 1, 3)


async def test_ramps_and_bursts_and_chance_send_what_they_say() -> None:
    async with ScriptedServer() as server:
        result = await play(
            server,
            sender("even", "t/e", messages=None),
            sender("ramp", "t/r", messages=None, stages=["ramp"]),
            sender("bursts", "t/b", messages=None, arrival="bursts", burst=10),
            sender("chance", "t/c", messages=None, arrival="poisson"),
            sender("shared", "t/s", clients=4, total_rate=100, messages=None),
            reader(),
            stages=[stage(0.4, "flat"), stage(0.4, "ramp", load=0, to=2), stage(0.2, "none", load=0)],
        )
        agrees(server, result)
    due = {each.name: each.sent + each.unsent for each in result.groups}
    # 0.4 s × 100, and 0.4 s of a ramp from 0 to 200, and nothing; a little more where a stage ends late.
    assert due["even"] == pytest.approx(80, abs=8)
    assert due["ramp"] == pytest.approx(40, abs=8)
    assert due["bursts"] == pytest.approx(80, abs=10)
    assert due["shared"] == pytest.approx(80, abs=8)
    assert 40 < due["chance"] < 130
