"""The sink's connection and its messages: what is sent, when a task may end, and what makes it fail."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import types as t

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.mqtt.message import Columns, Message, document, message
from canopy_pipeline.mqtt.mqtt_options import sink_options
from canopy_pipeline.mqtt.publisher import Publisher
from tests.pipeline.mqtt.conftest import client, until
from tests.pipeline.mqtt.scripted import Peer, scripted
from tests.support.runs import for_each

URL = {"url": "mqtt://127.0.0.1:1"}


def publisher(port: int, **options: str) -> Publisher:
    said = {"url": f"mqtt://127.0.0.1:{port}", "connect_timeout": "10"} | options
    return Publisher(sink_options(said), "publisher")


def simple(qos: int = 1, payload: bytes = b"x", retain: bool = False) -> Message:
    return Message("t", payload, qos, retain, [], {})


@pytest.mark.parametrize("broker", ["canopy", "mosquitto"])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_everything_arrives_in_order(brokers: Callable[[str], int], broker: str, version: str) -> None:
    port = brokers(broker)
    with client(port) as receiver:
        got: list[Any] = []
        granted: list[int] = []
        receiver.on_message = lambda _c, _d, each: got.append(each)
        receiver.on_subscribe = lambda _c, _d, mid, _r, _p: granted.append(mid)
        receiver.subscribe(f"out/{broker}/{version}", 2)
        until("SUBACK", lambda: granted)
        it = publisher(port, window="7", version=version)
        properties = {"content_type": "text/plain", "payload_format": 1, "message_expiry": 60}
        for each in range(60):
            tags = [("canopy-row", str(each))]
            it.publish(Message(f"out/{broker}/{version}", b"%d" % each, each % 3, False, tags, properties))
            assert len(it._waiting) <= 7
        it.finish()
        it.close()
        until("60 messages", lambda: len(got) >= 60)
        for qos in (0, 1, 2):
            assert [each.payload for each in got if each.qos == qos] == [b"%d" % each for each in range(qos, 60, 3)]
        if version == "5":
            assert got[0].properties.UserProperty == [("canopy-row", "0")]
            assert got[0].properties.ContentType == "text/plain"


@for_each(("qos", "refusal"), [(1, b"\x40\x03\x00\x01\x87"), (2, b"\x50\x03\x00\x01\x87")])
def test_a_refused_message_fails_the_task(qos: int, refusal: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.welcome()
        peer.receive()
        peer.send(refusal)
        peer.receive()

    with scripted(script) as port:
        it = publisher(port)
        it.publish(simple(qos))
        with pytest.raises(PipelineError) as refused:
            it.finish()
        it.close()
        assert str(refused.value).endswith("the broker refuses a message to 't': Not authorized (0x87)")


def test_what_was_not_acknowledged_is_sent_again() -> None:
    def lost(peer: Peer) -> None:
        peer.welcome()
        assert peer.receive()[0] == 0x32

    def again(peer: Peer) -> None:
        peer.welcome()
        packet = peer.receive()
        assert packet[0] & 0xF0 == 0x30
        peer.send(b"\x40\x02" + packet[5:7])
        peer.receive()

    with scripted(lost, again) as port:
        it = publisher(port)
        it.publish(simple())
        it.finish()
        assert not it._waiting
        it.close()


def test_a_broker_that_never_acknowledges() -> None:
    def script(peer: Peer) -> None:
        peer.welcome()
        while peer.receive():
            pass

    with scripted(script) as port:
        it = publisher(port, connect_timeout="0.2")
        it.publish(simple())
        with pytest.raises(PipelineError, match=r"no acknowledgement for 0\.2 s; 1 message without one"):
            it.finish()
        it.close()


def test_a_broker_that_closes_at_every_message() -> None:
    def script(peer: Peer) -> None:
        peer.welcome()
        peer.receive()

    with scripted(*[script] * 5) as port:
        it = publisher(port)
        it.publish(simple())
        with pytest.raises(PipelineError, match="the broker closed the connection; 5 times without an acknowledgement"):
            it.finish()
        it.close()


@for_each(
    ("limit", "sent", "told"),
    [
        (b"\x24\x00", simple(1), "the broker takes no QoS 1: set option 'qos'"),
        (b"\x25\x00", simple(retain=True), "the broker takes no retained messages"),
        (b"\x27\x00\x00\x01\x00", simple(payload=b"x" * 300), "more than the broker's Maximum Packet Size of 256"),
    ],
)
def test_what_the_broker_does_not_take_is_not_sent(limit: bytes, sent: Message, told: str) -> None:
    def script(peer: Peer) -> None:
        peer.welcome(bytes([0x20, 3 + len(limit), 0, 0, len(limit)]) + limit)
        assert peer.receive()[:1] in (b"\xe0", b"")

    with scripted(script) as port:
        it = publisher(port)
        with pytest.raises(PipelineError, match=told):
            it.publish(sent)
        it.close()


def test_the_brokers_receive_maximum_bounds_the_window() -> None:
    def script(peer: Peer) -> None:
        peer.welcome(b"\x20\x06\x00\x00\x03\x21\x00\x02")
        for _ in range(3):
            first, second = peer.receive(), peer.receive()
            assert peer.silent()
            for packet in (first, second):
                peer.send(b"\x40\x02" + packet[5:7])
        peer.receive()

    with scripted(script) as port:
        it = publisher(port)
        for _ in range(6):
            it.publish(simple())
        it.finish()
        it.close()


FIELDS = t.StructType(
    [
        t.StructField("topic", t.StringType()),
        t.StructField("payload", t.StringType()),
        t.StructField("qos", t.IntegerType()),
        t.StructField("properties", t.ArrayType(t.StructType.fromJson(
            {"type": "struct", "fields": [
                {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                {"name": "value", "type": "string", "nullable": True, "metadata": {}},
            ]}
        ))),
        t.StructField("message_expiry", t.LongType()),
        t.StructField("recv_ns", t.LongType()),
    ]
)  # fmt: skip


def test_a_row_as_a_message() -> None:
    options = sink_options(URL | {"retain": "true"})
    columns = Columns.of(options, FIELDS)
    values = {
        "topic": "a/b", "payload": "é", "qos": None, "message_expiry": 9, "recv_ns": 1,
        "properties": [{"key": "k", "value": "v"}, {"key": "canopy-row", "value": "of an earlier sink"}],
    }  # fmt: skip
    found = message(values, options, columns, [("canopy-row", "3")])
    assert found == Message(
        "a/b", "é".encode(), 1, True, [("k", "v"), ("canopy-row", "3")], {"message_expiry": 9}
    )  # fmt: skip
    assert message(values | {"payload": None, "qos": 2}, options, columns).payload == b""


@for_each(
    ("changed", "told"),
    [
        ({"topic": None}, "column 'topic' has None: it is null"),
        ({"topic": "a/#"}, "column 'topic' has 'a/#': topic name holds a wildcard"),
        ({"qos": 3}, r"column 'qos' has 3 \(topic 'a'\): it is 0, 1 or 2"),
        ({"message_expiry": -1}, "column 'message_expiry' has -1"),
    ],
)
def test_a_row_that_is_no_message(changed: dict[str, Any], told: str) -> None:
    options = sink_options(URL)
    values = dict.fromkeys(FIELDS.fieldNames()) | {"topic": "a"} | changed
    with pytest.raises(PipelineError, match=told):
        message(values, options, Columns.of(options, FIELDS))


@for_each(
    ("options", "ddl", "told"),
    [
        ({}, {"payload": "string"}, "there is no column 'topic': name one so, or set option 'topic'"),
        ({}, {"topic": "string"}, "there is no column 'payload': name one so, or set option 'payload_json'"),
        ({}, {"topic": "string", "payload": "double"}, "column 'payload' is double: the sink mqtt takes binary or str"),
        ({}, {"topic": "string", "payload": "string", "n": "long"}, "column 'n' has no meaning for the sink mqtt"),
        ({"payload_json": "true"}, {"topic": "string"}, "no column is left for the payload"),
    ],
)
def test_columns_that_do_not_fit(options: dict[str, str], ddl: dict[str, str], told: str) -> None:
    schema = t.StructType.fromJson(
        {"type": "struct", "fields": [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in ddl.items()]}
    )
    with pytest.raises(MisuseError, match=told):
        Columns.of(sink_options(URL | options), schema)


def test_a_row_as_json() -> None:
    values = {
        "n": 1, "f": float("nan"), "s": "ü", "b": b"\x00", "d": decimal.Decimal("1.50"), "none": None,
        "t": datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC), "l": [{"x": 1.5}],
    }  # fmt: skip
    assert document(values) == (
        '{"n":1,"f":null,"s":"ü","b":"AA==","d":"1.50","none":null,"t":"2026-11-21T00:00:00+00:00","l":[{"x":1.5}]}'
    )
