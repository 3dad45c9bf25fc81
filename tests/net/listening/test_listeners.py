"""Several listeners of one broker: their sockets, their limits, Unix sockets, and what is said when one cannot open."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker, Settings
from canopy_mqtt.net.connections import admission
from canopy_mqtt.net.listening.listeners import StartupError, request_bytes
from canopy_mqtt.settings import Limits, Listener
from canopy_mqtt.sockets import check_files
from tests.e2e import wire
from tests.e2e.wire import Packet, Peer
from tests.support.runs import for_each
from tests.support.waiting import until

HOST: Final = "127.0.0.1"
ANY: Final = f"mqtt://{HOST}:0"

Lines = list[dict[str, Any]]
Start = Callable[..., Awaitable[Broker]]

_peers: Final[list[Peer]] = []


@pytest.fixture
async def start(lines: Lines) -> AsyncIterator[Start]:
    """Start brokers with these listeners; sections of settings as keywords."""
    del lines
    async with AsyncExitStack() as stack:

        async def begin(*listeners: dict[str, Any], **sections: Any) -> Broker:
            wanted = {"shutdown": {"flush_timeout": 0.0}, **sections}
            # Addresses that are not known yet are no names that tell them apart.
            tables = [
                Listener(**{"url": ANY, **keys, **({} if "url" in keys or "name" in keys else {"name": f"at-{at}"})})
                for at, keys in enumerate(listeners)
            ]
            return await stack.enter_async_context(Broker(Settings(listener=tables, **wanted)))

        yield begin
        for peer in _peers:
            peer.abort()
        _peers.clear()


async def attempt(broker: Broker, at: int, client_id: str = "", version: int = 5) -> tuple[Peer, Packet]:
    """Connect at one of the listeners; the CONNACK, whatever it says."""
    path = broker.listeners.open[at].endpoint.path
    async with asyncio.timeout(wire.TIMEOUT):
        if path:
            reader, writer = await asyncio.open_unix_connection(path)
        else:
            reader, writer = await asyncio.open_connection(HOST, broker.ports[at])
    peer = Peer(reader, writer, version)
    _peers.append(peer)
    await peer.send(wire.connect(client_id, version=version))
    peer.connack = await peer.expect(wire.CONNACK)
    return peer, peer.connack


async def join(broker: Broker, at: int, client_id: str = "") -> Peer:
    peer, connack = await attempt(broker, at, client_id)
    assert connack.code == 0
    return peer


class TestOpening:
    async def test_clients_of_all_listeners_meet(self, start: Start, tmp_path: Path) -> None:
        broker = await start({"name": "a"}, {"name": "b"}, {"url": f"mqtt+unix://{tmp_path}/s"})
        assert broker.listening == [f"mqtt://{HOST}:{port}" for port in broker.ports[:2]] + [
            f"mqtt+unix://{tmp_path}/s"
        ]
        assert broker.ports[2] == 0
        peers = [await join(broker, at) for at in range(3)]
        for peer in peers:
            await peer.subscribe("t")
        await peers[0].publish("t", b"x")
        for peer in peers:
            assert (await peer.expect(wire.PUBLISH)).payload == b"x"

    @pytest.mark.parametrize(("host", "reached"), [
        ("*", ["127.0.0.1", "::1"]), ("0.0.0.0", ["127.0.0.1"]), ("[::]", ["::1"]),
    ])  # fmt: skip
    async def test_every_interface(self, start: Start, host: str, reached: list[str]) -> None:
        """`*` is the one host for both families; the others have one each, and the page says so."""
        port = free_port()
        await start({"url": f"mqtt://{host}:{port}"})
        found: list[str] = []
        for address in ("127.0.0.1", "::1"):
            try:
                peer = await Peer.open(address, port)
            except ConnectionRefusedError:
                continue
            await peer.send(wire.connect("c"))
            assert (await peer.expect(wire.CONNACK)).code == 0
            peer.abort()
            found.append(address)
        assert found == reached

    async def test_either_all_are_open_or_none_is(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with closing(socket.create_server((HOST, 0))) as other:
            taken = f"mqtt://{HOST}:{other.getsockname()[1]}"
            with pytest.raises(StartupError) as caught:
                await start({"url": f"mqtt+unix://{path}"}, {"name": "second", "url": taken})
            assert str(caught.value) == (
                f'cannot listen on {taken} (listener "second"): the port is in use; stop the other program or choose '
                "another port (--listen, or its url in the settings)"
            )
        assert not path.exists()


class TestLimits:
    async def test_connections_of_one_listener(self, start: Start) -> None:
        broker = await start({"max_connections": 2}, {})
        first, _ = await join(broker, 0), await join(broker, 0)
        _, connack = await attempt(broker, 0)
        assert connack.code == 0x97
        await join(broker, 1)
        first.abort()
        await until(lambda: broker.listeners.open[0].admission.open == 1)  # type: ignore[union-attr]
        await join(broker, 0)

    async def test_new_connections_of_one_address_in_a_second(self, start: Start) -> None:
        broker = await start({"max_connect_rate": 0.01}, {})
        await join(broker, 0)
        _, connack = await attempt(broker, 0)
        assert connack.code == 0x9F
        await join(broker, 1)

    def test_the_rates_of_addresses_are_bounded_in_number(self) -> None:
        gate = admission.Admission(rate_of_one=1.0)
        addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(admission.MAX_ADDRESSES + 10)]
        assert [gate.check(address, 0.0) for address in addresses] == [0] * len(addresses)
        assert gate._rates is not None
        assert list(gate._rates.by_address) == addresses[10:]
        assert gate.check(addresses[-1], 0.0) == 0x9F
        assert gate.check(addresses[-1], 1.0) == 0

    async def test_the_size_of_packets(self, start: Start) -> None:
        broker = await start({"max_packet_size": 500}, {}, {"max_packet_size": 5000}, limits={"max_packet_size": 1000})
        for at, largest in ((0, 500), (1, 1000), (2, 1000)):
            peer, connack = await attempt(broker, at)
            assert connack.get(wire.MAXIMUM_PACKET_SIZE) == largest
            await peer.send(wire.publish("t", bytes(largest - 7)), b"\xc0\x00")
            await peer.expect(wire.PINGRESP)
            await peer.send(wire.publish("t", bytes(largest)))
            assert (await peer.expect(wire.DISCONNECT)).code == 0x95


class TestUnixSockets:
    async def test_mode_and_group(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "s"
        group = grp.getgrgid(os.getgid()).gr_name
        await start({"url": f"mqtt+unix://{path}", "mode": "0600", "group": group})
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o600, os.getgid())

    async def test_no_such_group(self, start: Start, tmp_path: Path) -> None:
        url = f"mqtt+unix://{tmp_path}/s"
        with pytest.raises(StartupError) as caught:
            await start({"url": url, "group": "nobody-has-this"})
        assert str(caught.value) == f"cannot listen on {url}: there is no group 'nobody-has-this'"

    async def test_the_file_goes_with_the_broker(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "s"
        broker = await start({"url": f"mqtt+unix://{path}"})
        (await join(broker, 0)).abort()
        assert path.is_socket()
        await broker.stop()
        assert not path.exists()

    async def test_one_that_a_killed_broker_left_is_replaced(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with closing(socket.socket(socket.AF_UNIX)) as dead:
            dead.bind(str(path))
        broker = await start({"url": f"mqtt+unix://{path}"})
        await join(broker, 0)

    async def test_one_that_somebody_answers_on_is_not(self, start: Start, tmp_path: Path) -> None:
        url = f"mqtt+unix://{tmp_path}/s"
        first = await start({"url": url})
        with pytest.raises(StartupError) as caught:
            await start({"url": url})
        assert str(caught.value) == (
            f"cannot listen on {url}: another program listens there; stop it or choose another path"
        )
        await join(first, 0)

    async def test_nor_is_what_is_no_socket(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "s"
        path.write_text("precious")
        with pytest.raises(StartupError) as caught:
            await start({"url": f"mqtt+unix://{path}"})
        assert "is not a socket; remove it or choose another path" in str(caught.value)
        assert path.read_text() == "precious"

    @pytest.mark.parametrize(
        "settings", [{"listener": [{"url": "mqtt+unix://PATH"}]}, {"http": {"listen": ["http+unix://PATH"]}}]
    )
    def test_a_file_that_is_no_socket_is_found_before_the_start(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        path = tmp_path / "s"
        given = Settings.model_validate(json.loads(json.dumps(settings).replace("PATH", str(path))))
        assert check_files(given) == []
        path.write_text("precious")
        (fault,) = check_files(given)
        assert fault.endswith(f'{path}": the file exists and is not a socket; remove it or choose another path')
        path.unlink()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        assert check_files(given) == []

    async def test_a_folder_that_is_not_there(self, start: Start, tmp_path: Path) -> None:
        url = f"mqtt+unix://{tmp_path}/no/s"
        with pytest.raises(StartupError) as caught:
            await start({"url": url})
        assert str(caught.value) == f"cannot listen on {url}: there is no folder {tmp_path}/no"

    async def test_the_file_of_the_next_broker_is_not_removed(self, start: Start, tmp_path: Path) -> None:
        path = tmp_path / "s"
        broker = await start({"url": f"mqtt+unix://{path}"})
        path.unlink()
        other = await start({"url": f"mqtt+unix://{path}"})
        await broker.stop()
        await join(other, 0)

    async def test_the_log_names_the_listener(self, start: Start, tmp_path: Path, lines: Lines) -> None:
        broker = await start({"url": f"mqtt+unix://{tmp_path}/s", "name": "local"})
        await join(broker, 0, "c")
        (line,) = [line for line in lines if line["event"] == "client connected"]
        assert (line["client_id"], line["listener"], line["address"]) == ("c", "local", "unix")


@for_each(
    ("bounds", "most"),
    [
        ({}, 65_536),
        ({"max_connect_size": 20_000}, 20_000),
        ({"max_connect_size": 64}, 512),
        ({"max_connect_size": 0, "max_packet_size": 1_000}, 1_000),
        ({"max_connect_size": 0, "max_packet_size": 0}, 65_536),
    ],
)
def test_a_request_for_a_websocket_is_bounded_as_a_connect_is(bounds: dict[str, int], most: int) -> None:
    assert request_bytes(Limits(**bounds)) == most


@pytest.mark.parametrize("steps", range(6))
async def test_connections_that_come_just_before_a_stop_are_told_their_end(start: Start, steps: int) -> None:
    broker = await start({})
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        comers = [stack.enter_context(socket.create_connection((HOST, broker.ports[0]))) for _ in range(8)]
        for each in comers:
            each.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
        await broker.stop()
        for each in comers:
            with suppress(ConnectionError):
                async with asyncio.timeout(wire.TIMEOUT):
                    assert await loop.sock_recv(each, 1) == b""
