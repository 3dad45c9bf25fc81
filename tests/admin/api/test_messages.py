"""Retained messages and publishing over HTTP, against what clients see."""

from __future__ import annotations

import base64
from typing import Any, Final
from urllib.parse import quote

import pytest

from canopy_mqtt import Broker
from tests.admin.api.conftest import Api
from tests.e2e.wire import Peer

RETAINED: Final = "/mqtt/retainer/messages"
ONE: Final = "/mqtt/retainer/message/{topic}"


def at(topic: str) -> str:
    return ONE.replace("{topic}", quote(topic, safe=""))


async def test_what_is_published_reaches_who_has_subscribed(api: Api, broker: Broker) -> None:
    peer = await Peer.join(broker.ports[0], "a")
    await peer.subscribe(("x/#", 1))
    properties = {"content_type": "text/plain", "user_properties": {"a": "b"}, "message_expiry_interval": 60}
    body = {"topic": "x/y", "payload": "ü", "qos": 1, "retain": True, "properties": properties}
    assert await api.call("POST", "/publish", body) == (200, {"matched": 1, "retained": True})
    message = await peer.message()
    assert (message.topic, message.payload, message.qos) == ("x/y", "ü".encode(), 1)
    assert (message.get(3), message.all(38), message.number(2)) == ("text/plain", [("a", "b")], 60)
    found = await api.get(at("x/y"), ONE)
    assert base64.b64decode(found["payload"]) == "ü".encode()
    assert (found["content_type"], found["user_properties"], found["from_clientid"]) == ("text/plain", [["a", "b"]], "")
    assert 58 <= found["expires_in"] <= 60
    peer.abort()


async def test_any_bytes_can_be_published(api: Api, broker: Broker) -> None:
    body = {"topic": "x", "payload": base64.b64encode(b"\0\xff").decode(), "payload_encoding": "base64", "retain": True}
    assert (await api.call("POST", "/publish", body))[1]["matched"] == 0
    assert base64.b64decode((await api.get(at("x"), ONE))["payload"]) == b"\0\xff"
    body |= {"payload": ""}
    assert await api.call("POST", "/publish", body) == (200, {"matched": 0, "retained": False})
    assert not len(broker.router.retained)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"topic": ""}, 400),
        ({"topic": "a/+"}, 400),
        ({"topic": "a\0b"}, 400),
        ({"topic": "\ud800"}, 400),
        ({"topic": "/".join("a" * 200)}, 400),
        ({"topic": "$SYS/broker/version"}, 400),
        ({"topic": "a\x1b[31m"}, 400),
        ({"topic": "a", "qos": 3}, 400),
        ({"topic": "a", "payload": "a", "payload_encoding": "base64"}, 400),
        ({"topic": "a", "properties": {"response_topic": "b/#"}}, 400),
        ({"topic": "a", "payload": "x" * 10_001}, 413),
        ({"payload": "a"}, 400),
    ],
)
async def test_what_no_client_could_publish_is_refused(api: Api, body: dict[str, Any], status: int) -> None:
    assert (await api.call("POST", "/publish", body))[0] == status


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_each_retained_message_is_on_one_page(api: Api, broker: Broker, limit: int) -> None:
    peer = await Peer.join(broker.ports[0], "a")
    topics = sorted(f"{first}/{number}" for first in "ab" for number in range(5))
    for topic in reversed(topics):
        await peer.publish(topic, b"xyz", qos=1, retain=True)
    await peer.fence()
    found = await api.all(RETAINED, limit)
    assert [entry["topic"] for entry in found] == topics
    assert found[0] == {"topic": "a/0", "qos": 1, "payload_size": 3, "from_clientid": "a", "expires_in": None}
    assert [entry["topic"] for entry in await api.all(RETAINED, limit, topic="b/+")] == topics[5:]
    peer.abort()


async def test_a_retained_message_is_cleared_without_a_word_to_subscribers(api: Api, broker: Broker) -> None:
    await api.call("POST", "/publish", {"topic": "a/b", "payload": "x", "retain": True})
    peer = await Peer.join(broker.ports[0], "a")
    await peer.subscribe("a/#")
    await peer.message()
    assert (await api.call("DELETE", at("a/b")))[0] == 204
    assert await peer.fence() == []
    assert (await api.call("DELETE", at("a/b")))[0] == 404
    assert (await api.call("GET", at("a/b")))[0] == 404
    assert (await api.call("GET", RETAINED, topic="a/#/b"))[0] == 400
    peer.abort()
