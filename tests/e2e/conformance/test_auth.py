"""Enhanced authentication (chapters 3.15 and 4.12), with a method made here, and what the unauthorized get (3.3.5).

The method "echo": the server says `challenge`, and is content with the answer `response`; `again` asks once more,
anything else is refused.
"""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import FORBIDDEN, AccessControl, AuthExchange, AuthMethod
from canopy_mqtt.core.principal import Principal
from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Opened, Unique
from tests.e2e.conformance.outcomes import PROTOCOL_ERROR, UNREADABLE, alive, refused, thrown_out
from tests.e2e.conftest import MOUNT, Address, StartBroker
from tests.e2e.wire import AUTH, CONNACK, PUBACK, PUBLISH, PUBREC, Packet, Peer, Properties
from tests.support.runs import for_each

SUCCESS, CONTINUE, AGAIN = 0x00, 0x18, 0x19
ECHO: wire.Property = (wire.AUTH_METHOD, "echo")


class EchoExchange(AuthExchange):
    """One run of the method."""

    def start(self, connect: Connect, data: bytes | None) -> None:
        del connect
        self.proceed(data)

    def proceed(self, data: bytes | None) -> None:
        self.reason_code, self.data = 0x87, None
        if data in (None, b"again"):
            self.reason_code, self.data = CONTINUE, b"challenge"
        elif data == b"response":
            self.reason_code, self.data = SUCCESS, b"welcome"

    def again(self, data: bytes | None) -> None:
        self.proceed(data)


class Echo(AuthMethod):
    """The method by its name."""

    def begin(self) -> AuthExchange:
        return EchoExchange()


def answer(code: int, data: bytes, method: str = "echo") -> bytes:
    """An AUTH of the client."""
    return wire.auth(code, [(wire.AUTH_METHOD, method), (wire.AUTH_DATA, data)])


async def challenged(opened: Opened, at: Address, props: Properties = (), client_id: str = "c") -> Peer:
    """A connection that was asked for its response."""
    peer = await opened(at=at)
    await peer.send(wire.connect(client_id, props=[ECHO, *props]))
    check(await peer.expect(AUTH), CONTINUE, b"challenge")
    return peer


def check(found: Packet, code: int, data: bytes | None) -> None:
    """Each packet of the exchange names the method, and has nothing in it that is not its own."""
    assert found.code == code
    assert found.get(wire.AUTH_METHOD) == "echo"
    assert found.get(wire.AUTH_DATA) == data


async def test_an_exchange(opened: Opened, start_broker: StartBroker) -> None:
    """AUTH 0x18 there and back as often as it takes, then CONNACK; each names the method.

    [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-3.15.2-1] [MQTT-3.2.0-1]
    """
    peer = await challenged(opened, await start_broker(auth_methods={"echo": Echo()}))
    for _ in range(3):
        await peer.send(answer(CONTINUE, b"again"))
        check(await peer.expect(AUTH), CONTINUE, b"challenge")
    await peer.send(answer(CONTINUE, b"response"))
    check(await peer.expect(CONNACK), SUCCESS, b"welcome")
    await alive(peer)


async def test_an_exchange_that_fails(opened: Opened, start_broker: StartBroker) -> None:
    """At the first step or later: a CONNACK that refuses, and closed. [MQTT-4.12.0-4]"""
    at = await start_broker(auth_methods={"echo": Echo()})
    peer = await challenged(opened, at)
    await peer.send(answer(CONTINUE, b"wrong"), wire.PING)
    await refused(peer, [0x87])
    peer = await opened(at=at)
    await peer.send(wire.connect("c", props=[ECHO, (wire.AUTH_DATA, b"wrong")]))
    await refused(peer, [0x87])


@for_each(
    "packet",
    [
        pytest.param(answer(SUCCESS, b"response"), id="reason 0x00 [MQTT-4.12.0-3]"),
        pytest.param(answer(AGAIN, b"response"), id="reason 0x19 [MQTT-4.12.0-3]"),
        pytest.param(answer(0x80, b"response"), id="reason 0x80 [MQTT-3.15.2-1]"),
        pytest.param(answer(CONTINUE, b"response", "other"), id="another method [MQTT-4.12.0-5]"),
        pytest.param(wire.auth(CONTINUE, [(wire.AUTH_DATA, b"response")]), id="no method [MQTT-4.12.0-5]"),
        pytest.param(wire.packet(AUTH, 0), id="nothing at all [MQTT-4.12.0-5]"),
        pytest.param(wire.PING, id="PINGREQ"),
        pytest.param(wire.publish("t", b"x"), id="PUBLISH"),
        pytest.param(wire.connect("c", props=[ECHO]), id="CONNECT"),
    ],
)
async def test_what_may_not_come_in_an_exchange(opened: Opened, start_broker: StartBroker, packet: bytes) -> None:
    """It ends in a refusal, and no DISCONNECT before a CONNACK. [MQTT-4.12.0-4] [MQTT-3.1.2-30] [MQTT-3.14.0-1]"""
    peer = await challenged(opened, await start_broker(auth_methods={"echo": Echo()}))
    await peer.send(packet)
    await refused(peer, [0, *UNREADABLE, 0x87, 0x8C])


async def test_nothing_is_done_before_the_end_of_the_exchange(
    opened: Opened, joined: Joined, start_broker: StartBroker, unique: Unique
) -> None:
    """A client that is only trying takes over nobody's session. [MQTT-3.1.4-2]"""
    at = await start_broker(auth_methods={"echo": Echo()})
    name = unique("c")
    there = await joined(name, at=at)
    peer = await challenged(opened, at, client_id=name)
    await peer.send(answer(CONTINUE, b"wrong"))
    await refused(peer, [0x87])
    await alive(there)


async def test_authenticating_again(opened: Opened, start_broker: StartBroker) -> None:
    """The client begins it at any time; the connection works meanwhile and after. [MQTT-4.12.1-1] [MQTT-4.12.0-5]"""
    peer = await challenged(opened, await start_broker(auth_methods={"echo": Echo()}))
    await peer.send(answer(CONTINUE, b"response"))
    check(await peer.expect(CONNACK), SUCCESS, b"welcome")
    for _ in range(2):
        await peer.send(answer(AGAIN, b"again"))
        check(await peer.expect(AUTH), CONTINUE, b"challenge")
        await alive(peer)
        await peer.send(answer(CONTINUE, b"response"))
        check(await peer.expect(AUTH), SUCCESS, b"welcome")
    await alive(peer)


@for_each(
    ("packets", "codes"),
    [
        pytest.param([answer(AGAIN, b"wrong")], [0x87], id="refused at once"),
        pytest.param([answer(AGAIN, b"again"), answer(CONTINUE, b"wrong")], [0x87], id="refused later"),
        pytest.param([answer(AGAIN, b"response", "other")], [PROTOCOL_ERROR, 0x8C], id="another method"),
        pytest.param([answer(CONTINUE, b"response")], [PROTOCOL_ERROR], id="continued, never begun"),
    ],
)
async def test_authenticating_again_in_vain(
    opened: Opened, start_broker: StartBroker, packets: list[bytes], codes: list[int]
) -> None:
    """DISCONNECT, and closed. [MQTT-4.12.1-1] [MQTT-4.12.1-2]"""
    peer = await challenged(opened, await start_broker(auth_methods={"echo": Echo()}))
    await peer.send(answer(CONTINUE, b"response"))
    await peer.expect(CONNACK)
    await peer.send(*packets)
    assert all(one.kind == AUTH for one in await thrown_out(peer, codes))


async def test_auth_fits_the_clients_maximum(opened: Opened, start_broker: StartBroker) -> None:
    """No reason string or user property makes an AUTH, or a refusal, too large. [MQTT-3.15.2-2] [MQTT-3.15.2-3]"""
    at = await start_broker(auth_methods={"echo": Echo()})
    probe = await opened(at=at)
    await probe.send(wire.connect("c", props=[ECHO]))
    size = (await probe.expect(AUTH)).size
    peer = await challenged(opened, at, [(wire.MAXIMUM_PACKET_SIZE, size)])
    await peer.send(answer(CONTINUE, b"again"))
    assert (await peer.expect(AUTH)).size <= size
    await peer.send(answer(CONTINUE, b"wrong"))
    assert [one.size <= size for one in await peer.closed()] == [True]


# -------------------------------------------------------------------------------------------------------- authorization


class Rules(AccessControl):
    """Topics that begin with `no` are nobody's, until `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.open = False

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, qos, retain
        return self.open or not topic.startswith(MOUNT + "no")

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        del principal
        return FORBIDDEN if topic_filter.startswith(MOUNT + "no") else qos


async def test_an_unauthorized_publish_in_5(joined: Joined, start_broker: StartBroker) -> None:
    """PUBACK and PUBREC say 0x87, nobody gets the message, and the connection stays. [MQTT-3.4.2-1] [MQTT-3.5.2-1]"""
    at = await start_broker(access_control=Rules())
    watcher, peer = await joined(at=at), await joined(at=at)
    await watcher.subscribe("#")
    await peer.publish("no/0", b"x")
    assert await peer.publish("no/1", b"x", qos=1) == 0x87
    assert await peer.publish("no/2", b"x", qos=2) == 0x87
    await alive(watcher)
    await alive(peer)


async def test_an_unauthorized_publish_in_311(joined: Joined, start_broker: StartBroker) -> None:
    """Acknowledged as usual or closed; nobody gets the message. [MQTT3-3.3.5-2]"""
    at = await start_broker(access_control=Rules())
    watcher = await joined(at=at)
    await watcher.subscribe("#")
    for qos in (1, 2):
        peer = await joined(version=4, at=at)
        await peer.send(wire.publish("no/x", b"x", version=4, qos=qos, packet_id=1))
        try:
            found = await peer.recv()
        except wire.Closed:
            continue
        assert (found.kind, found.packet_id) == (PUBACK if qos == 1 else PUBREC, 1)
        if qos == 2:
            await peer.send(wire.ack(wire.PUBREL, 1, version=4))
            assert (await peer.expect(wire.PUBCOMP)).packet_id == 1
        await alive(peer)
    await alive(watcher)


async def test_a_refused_qos_2_publish_frees_its_identifier(joined: Joined, start_broker: StartBroker) -> None:
    """After a PUBREC of 0x80 or more the same identifier is a new message. [MQTT-4.3.3-9]"""
    rules = Rules()
    at = await start_broker(access_control=rules)
    watcher, peer = await joined(at=at), await joined(at=at)
    await watcher.subscribe(("#", 2))
    await peer.send(wire.publish("no/x", b"refused", qos=2, packet_id=3))
    assert (await peer.expect(PUBREC)).code == 0x87
    rules.open = True
    await peer.send(wire.publish("no/x", b"new", qos=2, packet_id=3))
    assert (await peer.expect(PUBREC)).code == 0
    await peer.send(wire.ack(wire.PUBREL, 3))
    done = await peer.expect(wire.PUBCOMP)
    assert (done.packet_id, done.code) == (3, 0)
    assert (await watcher.message()).payload == b"new"


async def test_an_unauthorized_subscribe(joined: Joined, start_broker: StartBroker, version: int) -> None:
    """A failure code in its place, the other filters as asked. [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT3-3.9.3-2]"""
    at = await start_broker(access_control=Rules())
    peer = await joined(version=version, at=at)
    failed = 0x87 if version == 5 else 0x80
    assert await peer.subscribe(("a", 1), ("no/x", 2), ("b", 2)) == (1, failed, 2)
    await peer.send(wire.publish("b", b"x", version=version))
    assert (await peer.expect(PUBLISH)).topic == "b"
