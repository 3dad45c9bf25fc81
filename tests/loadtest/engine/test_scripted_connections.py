"""Connections that are refused, lost, or never answered: nothing is guessed, and what went wrong is said in words."""

from __future__ import annotations

import asyncio

import pytest

from canopy_load.engine import conductor
from canopy_load.engine.job import Audience
from canopy_load.report.result import Result, Second
from canopy_mqtt.core.codec.packets import Connect, Packet, Publish, Subscribe, SubscriptionRequest
from canopy_mqtt.core.codec.properties import TOPIC_ALIAS_MAXIMUM
from tests.loadtest.account import Account, Message
from tests.loadtest.peer import Session
from tests.loadtest.playing import (
    Cases,
    agrees,
    balanced,
    group,
    job,
    named,
    play,
    reader,
    scenario,
    sender,
    stage,
    stated,
)
from tests.loadtest.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.scripted import ScriptedServer

Played = tuple[ScriptedServer, Result]

REFUSALS = Cases()


def _connack(connect: Connect, attempt: int) -> int | None:
    codes = {"never3-1": 5, "never5-1": 0x87}
    return 0x88 if connect.client_id in ("once-1", "mute-0") and attempt == 0 else codes.get(connect.client_id, 0)


_mute: list[Connect] = []
_short: list[SubscriptionRequest] = []


def _hangs_up_once(client: str, _: int, packet: Packet) -> bool:
    """The first CONNECT of one client gets no answer."""
    if client != "mute-0" or not isinstance(packet, Connect):
        return False
    _mute.append(packet)
    return len(_mute) == 1


def _suback(client: str, request: SubscriptionRequest) -> int | None:
    if request.topic_filter == "short/1" and not _short:
        _short.append(request)
        return None
    return 0x87 if client == "barred-1" else 0x80 if request.topic_filter == "half/no" else request.qos


def _puback(message: Message) -> int | None:
    if message.topic.startswith("refused"):
        return {3: 0x97, 4: 0x97, 5: 0x10}.get(message.number, 0)
    return None if message.topic == "ignored" and message.number in (5, 6, 7) else 0


@pytest.fixture(scope="module")
def refusals() -> Played:
    _mute.clear()
    _short.clear()
    return REFUSALS.play(Script(connack=_connack, suback=_suback, puback=_puback, hangs_up=_hangs_up_once), drain=1.5)


REFUSALS.add("never3", sender("p-never3", "never3"), reader("never3", "never3", 2, {"version": "3.1.1"}))
REFUSALS.add("never5", sender("p-never5", "never5"), reader("never5", "never5", 2))
REFUSALS.add("once", sender("p-once", "once"), reader("once", "once", 2))


@pytest.mark.parametrize("name", ["never3", "never5"])
def test_a_client_that_is_refused_for_good(refusals: Played, name: str) -> None:
    server, result = refusals
    group = named(result, name)
    attempts = sum(each.client_id == f"{name}-1" for each in server.connects)
    # The answer to the last one may be on its way when the run ends.
    failed = group.connects_failed
    assert group.connects == 1
    assert 0 < failed <= attempts <= failed + 1
    assert stated(group.deliveries) == Account(30, 30), "nothing is due to who never came"
    assert sum(count for text, count in result.errors.items() if "not authorized" in text.lower()) >= failed


def test_a_client_that_is_refused_once(refusals: Played) -> None:
    server, result = refusals
    group = named(result, "once")
    assert (group.connects, group.connects_failed) == (2, 1)
    agrees(server, result, ["once"])
    assert stated(group.deliveries) == Account(60, 60), "it came before the stages began"
    assert any("server unavailable" in text.lower() for text in result.errors), result.errors


REFUSALS.add("barred", sender("p-barred", "barred"), reader("barred", "barred", 3))
REFUSALS.add("half", sender("p-half", "half/%n", topics=2), reader("half", "half/# half/no"))
REFUSALS.add("half", sender("q-half", "half/no"), reader("whole", "half/no half/none"))


def test_a_subscription_that_is_refused(refusals: Played) -> None:
    server, result = refusals
    agrees(server, result, ["p-barred", "barred", "half", "whole"])
    assert named(result, "barred").subscribes_refused == 1
    assert stated(named(result, "barred").deliveries) == Account(60, 60)
    assert named(result, "half").subscribes_refused == named(result, "whole").subscribes_refused == 1
    assert stated(named(result, "half").deliveries) == Account(60, 60)
    assert stated(named(result, "whole").deliveries) == Account()
    assert sum(count for text, count in result.errors.items() if "subscribe" in text.lower()) == 3


REFUSALS.add("short", group("short", subscribe=[{"filter": "short/%n", "filters": 2}]))


def test_a_suback_has_to_answer_every_filter(refusals: Played) -> None:
    _, result = refusals
    assert named(result, "short").connections_lost == 1
    assert result.errors["the broker broke the protocol: a SUBACK with 1 reason codes for 2 filters"] == 1


REFUSALS.add("mute", group("mute", will={"topic": "mute"}), reader("s-mute", "mute"))


def test_the_will_of_a_connection_that_got_no_answer_may_have_been_published(refusals: Played) -> None:
    """One who was refused has no will: the second CONNECT got a reason code, the third one was accepted."""
    _, result = refusals
    unanswered, refused, accepted = [connect.will.payload for connect in _mute if connect.will is not None]
    assert unanswered != refused, "another number, or the second will would be a copy of the first"
    assert refused[-8:] == accepted[-8:]
    assert named(result, "mute").sent == 1
    found = named(result, "s-mute").deliveries
    assert (found.expected, found.unconfirmed) == (1, 1)


REFUSALS.add(
    "refused",
    sender("p-refused", "refused/1", qos=1),
    sender("q-refused", "refused/2", qos=2),
    reader("s-refused", "refused/#"),
)


def test_messages_that_are_refused(refusals: Played) -> None:
    _, result = refusals
    assert (named(result, "p-refused").refused, named(result, "q-refused").refused) == (2, 2)
    found = named(result, "s-refused").deliveries
    assert (found.received, found.lost) == (56, 0)
    assert sum(count for text, count in result.errors.items() if text.startswith("PUBLISH: refused: ")) == 4


REFUSALS.add(
    "ignored",
    sender("p-ignored", "ignored", qos=1),
    reader("s-ignored", "ignored"),
    fates=dict.fromkeys((6, 7, 9), DROP),
)


def test_messages_without_an_answer_are_unconfirmed_and_not_lost(refusals: Played) -> None:
    _, result = refusals
    found = named(result, "s-ignored").deliveries
    assert (found.expected, found.received, found.lost, found.unconfirmed) == (30, 27, 1, 2)


BREAKS = Cases()
_broken: dict[str, int] = {}


def _hangs_up(client: str, connection: int, packet: Packet) -> bool:
    """The first connection of some ends where their 13th PUBLISH comes in; every one of a storm's at the fifth."""
    if client == "unheard-0" and isinstance(packet, Subscribe):
        return connection == 0
    if not isinstance(packet, Publish) or not client.startswith(("pub-", "storm-", "gone-0")):
        return False
    key = f"{client} {connection}"
    _broken[key] = _broken.get(key, 0) + 1
    return _broken[key] == 5 if client.startswith("storm-") else connection == 0 and _broken[key] > 12


@pytest.fixture(scope="module")
def breaks() -> Played:
    _broken.clear()

    def prepare(server: ScriptedServer) -> None:
        server.sessions["early-0"] = Session("early-0", 5, keeps=True)

    return BREAKS.play(
        Script(
            hangs_up=_hangs_up,
            resumes=lambda client: client == "pub-stale1-0",
            connack_properties={TOPIC_ALIAS_MAXIMUM: 1},
        ),
        prepare,
        stages=[stage(0.7)],
    )


BROKEN = [f"{kind}{qos}" for kind in ("clean", "lasting") for qos in (0, 1, 2)] + ["stale1"]
for _name in BROKEN:
    _qos = int(_name[-1])
    _lasting = _name.startswith("lasting")
    _keys = {"clean_start": not _lasting, "session_expiry": 60 if _lasting else 0}
    BREAKS.add(
        _name,
        # What is sent again must not refer to an alias of the connection before: the server would complain.
        sender(f"pub-{_name}", _name, 1, _keys, qos=_qos, messages=40, properties={"topic_alias": True}),
        reader(f"s-{_name}", _name, qos=_qos),
        fates={4: DROP},
    )


@pytest.mark.parametrize("name", BROKEN)
def test_a_publisher_that_loses_its_connection(breaks: Played, name: str) -> None:
    server, result = breaks
    group, found = named(result, f"pub-{name}"), named(result, f"s-{name}").deliveries
    books = server.books.account(None, [f"s-{name}-0"])
    assert (group.connects, group.connections_lost, group.sent) == (2, 1, 40)
    assert any("connection" in text.lower() for text in result.errors), result.errors
    assert (found.expected, found.received) == (40, books.received)
    assert (found.reordered, found.altered, found.unjudged) == (0, 0, 0)
    if name.endswith("0"):
        assert found.lost <= 1
        return
    assert found.lost == 1, "it had an answer for number 4"
    assert found.duplicates == books.duplicates
    if name.startswith("lasting"):
        assert found.unconfirmed == 0
        assert len({each.identity for each in server.messages if each.topic == name}) == 40
    if name == "stale1":
        assert result.errors["the broker broke the protocol: it resumed a session that was to be a new one"] == 2


BREAKS.add(
    "gone",
    sender("gone", "gone/%c", 2, {"reconnect": False}, qos=1),
    reader("s-gone", "gone/#"),
)
BREAKS.add("storm", sender("storm", "storm/%c", 3, qos=1, messages=None), reader("s-storm", "storm/#"))


def test_who_does_not_come_back_stays_away(breaks: Played) -> None:
    server, result = breaks
    assert len([each for each in server.connects if each.client_id == "gone-0"]) == 1
    group, found = named(result, "gone"), named(result, "s-gone").deliveries
    assert (group.connects, group.connections_lost) == (2, 1)
    assert (found.received, found.lost) == (server.books.account(None, ["s-gone-0"]).received, 0)


def test_a_storm_of_connections_that_end(breaks: Played) -> None:
    server, result = breaks
    group, found = named(result, "storm"), named(result, "s-storm").deliveries
    assert group.connections_lost > 6
    assert group.connects == sum(each.client_id.startswith("storm-") for each in server.connects)
    assert (found.received, found.lost) == (server.books.account(None, ["s-storm-0"]).received, 0)


LASTING = {"clean_start": False, "session_expiry": 60}
for _name in ("early", "unheard"):
    BREAKS.add(_name, sender(f"p-{_name}", _name), reader(_name, _name, keys=LASTING))


@pytest.mark.parametrize(("name", "lost"), [("early", 0), ("unheard", 1)])
def test_a_session_without_this_runs_subscriptions_gets_them(breaks: Played, name: str, lost: int) -> None:
    """It is an earlier run's, or has begun on a connection that ended before the SUBACK."""
    _, result = breaks
    assert named(result, name).connections_lost == lost
    assert stated(named(result, name).deliveries) == Account(30, 30)


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscriber_that_loses_its_connection(qos: int) -> None:
    """While it was away nobody can say what was due; before and after, everybody can."""

    def fate(delivery: Delivery) -> Fate:
        if delivery.message.number == 40 and delivery.subscriber != "sub-1":
            peer = server.sessions[delivery.subscriber].peer
            assert peer is not None
            peer.transport.close()
        return DROP if delivery.message.number in (5, 95) else DELIVER

    async with ScriptedServer(Script(fate=fate)) as server:
        result = await play(
            server,
            sender(messages=100, qos=qos),
            reader(clients=2, qos=qos),
            reader("lasting", qos=qos, keys=LASTING),
            stages=[stage(1.1)],
        )
        balanced(result)
        assert server.violations == []
    assert server.subscribed.count(("lasting-0", "t/#")) == 1, "its session has the subscription"
    group, pairs = named(result, "sub"), {each.subscriber: each.deliveries for each in result.pairs}
    assert (group.connects, group.connections_lost) == (3, 1)
    assert stated(pairs["sub-1"]) == Account(100, 98, 2)
    away = pairs["sub-0"]
    assert away.lost == 2, "5 and 95; for 40 it was on its way out"
    assert away.unjudged > 0
    assert away.expected + away.unjudged == 100
    assert away.received <= server.books.account(None, ["sub-0"]).received
    assert away.received >= 50
    lasting = pairs["lasting-0"]
    assert (lasting.duplicates, lasting.reordered, lasting.altered) == (0, 0, 0)
    assert lasting.lost == 2, "with QoS 1 everything but 5 and 95 waits for it; with QoS 0 the rest is unjudged"
    assert lasting.expected + lasting.unjudged == 100
    if qos:
        assert (lasting.received, lasting.unjudged) == (98, 0)
        assert lasting.redelivered <= server.books.account(None, ["lasting-0"]).redelivered


async def test_a_client_that_is_not_answered_does_not_hold_up_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "NO_PROGRESS", 0.5)

    def connack(connect: Connect, _: int) -> int | None:
        return None if connect.client_id == "sub-1" else 0

    async with ScriptedServer(Script(connack=connack)) as server:
        result = await play(server, sender(), reader(clients=2))
        balanced(result)
    group = named(result, "sub")
    assert stated(result.deliveries) == Account(30, 30)
    assert (group.connects, group.connects_failed) == (1, 1)
    assert sum(count for text, count in result.errors.items() if "connack" in text.lower()) == 1, result.errors


async def test_nobody_listens() -> None:
    """A target that refuses every connection: one clear line."""
    async with ScriptedServer() as server:
        pass
    with pytest.raises(conductor.RunError, match=f"mqtt://127.0.0.1:{server.port}: .*connection refused"):
        await play(server, sender(), reader())


class Impatient(Audience):
    """Interrupts a run after its first second."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()

    def second(self, second: Second) -> None:
        if second.stage == "go":
            self.stop.set()


async def test_an_interrupted_run_has_a_result() -> None:
    script = Script(fate=lambda each: DROP if each.message.number == 7 else Fate(delay=0.05))
    audience = Impatient()
    async with ScriptedServer(script) as server:
        what = scenario(sender(messages=None), reader(), stages=[stage(600), stage(600, "later")])
        result = await asyncio.wait_for(conductor.play(job(server, what), audience, stop=audience.stop), 60)
        assert server.violations == []
        balanced(result)
        agrees(server, result)
    assert result.interrupted
    assert result.deliveries.lost == 1
    assert result.deliveries.received > 60
    assert result.measured_seconds < 60
    assert result.latency.count == result.deliveries.received
