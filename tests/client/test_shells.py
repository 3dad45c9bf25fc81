"""Both shells of the client against running brokers: Canopy, and mosquitto where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.blocking import BlockingClient
from canopy_mqtt.client.failures import LostError, RefusedError
from canopy_mqtt.client.machine import ClientMachine, Delivered, connect_packet
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import V5, V311, Connack, Publish, SubscriptionRequest
from canopy_mqtt.testing import RunningBroker
from tests.support.certificates import Authority

LISTENERS = ("mqtts", "ws", "wss", "unix")


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[dict[str, BrokerAddress]]:
    """Canopy's listeners by scheme."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    path = str(tmp_path / "socket")
    tls = {"certificate": certificate, "key": key}
    others = [
        {"url": "mqtts://127.0.0.1:0", "tls": tls},
        {"url": "ws://127.0.0.1:0"},
        {"url": "wss://127.0.0.1:0", "tls": tls},
        {"url": f"mqtt+unix://{path}"},
    ]
    with RunningBroker(listener=others) as broker:
        mqtts, ws, wss = broker.other_ports[:3]
        trusted = ssl.create_default_context(cafile=authority.file)
        yield {
            "mqtts": BrokerAddress.parse(f"mqtts://127.0.0.1:{mqtts}", trusted, "localhost"),
            "ws": BrokerAddress.parse(f"ws://127.0.0.1:{ws}"),
            "wss": BrokerAddress.parse(f"wss://localhost:{wss}/mqtt", trusted),
            "unix": BrokerAddress.parse(f"mqtt+unix://{path}"),
        }


@contextlib.contextmanager
def scripted(script: Callable[[socket.socket], object]) -> Iterator[BrokerAddress]:
    """A listener that plays `script` with each connection, one after the other, until the test is over."""

    def serve() -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(30)
                script(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield BrokerAddress(port=server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            assert not thread.is_alive()


@contextlib.asynccontextmanager
async def scripted_aside(script: Callable[[socket.socket], object]) -> AsyncIterator[BrokerAddress]:
    """The same, where the event loop runs until the thread has ended."""
    listener = scripted(script)
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(listener)
        await asyncio.to_thread(stack.pop_all().close)


def welcome(connection: socket.socket, version: int = V5) -> None:
    connection.recv(65_536)
    connection.sendall(encoder.encode(Connack(), version))


def to_the_end(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(65_536):
        found += data
    return found


def machine(client_id: str = "c", **options: object) -> ClientMachine:
    return ClientMachine(connect_packet(client_id, **options))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ blocking


class Blocking(BlockingClient):
    """With what has come, and what became of messages."""

    def __init__(self, address: BrokerAddress, session: ClientMachine) -> None:
        super().__init__(address, session)
        self.came: list[Publish] = []
        self.delivered: list[Delivered] = []
        self.on_message = self.came.append
        self.on_delivered = self.delivered.append

    def deliver(self, packet: Publish) -> int:
        """Publish, and wait for the acknowledgement: the reason code."""
        number = self.publish(packet)
        while self.unwritten or (number and not self.delivered):
            self.step(0.1)
        return self.delivered.pop().reason_code if number else 0

    def receive(self) -> Publish:
        while not self.came:
            self.step(0.1)
        return self.came.pop(0)


class TestBlocking:
    @pytest.mark.parametrize("version", [V311, V5])
    def test_messages_go_there_and_back(self, address: BrokerAddress, version: int) -> None:
        with Blocking(address, machine(version=version)) as client:
            client.connect()
            wanted = [SubscriptionRequest(f"a/{qos}", qos) for qos in range(3)]
            assert client.subscribe(*wanted).reason_codes == [0, 1, 2]
            for qos in range(3):
                assert client.deliver(Publish(f"a/{qos}".encode(), b"x", qos)) == 0
                got = client.receive()
                assert (got.topic, got.payload, got.qos) == (f"a/{qos}".encode(), b"x", qos)
        assert not client.connected

    @pytest.mark.parametrize("scheme", LISTENERS)
    def test_every_transport(self, listeners: dict[str, BrokerAddress], scheme: str) -> None:
        payload = bytes(range(256)) * 1000
        with Blocking(listeners[scheme], machine()) as client:
            client.connect()
            client.subscribe("a")
            assert client.deliver(Publish(b"a", payload, 1)) == 0
            assert client.receive().payload == payload

    def test_a_session_outlives_its_connection(self, address: BrokerAddress) -> None:
        here = machine("here", clean_start=False, session_expiry=60)
        with Blocking(address, here) as client, Blocking(address, machine("there")) as other:
            client.connect()
            client.subscribe(SubscriptionRequest("a", 2))
            client.close()
            other.connect()
            other.deliver(Publish(b"a", b"meanwhile", 2))
            # It is kept until there is a connection.
            client.publish(Publish(b"a", b"mine", 2))
            assert client.connect().session_present
            assert {client.receive().payload, client.receive().payload} == {b"meanwhile", b"mine"}

    def test_nobody_listens(self, address: BrokerAddress) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            client = BlockingClient(BrokerAddress(port=bound.getsockname()[1]), machine())
            with pytest.raises(LostError, match="connection refused") as caught:
                client.connect()
            assert isinstance(caught.value.__cause__, ConnectionRefusedError)
            assert not caught.value.lasting
            # Another address may do.
            client.address = address
            client.connect()
            client.close()

    def test_a_broker_that_says_nothing(self) -> None:
        with scripted(to_the_end) as address, pytest.raises(LostError, match=r"no CONNACK within 0\.1 s"):  # noqa: PT012
            client = BlockingClient(address, machine(), timeout=0.1)
            client.connect()

    def test_an_abandoned_client_sends_no_connect(self) -> None:
        found: queue.Queue[bytes] = queue.Queue()
        with scripted(lambda connection: found.put(to_the_end(connection))) as address:
            client = BlockingClient(address, machine())
            client.abandoned = True
            with pytest.raises(LostError, match="not wanted"):
                client.connect()
            assert found.get(timeout=30) == b""

    def test_a_certificate_that_is_not_trusted_will_not_be_the_next_time(
        self, listeners: dict[str, BrokerAddress]
    ) -> None:
        strangers = BrokerAddress("localhost", listeners["wss"].port, tls=ssl.create_default_context())
        with pytest.raises(LostError, match="certificate is not trusted") as caught:
            BlockingClient(strangers, machine()).connect()
        assert caught.value.lasting

    def test_no_answer_to_a_subscription(self) -> None:
        def script(connection: socket.socket) -> None:
            welcome(connection)
            to_the_end(connection)

        with scripted(script) as address, BlockingClient(address, machine(), timeout=0.2) as client:
            client.connect()
            with pytest.raises(LostError, match=r"waited 0\.2 s for a SUBACK"):
                client.subscribe("a")

    def test_a_broker_that_goes_away(self) -> None:
        with scripted(welcome) as address, BlockingClient(address, machine()) as client:
            client.connect()
            with pytest.raises(LostError, match="the broker closed the connection"):
                client.step(30)
            with pytest.raises(LostError, match="there is no connection"):
                client.step()


# ------------------------------------------------------------------------------------------------------------- asyncio


class TestAsyncio:
    @pytest.mark.parametrize("version", [V311, V5])
    async def test_messages_go_there_and_back(self, address: BrokerAddress, version: int) -> None:
        came: asyncio.Queue[Publish] = asyncio.Queue()
        async with AsyncClient(address, machine(version=version), on_message=came.put_nowait) as client:
            wanted = [SubscriptionRequest(f"a/{qos}", qos) for qos in range(3)]
            assert (await client.subscribe(*wanted)).reason_codes == [0, 1, 2]
            for qos in range(3):
                assert await client.publish(f"a/{qos}", b"x", qos=qos) == 0
                got = await came.get()
                assert (got.topic, got.payload, got.qos) == (f"a/{qos}".encode(), b"x", qos)
        assert not client.connected

    @pytest.mark.parametrize("scheme", LISTENERS)
    async def test_every_transport(self, listeners: dict[str, BrokerAddress], scheme: str) -> None:
        payload = bytes(range(256)) * 1000
        came: asyncio.Queue[Publish] = asyncio.Queue()
        async with AsyncClient(listeners[scheme], machine(), on_message=came.put_nowait) as client:
            await client.subscribe("a")
            assert await client.publish("a", payload, qos=1) == 0
            assert (await came.get()).payload == payload

    async def test_many_publishes_side_by_side(self, address: BrokerAddress) -> None:
        came: asyncio.Queue[Publish] = asyncio.Queue()
        async with AsyncClient(address, machine(), on_message=came.put_nowait) as client:
            await client.subscribe(SubscriptionRequest("a", 2))
            sending = asyncio.gather(*(client.publish("a", b"%d" % number, qos=number % 3) for number in range(300)))
            got = [int((await came.get()).payload) for _ in range(300)]
            assert await sending == [0] * 300
            for qos in range(3):
                assert [each for each in got if each % 3 == qos] == list(range(qos, 300, 3))

    async def test_a_refusal(self) -> None:
        def script(connection: socket.socket) -> None:
            connection.recv(65_536)
            connection.sendall(encoder.encode(Connack(False, 0x87), V5))

        async with scripted_aside(script) as address:
            client = AsyncClient(address, machine())
            with pytest.raises(RefusedError, match="Not authorized"):
                await client.connect()
            assert not client.connected

    async def test_a_broker_that_says_nothing(self) -> None:
        async with scripted_aside(to_the_end) as address:
            client = AsyncClient(address, machine(), timeout=0.1)
            with pytest.raises(LostError, match=r"no CONNACK within 0\.1 s"):
                await client.connect()

    async def test_a_lost_connection_wakes_all_that_wait(self) -> None:
        go = threading.Event()

        def script(connection: socket.socket) -> None:
            welcome(connection)
            go.wait(30)

        async with scripted_aside(script) as address:
            client = AsyncClient(address, machine())
            await client.connect()
            waiting = [asyncio.ensure_future(each) for each in (client.publish("a", qos=1), client.subscribe("a"))]
            await asyncio.sleep(0)
            go.set()
            for each in waiting:
                with pytest.raises(LostError):
                    await each
            failure = await client.lost()
            assert failure is not None
            assert str(address) in str(failure)

    async def test_a_reader_that_cannot_keep_up_stops_the_reading(self) -> None:
        count = 1000
        came: asyncio.Queue[Publish] = asyncio.Queue()

        def script(connection: socket.socket) -> None:
            welcome(connection)
            for number in range(count):
                connection.sendall(encoder.publish(Publish(b"t", b"%04d" % number + bytes(65_536)), V5))
            to_the_end(connection)

        def on_message(packet: Publish) -> None:
            came.put_nowait(packet)
            client.read_on(False)

        async with scripted_aside(script) as address:
            client = AsyncClient(address, machine(), on_message=on_message)
            async with client:
                for number in range(count):
                    assert (await came.get()).payload[:4] == b"%04d" % number
                    assert came.qsize() < 20
                    client.read_on(True)
