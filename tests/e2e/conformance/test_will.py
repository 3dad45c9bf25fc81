"""The Will: when it is published and when not, how, and with what (sections 3.1.2.5 to 3.1.2.7, 3.1.3.2, 3.14)."""

from __future__ import annotations

from tests.e2e import wire
from tests.e2e.conformance.conftest import Elapse, Joined, Opened, Unique
from tests.e2e.conformance.outcomes import BAD_TOPIC_NAME, PROTOCOL_ERROR, UNREADABLE, alive, thrown_out
from tests.e2e.wire import Properties, Will
from tests.support.runs import for_each


async def test_a_lost_connection(joined: Joined, unique: Unique, version: int) -> None:
    """The Will is kept, and published once the connection is gone; once.

    [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT3-3.1.2-8] [MQTT-3.1.2-10]
    """
    topic, name = unique("w"), unique("c")
    watcher = await joined()
    await watcher.subscribe(topic)
    peer = await joined(name, version=version, will=Will(topic, b"farewell"))
    await alive(watcher)
    peer.abort()
    found = await watcher.message()
    assert (found.topic, found.payload, found.retain) == (topic, b"farewell", False)
    again = await joined(name, version=version)
    again.abort()
    await joined(name, version=version)
    await alive(watcher)


@for_each("qos", [0, 1, 2])
@for_each("retain", [False, True])
async def test_qos_and_retain(joined: Joined, unique: Unique, version: int, qos: int, retain: bool) -> None:
    """Both are the Will's own. [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.2-12]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe((topic, 2))
    peer = await joined(version=version, will=Will(topic, qos=qos, retain=retain))
    peer.abort()
    assert (await watcher.message()).qos == qos
    late = await joined()
    await late.subscribe((topic, 2))
    if retain:
        kept = await late.message()
        assert (kept.qos, kept.retain, kept.payload) == (qos, True, b"gone")
    await alive(late)


async def test_an_empty_will(joined: Joined, unique: Unique, version: int) -> None:
    """A payload of no bytes is a payload; retained, it clears the topic. [MQTT-3.1.2-7] [MQTT-3.3.1-6]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.publish(topic, b"kept", retain=True)
    await watcher.subscribe((topic, wire.RETAIN_NEVER))
    peer = await joined(version=version, will=Will(topic, b"", retain=True))
    peer.abort()
    assert (await watcher.message()).payload == b""
    late = await joined()
    await late.subscribe(topic)
    await alive(late)


async def test_a_normal_disconnect(joined: Joined, unique: Unique, version: int, elapse: Elapse) -> None:
    """DISCONNECT takes the Will away, delayed or not. [MQTT-3.14.4-3] [MQTT-3.1.2-10] [MQTT-3.1.2-8]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    await (await joined(version=version, will=Will(topic))).disconnect()
    if version == 5:
        delayed = Will(topic, properties=[(wire.WILL_DELAY, 1)])
        await (await joined(props=[(wire.SESSION_EXPIRY, 60)], will=delayed)).disconnect()
        await elapse(2)
    await alive(watcher)


async def test_a_disconnect_that_keeps_the_will(joined: Joined, unique: Unique) -> None:
    """DISCONNECT 0x04 asks for it, and any other reason but 0x00 leaves it in place. [MQTT-3.1.2-8]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    for code in (0x04, 0x80, 0x93):
        await (await joined(will=Will(topic, bytes([code])))).disconnect(code)
        assert (await watcher.message()).payload == bytes([code])


async def test_a_disconnect_with_reason_0_written_out(joined: Joined, unique: Unique) -> None:
    """Long or short, 0x00 is 0x00. [MQTT-3.14.4-3]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    for body in (b"\0", b"\0\0", b"\0\x05\x11\0\0\0\0"):
        peer = await joined(will=Will(topic))
        await peer.send(wire.packet(wire.DISCONNECT, 0, body))
        assert await peer.closed() == []
    await alive(watcher)


async def test_a_protocol_error(joined: Joined, unique: Unique, version: int) -> None:
    """The Will is published when the broker closes because of the client's fault. [MQTT-3.1.2-8]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    peer = await joined(version=version, will=Will(topic))
    await peer.send(wire.connect("again", version=version))
    await thrown_out(peer, [PROTOCOL_ERROR])
    assert (await watcher.message()).payload == b"gone"


@for_each("clean", [True, False])
async def test_taken_over_with_a_delay(joined: Joined, unique: Unique, clean: bool) -> None:
    """A clean start ends the old session and so publishes its Will; going on with the session stops it.

    [MQTT-3.1.2-8] [MQTT-3.1.3-9]
    """
    topic, name = unique("w"), unique("c")
    watcher = await joined()
    await watcher.subscribe(topic)
    will = Will(topic, b"old", properties=[(wire.WILL_DELAY, 3600)])
    await joined(name, props=[(wire.SESSION_EXPIRY, 3600)], will=will)
    await joined(name, clean=clean)
    if clean:
        assert (await watcher.message()).payload == b"old"
    await alive(watcher)


async def test_back_within_the_delay(joined: Joined, unique: Unique, elapse: Elapse) -> None:
    """A new connection to the session in time, and there is no Will. [MQTT-3.1.3-9] [MQTT-3.1.2-8]"""
    topic, name = unique("w"), unique("c")
    watcher = await joined()
    await watcher.subscribe(topic)
    keep: Properties = [(wire.SESSION_EXPIRY, 60)]
    peer = await joined(name, props=keep, will=Will(topic, properties=[(wire.WILL_DELAY, 2)]))
    peer.abort()
    again = await joined(name, clean=False, props=keep)
    assert again.connack.session_present
    await elapse(3)
    await alive(watcher)
    again.abort()
    await joined(name, clean=False)
    await alive(watcher)


async def test_the_session_ends_before_the_delay(joined: Joined, unique: Unique) -> None:
    """The end of the session is the latest moment for the Will. [MQTT-3.1.2-8]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    slow = Will(topic, properties=[(wire.WILL_DELAY, 3600)])
    (await joined(will=slow)).abort()
    assert (await watcher.message()).payload == b"gone"
    (await joined(props=[(wire.SESSION_EXPIRY, 1)], will=slow)).abort()
    assert (await watcher.message()).payload == b"gone"


async def test_will_properties(joined: Joined, unique: Unique) -> None:
    """They are published with it, user properties in their order. [MQTT-3.1.3-10] [MQTT-3.3.2-17] [MQTT-3.3.2-18]"""
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    user: Properties = [(wire.USER_PROPERTY, pair) for pair in (("b", "1"), ("a", "2"), ("b", "1"), ("", ""))]
    single: Properties = [
        (wire.PAYLOAD_FORMAT, 1),
        (wire.CONTENT_TYPE, "text/plain"),
        (wire.RESPONSE_TOPIC, "answers/here"),
        (wire.CORRELATION_DATA, b"\0\xff"),
    ]
    will = Will(topic, b"text", properties=[(wire.MESSAGE_EXPIRY, 100), *user, *single])
    (await joined(will=will)).abort()
    found = await watcher.message()
    assert [item for item in found.properties if item[0] == wire.USER_PROPERTY] == user
    assert {item for item in found.properties if item[0] in dict(single)} == set(single)
    assert 95 <= found.number(wire.MESSAGE_EXPIRY) <= 100
    assert found.get(wire.WILL_DELAY) is None


async def test_a_will_topic_with_wildcards(opened: Opened, joined: Joined, unique: Unique, version: int) -> None:
    """Such a Will is never published: it is refused with its CONNECT, or dropped. [MQTT-4.7.0-1]"""
    watcher = await joined()
    mark = unique("w")
    await watcher.subscribe(f"{mark}/#")
    peer = await opened(version)
    await peer.send(wire.connect(mark, version=version, will=Will(f"{mark}/#")))
    try:
        answer = await peer.recv()
    except wire.Closed:
        assert version == 4
    else:
        assert answer.kind == wire.CONNACK
        assert answer.code in ([0, *UNREADABLE, BAD_TOPIC_NAME] if version == 5 else range(6))
    peer.abort()
    await alive(watcher)
