"""Traces of a broker that runs: whose packets they have, from when to when, and what it costs to have none."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.observe.trace import as_json, as_text
from canopy_mqtt.observe.trace import traces as traces_module
from canopy_mqtt.observe.trace.as_json import row
from canopy_mqtt.observe.trace.entries import CLOSED, OPENED, PACKET, Entry, Trace, TracedConnection
from canopy_mqtt.observe.trace.traces import TraceError, Traces
from canopy_mqtt.settings import Limits, Listener, Shutdown, Tls
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.net.websocket.peer import WebPeer
from tests.support.certificates import Authority
from tests.support.waiting import until


def settings(**sections: Any) -> Settings:
    return Settings(
        **{
            "listen": ("mqtt://127.0.0.1:0", "ws://127.0.0.1:0"),
            "limits": Limits(max_client_id_length=0),
            "shutdown": Shutdown(flush_timeout=0.0),
            **sections,
        }
    )


_peers: Final[list[Peer]] = []


@asynccontextmanager
async def running(wanted: Settings) -> AsyncIterator[Broker]:
    """A broker that does not wait in the end for clients which say nothing."""
    async with Broker(wanted) as broker:
        try:
            yield broker
        finally:
            for peer in _peers:
                peer.abort()
            _peers.clear()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running(settings()) as started:
        yield started


async def opened(broker: Broker) -> Peer:
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    _peers.append(peer)
    return peer


async def join(broker: Broker, client_id: str, **options: Any) -> Peer:
    peer = await Peer.join(broker.ports[0], client_id, **options)
    _peers.append(peer)
    return peer


def told(trace: Trace) -> list[str]:
    """What a trace has, in short."""
    found = []
    for entry in trace.entries:
        known = row(entry)
        if "event" in known:
            found.append(f"{known['client_id']} {known['event'].removeprefix('connection ')}")
        else:
            found.append(f"{known['client_id']} {known['direction']} {known['packet']}")
    return found


def connection(broker: Broker, client_id: str) -> Connection:
    found = [one for one in broker.connections if one.protocol.client_id == client_id]
    assert len(found) == 1
    assert isinstance(found[0], Connection)
    return found[0]


def looked_at(broker: Broker, client_id: str) -> bool:
    return connection(broker, client_id) in broker.traces._tracers


class TestOfAClient:
    async def test_from_its_connect_to_its_end_and_nobody_elses(self, broker: Broker) -> None:
        other = await join(broker, "other")
        trace = broker.traces.start("clientid", "sensor")
        client = await join(broker, "sensor")
        third = await join(broker, "third")
        await third.publish("t", b"not this")
        await client.subscribe(("t", 1))
        await other.publish("t", b"x", qos=1)
        await client.message()
        await client.disconnect()
        await until(lambda: trace.entries[-1].what == CLOSED)
        assert told(trace) == [
            "sensor opened",
            "sensor in CONNECT",
            "sensor out CONNACK",
            "sensor in SUBSCRIBE",
            "sensor out SUBACK",
            "sensor out PUBLISH",
            "sensor in PUBACK",
            "sensor in DISCONNECT",
            "sensor closed",
        ]
        assert row(trace.entries[-1])["cause"] == "client-disconnect"
        assert row(trace.entries[5])["fields"]["payload"] == "x"
        # Who it is not about is not looked at any more.
        assert not looked_at(broker, "third")

    async def test_one_that_is_connected_already(self, broker: Broker) -> None:
        client = await join(broker, "sensor", version=4)
        client.version = 4
        trace = broker.traces.start("clientid", "sensor")
        await until(lambda: looked_at(broker, "sensor"))
        await client.fence()
        assert told(trace) == ["sensor in PINGREQ", "sensor out PINGRESP"]
        assert trace.entries[0].version == 4

    async def test_one_in_the_middle_of_a_packet(self, broker: Broker) -> None:
        client = await join(broker, "sensor")
        whole = wire.publish("t", bytes(3_000), qos=1, packet_id=5)
        await client.send(whole[:100])
        await until(lambda: connection(broker, "sensor").protocol.decoder.held_size == 100)
        await client.send(whole[100:200])
        await until(lambda: connection(broker, "sensor").protocol.decoder.held_size == 200)
        trace = broker.traces.start("clientid", "sensor")
        await until(lambda: looked_at(broker, "sensor"))
        await client.send(whole[200:])
        assert (await client.expect(wire.PUBACK)).packet_id == 5
        assert trace.entries[0].data == whole
        assert told(trace) == ["sensor in PUBLISH", "sensor out PUBACK"]

    async def test_one_whose_identifier_the_broker_assigns_and_one_that_sends_on_at_once(self, broker: Broker) -> None:
        probe = await join(broker, "", version=5)
        assert probe.client_id
        trace = broker.traces.start("clientid", "eager")
        client = await opened(broker)
        await client.send(wire.connect("eager") + wire.publish("t", b"1", qos=1, packet_id=1) + wire.PING)
        await client.expect(wire.CONNACK)
        await client.expect(wire.PUBACK)
        await client.expect(wire.PINGRESP)
        assert [one.split()[-1] for one in told(trace)] == [
            "opened", "CONNECT", "PUBLISH", "PINGREQ", "CONNACK", "PUBACK", "PINGRESP",
        ]  # fmt: skip

    async def test_one_that_is_refused(self, broker: Broker) -> None:
        trace = broker.traces.start("ip_address", "127.0.0.0/8")
        client = await opened(broker)
        await client.send(wire.connect("c", version=9))
        await client.closed()
        client.abort()
        await until(lambda: trace.entries[-1:] and trace.entries[-1].what == CLOSED)
        assert row(trace.entries[1])["fields"] == {"malformed": "protocol level 9 is not supported"}
        assert row(trace.entries[-1])["cause"] == "refused: protocol level 9 is not supported"

    async def test_over_a_websocket(self, broker: Broker) -> None:
        trace = broker.traces.start("clientid", "web")
        client = await WebPeer.open("127.0.0.1", broker.ports[1])
        await client.send(wire.connect("web"))
        await client.expect(wire.CONNACK)
        await client.publish("t", b"x", qos=1)
        client.abort()
        await until(lambda: trace.entries[-1].what == CLOSED)
        packets = [one.split()[-1] for one in told(trace)]
        assert packets == ["opened", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "closed"]

    async def test_over_tls(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        certificate, key = authority.issue("localhost", "127.0.0.1")
        secure = Listener(url="mqtts://127.0.0.1:0", tls=Tls(certificate=certificate, key=key))
        async with running(settings(listener=[secure])) as broker:
            trace = broker.traces.start("clientid", "safe")
            context = ssl.create_default_context(cafile=authority.file)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", broker.ports[2], ssl=context, server_hostname="localhost"
            )
            client = Peer(reader, writer, 5)
            await client.send(wire.connect("safe"))
            await client.expect(wire.CONNACK)
            await client.publish("t", b"x", qos=1)
            trace.entries.clear()
            broker.traces.stop(trace.name)
            await until(lambda: not looked_at(broker, "safe"))
            await client.publish("t", b"x", qos=1)
            again = broker.traces.start("clientid", "safe", "again")
            await until(lambda: looked_at(broker, "safe"))
            await client.publish("t", b"x", qos=1)
            client.abort()
            await until(lambda: again.entries[-1].what == CLOSED)
            assert trace.entries == []
            assert [one.split()[-1] for one in told(again)] == ["PUBLISH", "PUBACK", "closed"]

    async def test_behind_a_proxy_it_is_the_clients_address(self) -> None:
        door = Listener(url="mqtt://127.0.0.1:0", proxy_protocol="v2", proxy_from=["127.0.0.1"])
        async with running(Settings(listener=[door])) as broker:
            trace = broker.traces.start("ip_address", "192.0.2.7")
            client = await opened(broker)
            header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + bytes([192, 0, 2, 7, 10, 0, 0, 1])
            await client.send(header + struct.pack("!HH", 4711, 1883) + wire.connect("c"))
            await client.expect(wire.CONNACK)
            assert [one.split()[-1] for one in told(trace)] == ["opened", "CONNECT", "CONNACK"]
            assert trace.entries[0].connection.address == "192.0.2.7:4711"
            client.abort()


class Recorded:
    """What a peer wrote and read, byte for byte."""

    def __init__(self, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = b""
        self.got = b""
        write, read = peer.writer.write, peer.reader.readexactly

        def writing(data: bytes) -> None:
            self.sent += data
            write(data)

        async def reading(size: int) -> bytes:
            data = await read(size)
            self.got += data
            return data

        monkeypatch.setattr(peer.writer, "write", writing)
        monkeypatch.setattr(peer.reader, "readexactly", reading)


@pytest.mark.parametrize("seed", range(5))
async def test_it_has_every_byte_that_came_and_went(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(traces_module, "PACKET_BYTES", 2_000_000)
    async with running(settings()) as broker:
        trace = broker.traces.start("clientid", "c")
        client = await opened(broker)
        recorded = Recorded(client, monkeypatch)
        await client.send(wire.connect("c"))
        await client.expect(wire.CONNACK)
        await client.subscribe(("t/#", 2))
        for number in range(40):
            size = dice.choice([0, 1, 126, 127, 128, 16_384, 70_000, 300_000])
            await client.publish(f"{dice.choice('tu')}/{number}", bytes(size), qos=dice.randrange(3))
            if dice.random() < 0.2:
                await client.send(*[wire.publish("t/x", bytes(dice.randrange(300))) for _ in range(20)])
            if dice.random() < 0.1:
                await client.unsubscribe("t/#")
                await client.subscribe(("t/#", dice.randrange(3)))
        await client.fence()
        entries = list(trace.entries)
        assert trace.running
        assert b"".join(entry.data for entry in entries if entry.inward) == recorded.sent
        assert b"".join(entry.data for entry in entries if not entry.inward) == recorded.got


class TestOfATopic:
    async def test_who_publishes_who_gets_it_and_who_asks_for_it(self, broker: Broker) -> None:
        publisher = await join(broker, "publisher")
        trace = broker.traces.start("topic", "plant/+/t")
        await until(lambda: looked_at(broker, "publisher"))
        subscriber = await join(broker, "subscriber")
        await subscriber.subscribe(("plant/#", 1), ("$share/g/plant/1/t", 0))
        await subscriber.subscribe("elsewhere")
        await publisher.publish("elsewhere", b"no", qos=1)
        await publisher.publish("plant/1/t", b"yes", qos=1)
        await subscriber.wait_for(wire.PUBLISH)
        await until(lambda: "subscriber out PUBLISH" in told(trace))
        found = told(trace)
        assert found[:4] == ["subscriber opened", "subscriber in SUBSCRIBE", "subscriber out SUBACK",
                             "publisher in PUBLISH"]  # fmt: skip
        assert sorted(found[4:]) == ["publisher out PUBACK"] + ["subscriber out PUBLISH"] * len(found[5:])
        publishes = [entry for entry in trace.entries if entry.data[:1] in (b"\x30", b"\x32")]
        payloads = {row(entry)["fields"]["payload"] for entry in publishes}
        assert payloads == {"yes"}

    async def test_two_at_once_have_each_their_own(self, broker: Broker) -> None:
        a, b = broker.traces.start("topic", "a", "a"), broker.traces.start("topic", "b", "b")
        client = await join(broker, "c")
        await client.publish("a", b"1", qos=1)
        await client.publish("b", b"2", qos=1)
        broker.traces.stop("a")
        await client.publish("a", b"3", qos=1)
        await client.publish("b", b"4", qos=1)
        assert [entry.data[-1:] for entry in a.entries if entry.data[:1] == b"\x32"] == [b"1"]
        assert [entry.data[-1:] for entry in b.entries if entry.data[:1] == b"\x32"] == [b"2", b"4"]

    async def test_bits_of_ended_traces_are_not_another_ones(self, broker: Broker) -> None:
        client = await join(broker, "c")
        for number in range(200):
            trace = broker.traces.start("topic", f"t/{number}", f"t-{number}")
            await until(lambda: looked_at(broker, "c"))
            await client.publish(f"t/{number}", b"x", qos=1)
            broker.traces.remove(trace.name)
            assert [entry.data[0] >> 4 for entry in trace.entries] == [3, 4]


class TestBounds:
    async def test_the_packet_that_does_not_fit_ends_it(self, broker: Broker) -> None:
        client = await join(broker, "c")
        trace = broker.traces.start("clientid", "c", max_bytes=10_000)
        await until(lambda: looked_at(broker, "c"))
        for _ in range(30):
            await client.publish("t", bytes(1_000))
        assert trace.state == "full"
        assert trace.bytes <= 10_000
        assert trace.packets > 5
        await until(lambda: not looked_at(broker, "c"))
        assert broker.connection_table.observer is None

    async def test_its_time(self, broker: Broker) -> None:
        trace = broker.traces.start("clientid", "c", seconds=0.01)
        await until(lambda: not trace.running)
        assert trace.state == "time over"
        await until(lambda: broker.connection_table.observer is None)

    async def test_a_long_packet(self) -> None:
        async with running(settings()) as broker:
            client = await join(broker, "c")
            trace = broker.traces.start("clientid", "c")
            await until(lambda: looked_at(broker, "c"))
            await client.publish("topic", b"a" * 100_000, qos=1)
            known = row(trace.entries[0])
            assert known["kept"] == 65_536
            assert known["size"] == 100_000 + 14
            assert known["fields"]["topic"] == "topic"
            assert known["fields"]["payload"] == "a" * (65_536 - 14)

    async def test_of_very_many_filters_none_is_looked_at(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[list[str]] = []
        about = Traces.about_filters

        def noted(traces: Traces, filters: list[str]) -> int:
            asked.append(filters)
            return about(traces, filters)

        monkeypatch.setattr(Traces, "about_filters", noted)
        trace = broker.traces.start("topic", "nothing/like/it")
        client = await join(broker, "c")
        await client.subscribe("a")
        await client.send(wire.subscribe(9, [(f"t/{number}", 0) for number in range(1_000)]))
        assert len((await client.wait_for(wire.SUBACK)).codes) == 1_000
        assert asked == [["a"]]
        assert [one.split()[-1] for one in told(trace)] == ["opened", "SUBSCRIBE", "SUBACK"]

    async def test_so_many_are_kept_and_the_oldest_that_has_ended_gives_way(self) -> None:
        async with running(settings()) as broker:
            for name in "abcdefgh":
                broker.traces.start("clientid", "c", name)
            with pytest.raises(TraceError, match="8 traces run"):
                broker.traces.start("clientid", "c", "i")
            broker.traces.stop("b")
            broker.traces.start("clientid", "c", "i")
            assert list(broker.traces.all) == list("acdefghi")

    @pytest.mark.parametrize(
        ("kind", "value", "options"),
        [
            ("topic", "a/#/b", {}),
            ("topic", "$share/g/a", {}),
            ("topic", "", {}),
            ("ip_address", "10.0.0.0/99", {}),
            ("clientid", "", {}),
            ("clientid", "x" * 65_536, {}),
            ("clientid", "c", {"seconds": 3_601.0}),
            ("clientid", "c", {"seconds": float("nan")}),
            ("clientid", "c", {"max_bytes": 8_388_609}),
            ("clientid", "c", {"name": "../x"}),
            ("clientid", "c", {"name": "x" * 65}),
        ],
    )
    async def test_refused(self, broker: Broker, kind: Any, value: str, options: dict[str, Any]) -> None:
        with pytest.raises(TraceError):
            broker.traces.start(kind, value, **options)
        assert broker.traces.all == {}
        assert broker.connection_table.observer is None

    async def test_a_name_is_taken_once(self, broker: Broker) -> None:
        broker.traces.start("clientid", "c", "x")
        with pytest.raises(TraceError, match="already"):
            broker.traces.start("clientid", "c", "x")

    async def test_a_name_that_is_made_up_is_nobody_elses(self, broker: Broker) -> None:
        names = [broker.traces.start("clientid", "c").name for _ in range(3)]
        broker.traces.remove(names[0])
        assert broker.traces.start("clientid", "c").name not in names

    async def test_it_ends_with_the_broker(self) -> None:
        async with running(settings()) as broker:
            await join(broker, "c")
            trace = broker.traces.start("clientid", "c")
        assert trace.state == "broker stopped"
        assert not broker.traces._tracers


class TestHarm:
    async def test_without_a_trace_no_connection_knows_of_any(self, broker: Broker) -> None:
        client = await join(broker, "c")
        trace = broker.traces.start("topic", "#")
        await until(lambda: looked_at(broker, "c"))
        one = connection(broker, "c")
        transport: Any = one.stream.transport
        assert transport.get_protocol() is not one
        broker.traces.stop(trace.name)
        await until(lambda: not looked_at(broker, "c"))
        assert transport.get_protocol() is one
        assert one.stream.send == transport.write
        await client.fence()

    async def test_a_fault_of_the_looking_ends_that_alone(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> bytes:
            raise RuntimeError("a mistake")

        monkeypatch.setattr("canopy_mqtt.observe.trace.traces.masked", broken)
        client = await join(broker, "c")
        trace = broker.traces.start("clientid", "c")
        await until(lambda: looked_at(broker, "c"))
        await client.publish("t", b"x", qos=1)
        await client.fence()
        assert trace.entries == []
        assert broker.faults.counts["trace"] == 1

    async def test_passwords_are_nowhere(self, broker: Broker) -> None:
        trace = broker.traces.start("ip_address", "127.0.0.1")
        client = await join(broker, "c", user="bob", password=b"hunter2!")
        await client.fence()
        assert row(trace.entries[1])["fields"]["password"] == "***"
        for lines in (as_text.lines, as_json.lines):
            text = b"".join(lines(trace.entries))
            assert b"bob" in text
            assert b"hunter2" not in text
            assert b"hunter2".hex().encode() not in text

    async def test_who_reads_along_hears_of_each_entry_and_of_the_end(self, broker: Broker) -> None:
        client = await join(broker, "c")
        trace = broker.traces.start("clientid", "c")
        await until(lambda: looked_at(broker, "c"))
        waiting = asyncio.ensure_future(trace.more(0))
        await client.fence()
        assert await waiting
        end = asyncio.ensure_future(trace.more(len(trace.entries)))
        given_up = asyncio.ensure_future(trace.more(len(trace.entries)))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        broker.traces.stop(trace.name)
        assert not await end
        assert trace._waiting == []

    def test_a_line_of_text_is_one_line_whatever_a_client_sends(self) -> None:
        hostile = 'a\n\x1b[31m\x9b5n\u2028"\\'
        traced = TracedConnection(1, "", "unix", None, "here", hostile, 5)
        props: list[tuple[int, wire.Value]] = [(wire.USER_PROPERTY, (hostile, hostile))]
        data = wire.publish(hostile, hostile.encode("utf-8", "replace"), props=props)
        for what in (OPENED, PACKET, CLOSED):
            line = as_text.line(Entry(what, 0, traced, True, data, len(data), 5))
            assert line.isprintable()
