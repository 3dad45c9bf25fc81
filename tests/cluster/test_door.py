"""Who comes in at the listener for other nodes, and what those cost who do not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.cluster.greeting import VERSIONS, Greeting, read
from canopy_mqtt.net.connections.admission import MAX_OF_NODE, MAX_OF_STRANGER, MAX_STRANGERS
from canopy_mqtt.settings import Settings
from tests.cluster.nodes import TIMEOUT, Nodes
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.certificates import Authority
from tests.support.runs import for_each
from tests.support.waiting import until

NOT_AUTHORIZED: Final = 0x87
IDENTIFIER_NOT_VALID: Final = 0x85
STRANGERS: Final = 200


async def knock(port: int, client_id: str, said: str | None, **options: Any) -> wire.Packet:
    """The CONNACK for a CONNECT at a port."""
    peer = await Peer.open("127.0.0.1", port)
    props = [] if said is None else [(wire.USER_PROPERTY, ("canopy-node", said))]
    await peer.send(wire.connect(client_id, props=props, **options))
    found = await peer.expect(wire.CONNACK)
    peer.abort()
    return found


@pytest.mark.parametrize(
    ("client_id", "said"),
    [
        ("client", None),
        ("", None),
        ("$node/b", None),
        ("$node/b", "plant/b"),
        ("$node/b", "plant/b/maybe/1"),
        ("$node/b", "other/b/asks/1"),
        ("$node/b", "plant/c/asks/1"),
        ("$node/b", "plant/b/asks/98,99"),
        ("$node/b", "plant/b/asks/x"),
        ("$node/a", "plant/a/asks/1"),
        ("$node/x", "plant/x/asks/1"),
    ],
    ids=[
        *("client", "empty", "nothing", "short", "neither", "cluster", "another", "version", "no version"),
        *("itself", "unknown"),
    ],
)
async def test_only_the_nodes_of_the_settings_come_in(nodes: Nodes, client_id: str, said: str | None) -> None:
    await nodes.start("a", "b")
    port = nodes.wires["b", "a"]._to
    assert (await knock(port, client_id, said)).code == NOT_AUTHORIZED
    assert nodes.link("b", "a").connected


async def test_a_node_with_a_will_or_of_3_1_1_is_refused(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    port = nodes.wires["b", "a"]._to
    assert (await knock(port, "$node/b", "plant/b/asks/1", will=wire.Will("t"))).code == NOT_AUTHORIZED
    peer = await Peer.open("127.0.0.1", port, 4)
    await peer.send(wire.connect("$node/b", version=4))
    assert (await peer.expect(wire.CONNACK)).code == 5
    peer.abort()


@pytest.mark.parametrize("client_id", ["$node/b", "$node/x", "$node/"])
async def test_no_client_may_call_itself_a_node(nodes: Nodes, client_id: str) -> None:
    await nodes.start("a", "b")
    port = nodes.brokers["a"].ports[0]
    assert (await knock(port, client_id, "plant/b/asks/1")).code == IDENTIFIER_NOT_VALID


async def test_a_node_says_who_it_is(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await nodes.stop("b")
    connack = await knock(free_of(nodes, "a"), "$node/b", "plant/b/asks/1")
    assert connack.code == 0
    said = dict(each for each in connack.all(wire.USER_PROPERTY) if isinstance(each, tuple))["canopy-node"]
    greeting = read(said)
    assert greeting is not None
    assert (greeting.cluster, greeting.node, greeting.versions) == ("plant", "a", VERSIONS)


async def test_a_link_to_another_node_than_meant_is_refused(stack: AsyncExitStack, tmp_path: Path) -> None:
    nodes = Nodes(stack, tmp_path)
    await nodes.start("a", "b")
    port = nodes.wires["b", "a"]._to
    settings = one("c", f"mqtt://127.0.0.1:{free_port()}", "b", f"mqtt://127.0.0.1:{port}")
    broker = await stack.enter_async_context(Broker(settings))
    assert broker.links is not None
    # It reaches a, which does not know it, in place of b.
    await until(lambda: broker.links is not None and "cluster.nodes" in broker.links.links["$node/b"].trouble)


async def test_access_rules_and_limits_are_not_about_nodes(nodes: Nodes) -> None:
    await nodes.start(
        "a",
        "b",
        access={"default": "deny"},
        rule=[{"user": ["alice"], "action": "all", "filters": ["#"]}],
        authenticator=[{"type": "trust"}],
        mqtt={"allow_anonymous": False},
        limits={"max_subscriptions_per_client": 1, "max_connections": 2},
    )
    subscriber = await nodes.join("b", "s", ("t/1", 1), user="alice")
    await nodes.join("b", "s2", ("t/2", 1), user="alice")
    assert len(nodes.session("a", "b").subscriptions) == 2
    publisher = await nodes.join("a", "p", user="alice")
    await publisher.publish("t/1", b"x", qos=1)
    assert (await subscriber.message()).payload == b"x"
    # The links have taken no client's place.
    await nodes.join("a", "another", user="alice")


async def test_nodes_are_no_clients_in_the_figures(nodes: Nodes) -> None:
    await nodes.start("a", "b", presence={"topic": "here"})
    await nodes.join("a", "client")
    reading = nodes.brokers["a"].figures.read()
    assert (reading.connected, reading.sessions) == (1, 1)
    watcher = await nodes.join("a", "watcher", ("here/#", 1))
    found = {(await watcher.message()).topic for _ in range(2)}
    assert found == {"here/client", "here/watcher"}


async def test_silent_strangers_take_few_descriptors_and_no_client_s_place(nodes: Nodes) -> None:
    await nodes.start("a", "b", limits={"max_connections": 10, "connect_timeout": 0.0})
    broker = nodes.brokers["a"]
    port = free_of(nodes, "a")
    strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STRANGERS)]
    await until(lambda: len(broker.connections) <= MAX_OF_NODE + 1, "the oldest are closed")
    for number in range(10):
        await nodes.join("a", f"client-{number}")
    # A node that comes now gets in as well.
    nodes.link("b", "a").reset()
    await nodes.linked()
    for _, writer in strangers:
        writer.transport.abort()


async def test_strangers_do_not_keep_a_node_out_however_many_come_while_it_is_slow(
    stack: AsyncExitStack, authority: Authority
) -> None:
    """The attacker has a network of addresses, and as many connections as it likes while one handshake is under way."""
    ports = free_port(), free_port()
    a = await stack.enter_async_context(Broker(secure("a", authority, ports[0], "b", ports[1])))
    await until(lambda: trouble(a, "b"), "node a has tried to reach b")
    node = await Slow.begin("127.0.0.1", ports[0], authority)
    for last in range(2, 2 + 2 * MAX_STRANGERS // MAX_OF_STRANGER):
        await crowd(stack, a, ports[0], f"127.0.0.{last}", 8)
    await until(lambda: len(a.connection_table.at_door) == MAX_STRANGERS + 1, "as many as there may be")
    assert (await node.greet("$node/b", "plant/b/asks/1")).code == 0
    node.close()


async def test_one_address_does_not_take_all_places_of_strangers(stack: AsyncExitStack, authority: Authority) -> None:
    """A node that comes from another address than the one at which it is reached is a stranger until it was let in."""
    ports = free_port(), free_port()
    a = await stack.enter_async_context(Broker(secure("a", authority, ports[0], "b", ports[1])))
    node = await Slow.begin("127.0.0.3", ports[0], authority)
    await crowd(stack, a, ports[0], "127.0.0.2", STRANGERS)
    await until(lambda: len(a.connection_table.at_door) == MAX_OF_STRANGER + 1, "as many as there may be")
    assert (await node.greet("$node/b", "plant/b/asks/1")).code == 0
    node.close()


async def crowd(stack: AsyncExitStack, broker: Broker, port: int, host: str, count: int) -> None:
    """Connections from an address that say nothing. All wait to be accepted when the broker has its next turn."""
    before = broker.router.counters.connections
    for _ in range(count):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(host, 0)))
    await until(lambda: broker.router.counters.connections >= before + count, "they are accepted")


class Slow:
    """A node's TLS connection from an address, which stops in the middle of its handshake until it is to `greet`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)

    @classmethod
    async def begin(cls, host: str, port: int, authority: Authority) -> Self:
        """Connect, and send the first part of the handshake."""
        certificate, key = authority.issue("127.0.0.1", common_name="b", file=f"slow-{port}")
        context = ssl.create_default_context(cafile=authority.file)
        context.check_hostname = False
        context.load_cert_chain(certificate, key)
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((host, 0))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", port))
        slow = cls(sock, context)
        with pytest.raises(ssl.SSLWantReadError):
            slow._tls.do_handshake()
        await slow._flush()
        await slow._fill()
        return slow

    async def greet(self, client_id: str, said: str) -> wire.Packet:
        """Go on, and return the CONNACK."""
        await self._until(self._tls.do_handshake)
        self._tls.write(wire.connect(client_id, props=[(wire.USER_PROPERTY, ("canopy-node", said))]))
        await self._flush()
        frame: bytes = await self._until(lambda: self._tls.read(4_096))
        return wire.parse(frame[0] >> 4, frame[0] & 15, frame[2 : 2 + frame[1]], 5)

    def close(self) -> None:
        self._sock.close()

    async def _until(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                found = call()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            else:
                await self._flush()
                return found

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await asyncio.get_running_loop().sock_sendall(self._sock, self._outgoing.read())

    async def _fill(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self._sock, 65_536)
        assert data, "the connection was closed"
        self._incoming.write(data)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secure(
    name: str, authority: Authority, port: int, other: str, other_port: int, common_name: str = "", ca: str = ""
) -> Settings:
    """A node over TLS, whose certificate has this common name (its own)."""
    certificate, key = authority.issue("127.0.0.1", common_name=common_name or name, file=f"{name}-{port}")
    files = {"ca_file": ca or authority.file, "cert_file": certificate, "key_file": key}
    return one(name, f"mqtts://127.0.0.1:{port}", other, f"mqtts://127.0.0.1:{other_port}", **files)


async def test_nodes_on_machines_show_their_certificates(stack: AsyncExitStack, authority: Authority) -> None:
    ports = free_port(), free_port()
    a = await stack.enter_async_context(Broker(secure("a", authority, ports[0], "b", ports[1])))
    b = await stack.enter_async_context(Broker(secure("b", authority, ports[1], "a", ports[0])))
    await both_linked(a, b)
    subscriber = await Peer.join(a.ports[0], "subscriber", ("t", 1))
    publisher = await Peer.join(b.ports[0], "publisher")
    await publisher.publish("t", b"x", qos=1)
    assert (await subscriber.message()).payload == b"x"
    subscriber.abort()
    publisher.abort()


async def test_a_certificate_of_another_name_is_refused_on_both_sides(
    stack: AsyncExitStack, authority: Authority
) -> None:
    ports = free_port(), free_port()
    a = await stack.enter_async_context(Broker(secure("a", authority, ports[0], "b", ports[1])))
    wrong = await stack.enter_async_context(Broker(secure("b", authority, ports[1], "a", ports[0], common_name="x")))
    await until(lambda: 'certificate is that of "x"' in trouble(a, "b"), "a has looked at the certificate of b")
    await until(lambda: trouble(wrong, "a"), "b is refused")
    assert not connected(a, "b")
    assert not connected(wrong, "a")


async def test_a_certificate_of_another_authority_is_refused(
    stack: AsyncExitStack, authority: Authority, tmp_path: Path
) -> None:
    ports = free_port(), free_port()
    other = Authority(tmp_path, "other")
    a = await stack.enter_async_context(Broker(secure("a", authority, ports[0], "b", ports[1])))
    # It trusts the authority of a, and shows a certificate of another one.
    b = await stack.enter_async_context(Broker(secure("b", other, ports[1], "a", ports[0], ca=authority.file)))
    said = "; give all nodes certificates of one authority, and its certificate as cluster.ca_file"
    trusts = f"the authority of cluster.ca_file here has not issued it{said}"
    accepts = f"the authority of its cluster.ca_file has not issued it, or it has expired{said}"
    await until(lambda: trouble(a, "b").endswith(trusts) and trouble(b, "a").endswith(accepts), "both say why")
    assert not connected(a, "b")
    assert not connected(b, "a")


async def test_silent_strangers_at_a_tls_port_keep_no_node_out(stack: AsyncExitStack, authority: Authority) -> None:
    ports = free_port(), free_port()
    a = await stack.enter_async_context(Broker(secure("a", authority, ports[0], "b", ports[1])))
    strangers = [await asyncio.open_connection("127.0.0.1", ports[0]) for _ in range(STRANGERS)]
    await until(lambda: len(a.connection_table.at_door) == MAX_OF_NODE, "as many as there may be")
    b = await stack.enter_async_context(Broker(secure("b", authority, ports[1], "a", ports[0])))
    await both_linked(a, b)
    for _, writer in strangers:
        writer.transport.abort()


async def test_processes_of_one_machine_are_linked_by_unix_sockets(stack: AsyncExitStack, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.sock" for name in "ab"}
    urls = {name: f"mqtt+unix://{path}" for name, path in paths.items()}
    a = await stack.enter_async_context(Broker(one("a", urls["a"], "b", urls["b"])))
    b = await stack.enter_async_context(Broker(one("b", urls["b"], "a", urls["a"])))
    await both_linked(a, b)
    assert stat.S_IMODE(paths["a"].stat().st_mode) == 0o600
    subscriber = await Peer.join(a.ports[0], "subscriber", ("t", 1))
    publisher = await Peer.join(b.ports[0], "publisher")
    await publisher.publish("t", b"x", qos=1)
    assert (await subscriber.message()).payload == b"x"
    subscriber.abort()
    publisher.abort()
    await b.stop()
    assert not paths["b"].exists()


async def test_a_cluster_address_that_is_in_use_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = Broker(one("a", f"mqtt://127.0.0.1:{taken.getsockname()[1]}", "b", "mqtt://127.0.0.1:1"))
        with pytest.raises(Exception, match="in use"):
            await broker.start()
    await broker.stop()


async def test_a_client_cannot_speak_for_a_node(nodes: Nodes) -> None:
    """What a node says of the filters that it holds would have the other one unsubscribe from anything."""
    await nodes.start("a", "b")
    connects = nodes.link("a", "b").connects
    subscriber = await nodes.join("a", "subscriber", ("$node/#", 1), ("t", 1))
    publisher = await nodes.join("b", "publisher")
    for retain in (False, True):
        await publisher.publish("$node/held", b"a/#/not a filter", qos=1, retain=retain)
    await publisher.publish("t", b"fence", qos=1)
    assert (await subscriber.message()).payload == b"fence"
    late = await nodes.join("a", "late", ("$node/held", 1))
    await publisher.publish("t", b"fence", qos=1)
    assert (await subscriber.message()).payload == b"fence"
    assert await late.fence() == []
    assert nodes.link("a", "b").connects == connects


def test_a_greeting_is_read_as_it_was_written() -> None:
    for asks in (False, True):
        for store in ("", "2f8c"):
            greeting = Greeting("plant", "a", asks, (1, 2), store)
            assert read(greeting.text()) == greeting
    greeting = Greeting("plant", "a", True, (1, 2))
    assert greeting.refusal(Greeting("plant", "b", False, (2, 3))) == ""
    assert greeting.refusal(Greeting("plant", "b", False, (3,))) == (
        "it speaks the versions 3 of node links, and this one 1, 2: "
        "upgrade nodes from one release to the next, each of them before the release after that"
    )
    assert read("plant/a/asks") is None
    assert read("plant//asks/1") is None
    assert read("plant/a/asks/1,²") is None


@for_each(
    ("own", "others", "why"),
    [
        ("", "1", "it shares its sessions with other nodes, and this one does not"),
        ("1", "", "it shares no sessions with other nodes, and this one does"),
        ("1", "2", "it has its sessions in another database or schema"),
    ],
)
def test_nodes_with_different_stores_are_not_linked(own: str, others: str, why: str) -> None:
    """One that has its sessions elsewhere would take over nobody's."""
    said = Greeting("plant", "a", store=own).refusal(Greeting("plant", "b", store=others))
    assert said == f"{why}: give all nodes the same store.url and store.name, or none of them a store.url"


def one(name: str, listen: str, other: str, address: str, **cluster: Any) -> Settings:
    """A node that knows one other."""
    return Settings.model_validate(
        {
            "listen": ("mqtt://127.0.0.1:0",),
            "sys": {"interval": 0},
            "shutdown": {"flush_timeout": 0.2},
            "cluster": {
                "name": "plant",
                "node": name,
                "listen": listen,
                "nodes": [{"name": other, "address": address}],
                "link_timeout": 4 * TIMEOUT,
                **cluster,
            },
        }
    )


def free_of(nodes: Nodes, name: str) -> int:
    """The port at which a node listens for others, without a proxy before it."""
    return nodes._ports[name]


def trouble(broker: Broker, other: str) -> str:
    return "" if broker.links is None else broker.links.links[f"$node/{other}"].trouble


def connected(broker: Broker, other: str) -> bool:
    return broker.links is not None and broker.links.links[f"$node/{other}"].connected


async def both_linked(a: Broker, b: Broker) -> None:
    await until(lambda: connected(a, "b") and connected(b, "a"), "both are linked")
