"""amqtt's client as a driver: it says the same as our own, of brokers that do well and of servers that do not."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from broker.app import Broker
from broker.core.codec import encoder
from broker.core.codec.packets import Connack, Connect, Disconnect, Packet, Suback, Subscribe, SubscriptionRequest
from broker.settings import Settings, Sys
from loadtest.load.checks.counters import Tally
from loadtest.load.checks.deliveries import Streams
from loadtest.load.engine import conductor
from loadtest.load.engine.clients import drivers
from loadtest.load.engine.clients.amqtt_driver import open_amqtt
from loadtest.load.engine.clients.connection import Wire
from loadtest.load.engine.clients.drivers import DriverError
from loadtest.load.engine.clients.sending import Session
from loadtest.load.engine.conductor import RunError
from loadtest.load.engine.job import Job, Nobody, Target
from loadtest.load.report.result import Result
from loadtest.load.scenario.schema import Scenario
from tests.loadtest.load.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.load.scripted import ScriptedServer

DRIVERS = ("canopy", "amqtt")
SETTINGS = Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=0))


def scenario(*groups: dict[str, Any], seconds: float = 0.6, quiet: float = 0.4) -> Scenario:
    named = [{"client_id": f"{each['name']}-%c", "reconnect_delay": 0.05, **each} for each in groups]
    stages = [{"name": "go", "seconds": seconds}]
    return Scenario.model_validate({"name": "both", "quiet": quiet, "drain": 8, "stages": stages, "groups": named})


def publisher(name: str, topic: str, clients: int = 1, messages: int = 30, **more: Any) -> dict[str, Any]:
    publish = {"topic": topic, "rate": 75, "messages": messages, **more.pop("publish", {})}
    return {"name": name, "clients": clients, "publish": [publish], **more}


def subscriber(name: str, topic_filter: str, clients: int = 1, qos: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "clients": clients, "subscribe": [{"filter": topic_filter, "qos": qos}], **more}


async def play(driver: str, port: int, what: Scenario) -> Result:
    return await conductor.play(Job(what, "", [Target("127.0.0.1", port)], driver=driver), Nobody())


def said(result: Result) -> dict[str, Any]:
    """What both drivers have to agree on."""
    return {
        each.name: (each.sent, each.unsent, each.connects, each.connections_lost, asdict(each.deliveries))
        for each in result.groups
    }


@pytest.mark.long
async def test_both_drivers_report_the_same_of_a_broker() -> None:
    groups = []
    for qos in (0, 1, 2):
        groups.append(publisher(f"pub-{qos}", f"t{qos}/%c/%n", 2, publish={"qos": qos, "topics": 2}))
        groups.append(subscriber(f"sub-{qos}", f"t{qos}/#", 2, qos))
    what = scenario(*groups)
    results = {}
    for driver in DRIVERS:
        async with Broker(SETTINGS) as broker:
            results[driver] = await play(driver, broker.ports[0], what)
    assert said(results["canopy"]) == said(results["amqtt"])
    for driver, result in results.items():
        assert result.driver == driver
        assert ("MQTT" in result.environment) == (driver == "amqtt"), "5.0 was asked for"
        assert result.errors == {}
        assert result.connect.count == 12
        for qos in (0, 1, 2):
            [group] = [each for each in result.groups if each.name == f"sub-{qos}"]
            assert (group.deliveries.expected, group.deliveries.received, group.deliveries.lost) == (120, 120, 0)
            assert group.latency.count == 120


FAULTS = {
    3: DROP,
    7: Fate(copies=2),
    10: Fate(hold=3),
    13: Fate(payload=lambda payload: payload[:-1] + b"!"),
    16: Fate(topic="q/elsewhere"),
    22: DROP,
    29: DROP,
}


@pytest.mark.long
async def test_both_drivers_report_the_same_faults() -> None:
    def fate(delivery: Delivery) -> Fate:
        return FAULTS.get(delivery.message.number, DELIVER)

    groups = []
    for qos in (0, 1, 2):
        groups.append(publisher(f"pub-{qos}", f"q{qos}", publish={"qos": qos}))
        groups.append(subscriber(f"sub-{qos}", f"q{qos}", 2, qos))
    what = scenario(*groups)
    results = {}
    for driver in DRIVERS:
        async with ScriptedServer(Script(fate=fate)) as server:
            results[driver] = await play(driver, server.port, what)
            assert server.violations == []
    assert said(results["canopy"]) == said(results["amqtt"])
    total = results["amqtt"].deliveries
    assert (total.expected, total.lost, total.duplicates, total.altered) == (180, 18, 6, 12)
    assert total.reordered > 0


@pytest.mark.long
async def test_wills_cuts_and_reconnections() -> None:
    """The will's payload is binary, which amqtt takes for text.

    The times are those of a machine that may stand still for a second.
    """
    cycle = {"up": 0.25, "down": 0.1, "goodbye": "cut"}
    mortal = publisher("mortal", "t/%c", 2, 10, will={"topic": "w/%c", "qos": 1}, cycle=cycle)
    what = scenario(mortal, subscriber("sub", "#", 1, 1), seconds=1.6, quiet=1.5)
    async with Broker(SETTINGS) as broker:
        result = await play("amqtt", broker.ports[0], what)
    found = {each.name: each for each in result.groups}
    assert found["mortal"].connects > 2
    assert found["mortal"].sent > 20, "wills count as sent"
    deliveries = found["sub"].deliveries
    assert deliveries.received == found["mortal"].sent - deliveries.unconfirmed
    assert (deliveries.lost, deliveries.altered, deliveries.duplicates) == (0, 0, 0)
    assert result.errors == {}


async def test_names_and_kept_sessions() -> None:
    """The second connection finds its subscription and does not subscribe again."""
    names = {"user_name": "u:@/é", "password": "p ä", "keep_alive": 7, "client_id": "s-%c"}
    kept = {"version": "3.1.1", "clean_start": False, "cycle": {"up": 0.2, "down": 0.05}}
    async with ScriptedServer() as server:
        await play("amqtt", server.port, scenario(subscriber("s", "t/#", 1, 1, **names, **kept)))
    seen = [each for each in server.connects if each.client_id == "s-0"]
    assert len(seen) > 1
    for each in seen:
        assert (each.version, each.clean_start, each.keep_alive) == (4, False, 7)
        assert (each.user_name, each.password) == ("u:@/é", "p ä".encode())
    assert [each for each in server.subscribed if each[0] == "s-0"] == [("s-0", "t/#")]
    assert server.disconnected.count("s-0") == len(seen)


async def test_a_connection_that_breaks_is_counted_and_comes_back() -> None:
    def hangs_up(client: str, connection: int, packet: object) -> bool:
        return client == "pub-0" and connection == 0 and not isinstance(packet, Connect)

    async with ScriptedServer(Script(hangs_up=hangs_up)) as server:
        result = await play("amqtt", server.port, scenario(publisher("pub", "t"), subscriber("sub", "t")))
    found = {each.name: each for each in result.groups}
    assert (found["pub"].connections_lost, found["pub"].connects) == (1, 2)
    assert result.errors == {"the broker closed the connection": 1}
    assert result.deliveries.lost == 0
    assert result.deliveries.received + result.deliveries.unconfirmed == 30


async def test_a_refusal_says_what_our_own_client_says() -> None:
    async with ScriptedServer(Script(connack=lambda _, __: 5)) as server:
        with pytest.raises(RunError, match="refused: not authorized"):
            await play("amqtt", server.port, scenario(publisher("pub", "t", reconnect=False)))


async def test_nobody_listens() -> None:
    async with ScriptedServer() as server:
        port = server.port
    with pytest.raises(
        RunError, match=f"mqtt://127.0.0.1:{port}: no client could connect: CONNECT: connection refused"
    ):
        await play("amqtt", port, scenario(publisher("pub", "t", reconnect=False)))


@pytest.mark.parametrize("end", ["close", "abort", "server"])
async def test_every_address_is_tried_and_nothing_is_left(end: str) -> None:
    """The link alone: what it gives the wire, and its tasks when it is over."""
    before = asyncio.all_tasks()
    came: list[Packet] = []
    heard, closed = asyncio.Event(), asyncio.Event()

    def hear(packet: Packet) -> None:
        came.append(packet)
        heard.set()

    wire = Wire(4, None, Streams(7, lambda _: b""), Tally(), Session(False), hear, lambda _: closed.set())
    async with ScriptedServer() as nobody:
        pass
    async with ScriptedServer() as server:
        addresses = [(socket.AF_INET, ("127.0.0.1", port)) for port in (nobody.port, server.port)]
        pool: Any = SimpleNamespace(addresses=lambda _: addresses, gate=asyncio.Semaphore(1), error=print)
        await open_amqtt(pool, pool, 0, wire)
        wire.write(encoder.encode(Connect("c", 4, True, 60), 4))
        await heard.wait()
        assert came == [Connack(False, 0)]
        heard.clear()
        wire.write(encoder.encode(Subscribe(9, [SubscriptionRequest("t", 1), SubscriptionRequest("u/#", 2)]), 4))
        await heard.wait()
        assert came[1:] == [Suback(9, [1, 2])]
        assert server.subscribed == [("c", "t"), ("c", "u/#")]
        assert wire.transport is not None
        if end == "server":
            [peer] = server.peers
            peer.transport.abort()
        elif end == "abort":
            wire.transport.abort()
        else:
            wire.write(encoder.encode(Disconnect(), 4))
            wire.transport.close()
        await closed.wait()
        assert server.disconnected == (["c"] if end == "close" else [])
    # Whatever is left has nothing more to wait for.
    await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
    assert wire.transport is None


# -- before a run ------------------------------------------------------------------------------------------------------


def test_what_uses_nothing_of_5_is_played_as_3() -> None:
    what = scenario(publisher("pub", "t"), subscriber("sub", "t"))
    assert {group.version for group in what.groups} == {"5.0"}
    assert {group.version for group in drivers.fitted("amqtt", what).groups} == {"3.1.1"}
    assert drivers.fitted("canopy", what) is what


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"session_expiry": 5}, "groups.s.session_expiry: exists in MQTT 5.0 only, amqtt speaks 3.1.1"),
        ({"reading": {"rate": 5}}, "groups.s.reading: amqtt reads as fast as it can"),
    ],
)
async def test_what_amqtt_cannot_play_is_a_line_before_anything_starts(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(RunError) as caught:
        await play("amqtt", 1, scenario(subscriber("s", "t", **keys)))
    assert str(caught.value) == f"{line}: use --driver canopy"


async def test_an_unknown_driver() -> None:
    with pytest.raises(RunError, match="there is no driver 'paho': canopy, amqtt"):
        await play("paho", 1, scenario(subscriber("s", "t")))


def test_without_amqtt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "find_spec", lambda _: None)
    with pytest.raises(DriverError, match=r"^amqtt is not installed: pip install amqtt$"):
        drivers.fitted("amqtt", scenario(subscriber("s", "t")))
    monkeypatch.setitem(sys.modules, "loadtest.load.engine.clients.amqtt_driver", None)
    with pytest.raises(DriverError, match=r"^amqtt is not installed: pip install amqtt"):
        drivers.opener("amqtt")


async def test_amqtt_is_not_sent_to_tls_or_a_websocket() -> None:
    job = Job(scenario(subscriber("s", "t")), "", [Target.parse("wss://127.0.0.1:1")], driver="amqtt")
    with pytest.raises(RunError, match=r"wss://127.0.0.1:1/mqtt: amqtt plays on mqtt:// alone here"):
        await conductor.play(job, Nobody())
