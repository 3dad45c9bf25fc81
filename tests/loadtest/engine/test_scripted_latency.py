"""Latency counts from the moment at which a message was meant to be sent, and loops are closed where they say so.

Nothing here depends on how fast the machine is: a slow one makes latencies longer, and what is asserted are the bounds
below which no clock can have come, and above which the whole run did not take.
"""

from __future__ import annotations

import time

import pytest

from canopy_load.report.result import Latency, Result
from canopy_mqtt.core.codec.properties import RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM
from tests.loadtest.account import Account
from tests.loadtest.playing import Cases, agrees, balanced, named, play, reader, sender, stage, stated
from tests.loadtest.script import DROP, Fate, Script
from tests.loadtest.scripted import ScriptedServer

Played = tuple[ScriptedServer, Result]

ROUNDED = 0.998
"""Times keep three significant digits."""


def above(latency: Latency, seconds: float) -> int:
    """How many deliveries took so long or longer."""
    return sum(count for value, count in latency.counts.items() if value >= seconds * 1e6 * ROUNDED)


STEADY = Cases()


@pytest.fixture(scope="module")
def steady() -> Played:
    # 22 messages of a loop take 0.06 s at least, and much longer where other programs have the cores.
    return STEADY.play(Script(ack_delay=0.01, connack_properties={TOPIC_ALIAS_MAXIMUM: 1}), stages=[stage(1.5)])


STEADY.add("delay", sender("p-delay", "delay", qos=1), reader("s-delay", "delay"), fates=lambda _: Fate(delay=0.2))
STEADY.add("none", sender("p-none", "none"), reader("s-none", "none"))


def test_a_constant_delay_is_the_latency(steady: Played) -> None:
    server, result = steady
    agrees(server, result, ["p-delay", "s-delay", "p-none", "s-none"])
    found, without = named(result, "s-delay").latency, named(result, "s-none").latency
    assert found.count == without.count == 30
    assert found.min is not None
    assert found.p50 is not None
    assert found.max is not None
    assert found.mean is not None
    assert 200_000 * ROUNDED <= found.min <= found.p50 <= found.max
    assert found.min <= found.mean <= found.max <= time.monotonic() * 1e6
    assert above(found, 0.2) == 30
    assert named(result, "p-delay").latency == Latency()


def test_the_whole_has_the_latencies_of_all_groups(steady: Played) -> None:
    _, result = steady
    each = [one.latency for one in result.groups]
    assert result.latency.count == sum(one.count for one in each) == result.deliveries.received
    for seconds in (0.01, 0.2):
        assert above(result.latency, seconds) == sum(above(one, seconds) for one in each)
    assert sum(sum(second.latencies.values()) for second in result.seconds) == result.latency.count


for _qos in (1, 2):
    STEADY.add(
        f"loop{_qos}",
        sender(f"p-loop{_qos}", f"loop{_qos}", in_flight=4, messages=22, qos=_qos),
        reader(f"s-loop{_qos}", f"loop{_qos}", qos=_qos),
    )
FANS = {"loop0": (1, 1), "fan0": (3, 1), "topics0": (1, 4), "both0": (2, 4)}
"""Subscribers that each message has, and topics."""
for _name, (_fan, _topics) in FANS.items():
    _alias = {"topic_alias": _topics == 1}
    STEADY.add(
        _name,
        sender(f"p-{_name}", f"{_name}/%n", in_flight=4, messages=22, topics=_topics, properties=_alias),
        reader(f"s-{_name}", f"{_name}/#", _fan),
        fates=lambda _: Fate(delay=0.01),
    )


@pytest.mark.parametrize("qos", [1, 2])
def test_a_closed_loop_keeps_its_window_full_and_no_fuller(steady: Played, qos: int) -> None:
    server, result = steady
    agrees(server, result, [f"p-loop{qos}", f"s-loop{qos}"])
    assert server.most_in_flight[f"p-loop{qos}-0"] == 4
    assert stated(named(result, f"s-loop{qos}").deliveries) == Account(22, 22)


@pytest.mark.parametrize("name", FANS)
def test_a_closed_loop_of_quality_0_waits_for_its_deliveries(steady: Played, name: str) -> None:
    server, result = steady
    agrees(server, result, [f"p-{name}", f"s-{name}"])
    fan, _ = FANS[name]
    assert server.most_under_way[f"p-{name}-0"] == 4 * fan
    assert stated(named(result, f"s-{name}").deliveries) == Account(22 * fan, 22 * fan)
    assert above(named(result, f"s-{name}").latency, 0.01) == 22 * fan
    assert not result.closed_loop, "there are open ones beside it"


async def test_a_loss_does_not_end_a_closed_loop() -> None:
    script = Script(fate=lambda each: DROP if each.message.number % 16 == 7 else Fate(delay=0.005))
    async with ScriptedServer(script) as server:
        result = await play(server, sender(in_flight=4, messages=None), reader())
        agrees(server, result)
    assert result.closed_loop
    assert result.deliveries.lost >= 2
    assert result.deliveries.received > 30


async def test_a_warm_up_is_not_measured() -> None:
    """Its messages are sent and judged; neither the rates nor the latencies know them, even when they come late."""
    script = Script(fate=lambda each: Fate(delay=0.25 if each.message.topic == "t/warm" else 0.01))
    async with ScriptedServer(script) as server:
        result = await play(
            server,
            sender("warm", "t/warm", stages=["warm"], messages=10),
            sender("pub", "t/hot", stages=["go"], messages=20),
            sender("cool", "t/cool", stages=["cool"], messages=5),
            reader(),
            stages=[stage(0.2, "warm", measured=False), stage(0.4, "go"), stage(0.2, "cool", measured=False)],
        )
        agrees(server, result)
    assert [(each["name"], each["measured"]) for each in result.stages] == [
        ("warm", False),
        ("go", True),
        ("cool", False),
    ]
    assert [each.sent for each in result.groups] == [10, 20, 5, 0]
    assert result.sent == 20
    assert result.deliveries.received == 35
    assert result.measured_seconds == pytest.approx(0.4, abs=0.001)
    assert result.send_rate == pytest.approx(20 / result.measured_seconds)
    assert result.latency.count == 20
    assert named(result, "sub").latency.count == 20


async def test_a_stall_is_charged_to_every_message_that_was_due_in_it() -> None:
    """A generator that waited with the server would see one slow message where there are two hundred."""
    script = Script(stall=lambda message: 1.0 if message.number == 30 else 0.0)
    async with ScriptedServer(script) as server:
        result = await play(server, sender(messages=None, rate=200), reader(), stages=[stage(1.3)])
        agrees(server, result)
    due = named(result, "pub").sent + named(result, "pub").unsent
    assert 259 <= due <= 261, "1.3 seconds at 200 a second"
    charged(result.latency, 200)


def charged(latency: Latency, rate: int) -> None:
    """A second's stall: of the messages that were due in it, the first waited a second, the last hardly at all."""
    for seconds in (0.25, 0.5, 0.75):
        assert above(latency, seconds) >= (1 - seconds) * rate - 2, seconds
    assert latency.max is not None
    assert latency.max >= 990_000


async def test_acknowledgements_that_come_slowly_or_never_are_charged_too() -> None:
    """One message may be under way, and its acknowledgement takes 20 ms: 50 a second where 100 are due."""
    script = Script(
        ack_delay=0.02,
        connack_properties={RECEIVE_MAXIMUM: 1},
        puback=lambda message: 0 if message.publisher == "slow-0" else None,
    )
    async with ScriptedServer(script) as server:
        result = await play(
            server,
            sender("slow", "slow", messages=None, qos=1),
            sender("never", "never", messages=None, qos=1),
            reader(filters="slow"),
            reader("waits", "never"),
            drain=1.0,
        )
        balanced(result)
        assert server.violations == []
    slow, never = named(result, "slow"), named(result, "never")
    assert server.most_in_flight == {"slow-0": 1, "never-0": 1}
    for each in (slow, never):
        assert 49 <= each.sent + each.unsent <= 51
    assert never.sent == 1
    assert slow.sent <= 26
    assert stated(named(result, "waits").deliveries) == Account(1, 1)
    assert sum(second.offered for second in result.seconds) == sum(each.sent + each.unsent for each in (slow, never))
    # The nth could not go before n acknowledgements had come: n × 20 ms, and was due after n × 10 ms.
    for number in range(5, slow.sent, 5):
        assert above(named(result, "sub").latency, number * 0.01) >= slow.sent - number - 1


RETURNING = {"cycle": {"up": 0.05, "down": 0.15, "spread": 0}}


@pytest.mark.parametrize("seconds", [1.3, 0.5])
async def test_a_client_that_the_broker_keeps_waiting_for_its_return(seconds: float) -> None:
    """It returns after 0.2 s, in the middle of a stall, and is answered when that is over.

    What is due to be sent once it should be back is due. If the stages are over by then, it stays from then on.
    """
    script = Script(stall=lambda message: 1.0 if message.publisher == "pub-0" and message.number == 10 else 0.0)
    async with ScriptedServer(script) as server:
        result = await play(
            server,
            sender(),
            reader(),
            sender("back", "back", keys=RETURNING, messages=None),
            reader("hears", "back"),
            stages=[stage(seconds)],
            quiet=1.0,
        )
    assert server.disconnected.count("back-0") >= 2
    if seconds < 1:
        assert (server.accepted["back-0"], server.disconnected.count("back-0")) == (1, 2)
    else:
        assert above(named(result, "hears").latency, 0.3) >= 20, "60 are due in the first 0.6 of 0.9 seconds"
