"""The lines about clients, and how much of the log a hostile one can cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from functools import cache
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core import causes
from canopy_mqtt.net.connections.admission import MAX_ADDRESSES
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_log import ADDRESS_BYTES, INTERVAL, REFILL, ConnectionLog
from canopy_mqtt.settings import Log
from tests.e2e import wire
from tests.support.logged import connection

Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def told() -> Iterator[Lines]:
    with capture_logs() as entries:
        yield entries


def about(told: Lines, client_id: str) -> Lines:
    return [line for line in told if line.get("client_id") == client_id]


def settings(**sections: Any) -> Settings:
    base = {"listen": ["mqtt://127.0.0.1:0"], "sys": {"interval": 0.0}, "shutdown": {"flush_timeout": 0.0}}
    return Settings.model_validate({**base, **sections})


Dial = Callable[..., Awaitable[wire.Peer]]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """Open a connection and send these packets. What is still open at the end is cut."""
    peers: list[wire.Peer] = []

    async def open_one(broker: Broker, *packets: bytes, version: int = 5) -> wire.Peer:
        peers.append(await wire.Peer.open("127.0.0.1", broker.ports[0], version))
        await peers[-1].send(*packets)
        return peers[-1]

    yield open_one
    for peer in peers:
        peer.abort()
    await asyncio.sleep(0)


async def gone(broker: Broker) -> None:
    """Until the broker has no connection any more."""
    while broker.connections:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_client_is_told_of_with_its_terms_and_at_its_end_with_what_it_did(told: Lines, dial: Dial) -> None:
    async with Broker(settings()) as broker:
        will = wire.Will("w", b"gone")
        terms = wire.connect(
            "thing", user="ann", clean=False, keep_alive=30, props=[(wire.SESSION_EXPIRY, 60)], will=will
        )
        peer = await dial(broker, terms, wire.subscribe(1, [("t", 0)]), *[wire.publish("t", b"x")] * 3)
        for _ in range(3):
            await peer.wait_for(wire.PUBLISH)
        await peer.send(wire.disconnect())
        await gone(broker)
        again = await dial(broker, wire.connect("thing", user="ann", version=4, clean=False), version=4)
        await again.expect(wire.CONNACK)
        await again.send(wire.disconnect(version=4))
        await gone(broker)
    first, end, second, _ = [line for line in about(told, "thing") if "address" in line]
    assert (first["event"], first["log_level"]) == ("client connected", "info")
    assert {key: first[key] for key in ("user_name", "version", "keep_alive", "clean_start", "session_present")} == {
        "user_name": "ann",
        "version": "5.0",
        "keep_alive": 30,
        "clean_start": False,
        "session_present": False,
    }
    assert (first["session_expiry"], first["will"]) == (60, True)
    assert (end["event"], end["cause"], end["log_level"]) == ("client disconnected", "client-disconnect", "info")
    assert (end["user_name"], end["messages_received"], end["messages_sent"]) == ("ann", 3, 3)
    assert end["seconds"] >= 0.0
    assert (second["version"], second["user_name"], second["session_present"]) == ("3.1.1", "ann", True)
    assert (second["session_expiry"], second["will"]) == (broker.settings.session.max_expiry, False)


async def test_a_lost_connection_is_no_warning(told: Lines, dial: Dial) -> None:
    """A phone that leaves its cell is the day's business; "evicted" is what the broker did."""
    async with Broker(settings()) as broker:
        peer = await dial(broker, wire.connect("phone"))
        await peer.expect(wire.CONNACK)
        peer.abort()
        await gone(broker)
        twice = []
        for _ in range(2):
            twice.append(await dial(broker, wire.connect("twice")))
            await twice[-1].expect(wire.CONNACK)
        for peer in twice:
            peer.abort()
        await gone(broker)
    lost = about(told, "phone")[-1]
    assert (lost["event"], lost["cause"], lost["log_level"]) == ("client disconnected", "connection-lost", "info")
    first_end = next(line for line in about(told, "twice") if "cause" in line)
    assert (first_end["event"], first_end["cause"]) == ("client evicted", "taken-over")
    assert [line for line in told if line["log_level"] not in ("debug", "info")] == []


@pytest.mark.parametrize(
    ("connect", "cause", "client_id"),
    [
        (wire.connect("x" * 600), "refused", "x" * 512),
        (wire.connect("half", flags=0x06, payload=wire.string("half") + b"\0\0\2w"), "protocol-error", "half"),
    ],
    ids=["refused", "malformed behind the client identifier"],
)
async def test_who_is_not_let_in_is_named(told: Lines, dial: Dial, connect: bytes, cause: str, client_id: str) -> None:
    async with Broker(settings()) as broker:
        peer = await dial(broker, connect)
        assert (await peer.recv()).kind == wire.CONNACK
        assert await peer.closed() == []
        peer.abort()
        await gone(broker)
    (line,) = [line for line in told if "cause" in line]
    assert (line["cause"], line["client_id"]) == (cause, client_id)
    assert "messages_received" not in line


@pytest.mark.parametrize(
    ("version", "cause", "event"),
    [(4, "not-allowed", "client evicted"), (5, "protocol-error", "client broke the protocol")],
)
async def test_only_who_was_told_of_a_limit_breaks_the_protocol_by_it(
    told: Lines, dial: Dial, version: int, cause: str, event: str
) -> None:
    """A 5.0 client reads Maximum Packet Size in CONNACK, a 3.1.1 client cannot know it."""
    async with Broker(settings(limits={"max_packet_size": 1000})) as broker:
        peer = await dial(broker, wire.connect("big", version=version), version=version)
        await peer.expect(wire.CONNACK)
        await peer.send(wire.publish("t", bytes(2000), version=version))
        await peer.closed()
        peer.abort()
        await gone(broker)
        assert broker.router.counters.protocol_errors == (version == 5)
    end = about(told, "big")[-1]
    assert (end["cause"], end["event"], end["log_level"]) == (cause, event, "warning")
    assert "1000" in end["detail"]


cached = cache(connection)


def client(host: str, client_id: str = "c", user_name: str | None = None, cause: str = "") -> Connection:
    """A client that was accepted; with a cause, one whose connection ended before. The same object at each call."""
    made = cached(not cause)
    made.origin.host, made.origin.text = host, f"{host}:50000"
    made.protocol.client_id, made.protocol.user_name = client_id, user_name
    made.protocol.close_cause = cause or causes.CLIENT_DISCONNECT
    return made


def ended(host: str, cause: str = causes.PROTOCOL_ERROR) -> Connection:
    return client(host, "", None, cause)


def the_log(settings: Log) -> ConnectionLog:
    log = ConnectionLog(structlog.get_logger)
    log.bound(settings)
    return log


def test_one_address_has_its_share_of_warnings_and_the_rest_is_one_line(told: Lines) -> None:
    log = the_log(Log(client_warnings=100))
    log.look(0.0)
    for _ in range(5_000):
        log.ended(ended("192.0.2.1"), 1.0)
    log.ended(ended("192.0.2.1", causes.REFUSED), 1.0)
    log.ended(ended("192.0.2.2"), 1.0)
    assert [line["address"] for line in told] == ["192.0.2.1:50000"] * 10 + ["192.0.2.2:50000"]
    told.clear()
    log.look(INTERVAL - 0.1)
    assert told == []
    log.look(INTERVAL)
    (line,) = told
    assert (line["event"], line["log_level"]) == ("warnings about clients left out", "warning")
    assert (line["total"], line["protocol_errors"], line["refused"]) == (4_991, 4_990, 1)
    assert (line["most_from"], line["warnings_from_it"]) == ("192.0.2.1", 4_991)
    told.clear()
    log.ended(ended("192.0.2.1"), 2 * INTERVAL)
    log.finish()
    assert [line["event"] for line in told] == ["client broke the protocol"]


def test_an_ipv6_network_has_the_share_of_one_address(told: Lines) -> None:
    log = the_log(Log(client_warnings=100))
    log.look(0.0)
    for number in range(50):
        log.ended(ended(f"2001:db8::{number:x}"), 1.0)
    assert len(told) == 10
    log.look(INTERVAL)
    assert (told[-1]["most_from"], told[-1]["warnings_from_it"]) == ("2001:db8::/64", 40)


def test_many_addresses_have_no_more_than_all_may_have_and_the_table_is_bounded(told: Lines) -> None:
    most = 100
    log = the_log(Log(client_warnings=most))
    log.look(0.0)
    for number in range(MAX_ADDRESSES + 500):
        log.ended(ended(f"2001:db8:{number:x}::", causes.REFUSED), 1.0)
    assert len(told) == most
    buckets = log._warnings._each
    assert buckets is not None
    assert len(buckets.by_address) == len(log._warnings._by_address) == MAX_ADDRESSES
    log.look(INTERVAL)
    assert told[-1]["refused"] == MAX_ADDRESSES + 500 - most


def written(told: Lines) -> int:
    """Bytes of the lines as JSON."""
    return sum(len(json.dumps(line)) + len("2026-11-28T09:45:50.610814Z") + 16 for line in told)


@pytest.mark.parametrize("name", ["c", "x" * 250, "\U0001f600" * 256, "\x01" * 256])
@pytest.mark.parametrize("addresses", [1, 500])
def test_lines_at_info_have_so_much_room(told: Lines, name: str, addresses: int) -> None:
    """However long the names are, as bytes. Lines are weighed, which is right but for a hundredth."""
    settings = Log()
    log = the_log(settings)
    allowed = settings.client_bytes * (1.0 if addresses > 1 else ADDRESS_BYTES)
    log.look(0.0)
    for number in range(2_000):
        connection = client(f"192.0.{number % addresses // 250}.{number % addresses % 250}", name, name)
        log.opened(connection)
        log.ended(connection, 1.0)
    assert 0.5 * allowed <= written(told) <= 1.02 * allowed
    lines = len(told)
    log.look(INTERVAL)
    rest = told[-1]
    assert (rest["event"], rest["log_level"]) == ("lines about clients left out", "info")
    assert rest["total"] == rest["connected"] + rest["disconnected"] == 4_000 - lines
    assert rest["lines_from_it"] <= rest["total"]
    told.clear()
    # Some of the room is there again, and after a while all of it.
    for now in (INTERVAL, INTERVAL + REFILL):
        for _ in range(2_500):
            log.opened(client("192.0.0.0", name, name))
        assert written(told) <= 1.02 * settings.client_bytes * ADDRESS_BYTES
        assert told
        log.look(now + REFILL)
        told.clear()


def test_the_first_look_at_the_clock_makes_no_room(told: Lines) -> None:
    """A flood in the first second of a broker has the room of any other one."""
    settings = Log()
    log = the_log(settings)
    for _ in range(2_500):
        log.opened(client("192.0.2.1", "c", "u"))
    log.look(1_000.0)
    for _ in range(2_500):
        log.opened(client("192.0.2.1", "c", "u"))
    assert written(told) <= 1.02 * settings.client_bytes * ADDRESS_BYTES


def test_a_site_of_two_thousand_devices_is_logged_whole(told: Lines) -> None:
    log = the_log(Log())
    log.look(0.0)
    for number in range(2_000):
        log.opened(client("192.0.2.1", f"sensor-{number:06}", "site"))
    assert len(told) == 2_000


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("é" * 300, "é" * 85),
        ("\U0001f600" * 300, "\U0001f600" * 42),
        ("a\n" * 300, "a\n" * 73 + "a"),
        ("温度計" * 28, "温度計" * 28),
    ],
)
def test_names_are_cut_by_their_bytes(told: Lines, name: str, shown: str) -> None:
    log = the_log(Log())
    log.opened(client("192.0.2.1", name, name))
    assert (told[0]["client_id"], told[0]["user_name"]) == (shown, shown)


async def test_a_flood_of_bad_connects_over_sockets_is_a_few_lines(told: Lines, dial: Dial) -> None:
    async with Broker(settings(log={"client_warnings": 30})) as broker:
        for _ in range(20):
            peer = await dial(broker, wire.connect(name="NoMQTT"))
            assert await peer.closed() == []
        await gone(broker)
    assert len([line for line in told if line["event"] == "client broke the protocol"]) == 3
    (line,) = [line for line in told if line["event"] == "warnings about clients left out"]
    assert (line["total"], line["most_from"]) == (17, "127.0.0.1")


@pytest.mark.parametrize(("patterns", "named"), [([], False), (["link-*"], True)])
async def test_a_link_that_the_settings_do_not_name_is_told_of(
    told: Lines, dial: Dial, patterns: list[str], named: bool
) -> None:
    """Its requests wait for nobody, and whoever runs both brokers wants to know why."""
    async with Broker(settings(federation={"link_client_ids": patterns})) as broker:
        for client_id, props in (("link-7", ((wire.USER_PROPERTY, ("canopy-link", "below")),)), ("c", ())):
            peer = await dial(broker, wire.connect(client_id, props=props))
            assert (await peer.expect(wire.CONNACK)).code == 0
            peer.abort()
        (line,) = [each for each in about(told, "link-7") if each["event"] == "client connected"]
        assert ("link" in line) == (not named)
        (line,) = [each for each in about(told, "c") if each["event"] == "client connected"]
        assert "link" not in line
