"""Messages as traces of OpenTelemetry: what of them is told, how it hangs together, and what bounds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from canopy_mqtt import Broker, Settings
from canopy_mqtt.observe import spans as module
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.observe.spans import MARKER, Spans, parent_of
from canopy_mqtt.settings import Otel
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.runs import for_each
from tests.support.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
CARRIED: list[tuple[int, wire.Value]] = [(wire.USER_PROPERTY, ("traceparent", PARENT))]


@asynccontextmanager
async def telling(monkeypatch: pytest.MonkeyPatch, **otel: Any) -> AsyncIterator[tuple[Broker, InMemorySpanExporter]]:
    """A broker that tells an exporter of the test's."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(module, "OTLPSpanExporter", lambda **_: exporter)
    wanted = {
        "listen": ("mqtt://127.0.0.1:0",),
        "mqtt": {"topic_alias_outbound": 10},
        "sys": {"interval": 0.0},
        "shutdown": {"flush_timeout": 0.0},
        "otel": {"endpoint": "http://127.0.0.1:1/v1/traces", "sample": 1.0, **otel},
    }
    async with Broker(Settings.model_validate(wanted)) as broker:
        yield broker, exporter


def finished(broker: Broker, exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    assert broker.traces.spans is not None
    broker.traces.spans._provider.force_flush()
    return list(exporter.get_finished_spans())


async def test_from_the_publish_to_each_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    async with telling(monkeypatch) as (broker, exporter):
        port = broker.ports[0]
        publisher = await Peer.join(port, "publisher")
        one, other = await Peer.join(port, "one", ("t/#", 1)), await Peer.join(port, "other", "t/1")
        await publisher.publish("t/1", b"payload", qos=1, props=CARRIED)
        for peer in (one, other):
            message = await peer.message()
            # A subscriber finds what the publisher has sent.
            assert message.all(wire.USER_PROPERTY) == [("traceparent", PARENT)]
        await publisher.publish("t/1", b"not traced", qos=1)
        await one.message()
        spans = await asyncio.to_thread(finished, broker, exporter)
        (receive,) = [span for span in spans if span.name == "receive"]
        delivered = [span for span in spans if span.name == "deliver"]
        assert len(spans) == 3
        context, parent = receive.get_span_context(), receive.parent
        assert context is not None
        assert parent is not None
        assert (f"{context.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)
        assert receive.attributes is not None
        assert dict(receive.attributes) == {
            "messaging.system": "mqtt", "messaging.operation.name": "receive", "messaging.client.id": "publisher",
            "messaging.destination.name": "t/1", "messaging.message.body.size": 7, "mqtt.qos": 1,
            "mqtt.retain": False, "mqtt.dup": False,
        }  # fmt: skip
        assert {span.attributes["messaging.client.id"] for span in delivered if span.attributes} == {"one", "other"}
        for span in delivered:
            assert span.parent is not None
            assert span.parent.span_id == context.span_id
            assert span.start_time == receive.start_time
            assert span.end_time is not None
            assert receive.start_time is not None
            assert span.end_time >= receive.start_time
        for peer in (publisher, one, other):
            peer.abort()


async def test_a_delivery_under_an_alias_has_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async with telling(monkeypatch) as (broker, exporter):
        publisher = await Peer.join(broker.ports[0], "publisher")
        subscriber = await Peer.join(broker.ports[0], "s", ("t", 1), props=[(wire.TOPIC_ALIAS_MAXIMUM, 5)])
        for _ in range(2):
            await publisher.publish("t", b"x", qos=1, props=CARRIED)
        first, second = await subscriber.message(), await subscriber.message()
        assert (first.topic, second.topic) == ("t", "")
        spans = await asyncio.to_thread(finished, broker, exporter)
        topics = [span.attributes["messaging.destination.name"] for span in spans if span.attributes]
        assert topics == ["t"] * 4
        for peer in (publisher, subscriber):
            peer.abort()


async def test_no_more_in_a_second_than_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    async with telling(monkeypatch, max_rate=3) as (broker, exporter):
        publisher = await Peer.join(broker.ports[0], "publisher")
        for _ in range(10):
            await publisher.publish("t", b"x", props=CARRIED)
        assert broker.traces.spans is not None
        (left_out,) = [figure for figure in FIGURES if figure.name == "spans_left_out"]
        assert list(left_out.samples(broker.figures.read())) == [((), 7)]
        assert len(await asyncio.to_thread(finished, broker, exporter)) == 3
        publisher.abort()


async def test_a_trace_of_packets_begins_and_ends_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with telling(monkeypatch) as (broker, exporter):
        client = await Peer.join(broker.ports[0], "c")
        trace = broker.traces.start("clientid", "c")
        tracer = next(iter(broker.traces._tracers.values()))
        await until(lambda: tracer.watch.every)
        await client.publish("t", b"x", qos=1, props=CARRIED)
        broker.traces.stop(trace.name)
        await until(lambda: not tracer.watch.every)
        await client.publish("t", b"x", qos=1, props=CARRIED)
        assert [entry.data[0] >> 4 for entry in trace.entries] == [wire.PUBLISH, wire.PUBACK]
        assert {entry.connection.client_id for entry in trace.entries} == {"c"}
        assert len(await asyncio.to_thread(finished, broker, exporter)) == 2
        client.abort()


def test_a_collector_that_is_away_is_told_of_once() -> None:
    answers = iter([SpanExportResult.FAILURE, SpanExportResult.FAILURE, SpanExportResult.SUCCESS])

    class Away(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return next(answers) if spans else SpanExportResult.SUCCESS

    with structlog.testing.capture_logs() as lines:
        otel = Otel(endpoint="http://collector/v1/traces?key=secret", sample=1.0)
        made = Spans(otel, "id", structlog.get_logger(), Away())
        for number in range(3):
            carried = f"00-{TRACE}-{number + 1:016x}-01"
            packet = wire.publish("t", b"", props=[(wire.USER_PROPERTY, ("traceparent", carried))])
            made.packet(False, packet, len(packet), "c")
            made._provider.force_flush()
        made._provider.shutdown()
    assert [(line["event"], line["url"]) for line in lines] == [
        ("spans are not taken", "http://collector/v1/traces"),
        ("spans are taken again", "http://collector/v1/traces"),
    ]


async def test_off_it_looks_at_nobody() -> None:
    settings = {"listen": ("mqtt://127.0.0.1:0",), "shutdown": {"flush_timeout": 0.0}}
    async with Broker(Settings.model_validate(settings)) as broker:
        peer = await Peer.join(broker.ports[0], "c")
        assert broker.connection_table.observer is None
        assert broker.traces.spans is None
        peer.abort()


async def test_a_collector_gets_them_by_otlp() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    asked: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        asked.append(await reader.readexactly(length))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(collect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {
        "listen": ("mqtt://127.0.0.1:0",),
        "shutdown": {"flush_timeout": 0.0},
        "otel": {"endpoint": f"http://127.0.0.1:{port}/v1/traces", "sample": 1.0},
    }
    async with server, Broker(Settings.model_validate(settings)) as broker:
        client = await Peer.join(broker.ports[0], "c")
        await client.publish("t", b"x", props=CARRIED)
        client.abort()
    # What waits is sent before it ends.
    request = ExportTraceServiceRequest.FromString(asked[0])
    (found,) = request.resource_spans
    assert "canopy" in {attribute.value.string_value for attribute in found.resource.attributes}
    assert [span.name for span in found.scope_spans[0].spans] == ["receive"]


class TestParent:
    def test_a_context(self) -> None:
        context = parent_of(PARENT)
        assert context is not None
        assert (context.trace_id, context.span_id) == (int(TRACE, 16), int(SPAN, 16))
        # Of later versions what is known is taken.
        assert parent_of(f"01-{TRACE}-{SPAN}-03-more") is not None

    @for_each("text",
        [
            "", PARENT[:-1], PARENT + "0", PARENT + "-more", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00",
            f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", PARENT + "\n",
        ],
    )  # fmt: skip
    def test_none(self, text: str) -> None:
        assert parent_of(text) is None

    @given(st.text(max_size=70))
    def test_whatever_a_client_sends(self, text: str) -> None:
        parent_of(text)

    async def test_which_traces_depends_on_their_identifier(self) -> None:
        made = await asyncio.to_thread(Spans, Otel(sample=0.5), "id", None, InMemorySpanExporter())
        try:
            for number in range(16):
                carried = f"00-{TRACE[:16]}{number:x}{'0' * 15}-{SPAN}-01"
                before = len(made._arrived)
                packet = wire.publish("t", b"", props=[(wire.USER_PROPERTY, ("traceparent", carried))])
                assert MARKER in packet
                made.packet(True, packet, len(packet), "c")
                assert len(made._arrived) - before == (number < 8)
        finally:
            await made.close()

    async def test_what_is_remembered_of_arrivals_is_bounded(self) -> None:
        made = await asyncio.to_thread(Spans, Otel(sample=1.0, max_rate=50), "id", None, InMemorySpanExporter())
        try:
            for number in range(500):
                made._second = 0
                carried = f"00-{TRACE}-{number + 1:016x}-01"
                packet = wire.publish("t", b"", props=[(wire.USER_PROPERTY, ("traceparent", carried))])
                made.packet(True, packet, len(packet), "c")
            assert len(made._arrived) == 4 * 50
        finally:
            await made.close()
