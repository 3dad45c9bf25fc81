"""Exports messages as OpenTelemetry traces: from the incoming PUBLISH to each outgoing PUBLISH.

Only messages with a W3C `traceparent` as a user property take part. The broker may not alter it [MQTT-3.3.2-17]: a
subscriber finds the publisher's context, and its spans are siblings of the broker's. These are a `receive` for the turn
in which a message was routed, and below it a `deliver` for each client, from arrival to write.

Promises: sampling depends only on the trace's identifier, as in other services; at most `max_rate` spans a second are
made, wait in a bounded queue, and are sent by a thread. An absent collector costs nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags, set_span_in_context

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import V5, Publish
from canopy_mqtt.core.codec.properties import decode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.observe.trace.fields import shortened
from canopy_mqtt.settings import Otel
from canopy_mqtt.version import __version__

MARKER: Final = b"\x26\x00\x0btraceparent"
"""The beginning of the user property on the wire (sections 2.2.2 and 1.5.7)."""

NAME: Final = "traceparent"
SYSTEM: Final = "mqtt"
TOPIC: Final = "messaging.destination.name"

Attributes: TypeAlias = dict[str, str | int | bool]

MAX_PROPERTIES: Final = 128
"""User properties of a message that are searched."""

SENDING: Final = 5.0
"""Seconds that the collector has for a batch, and that the broker waits for it when it stops."""

SERVICE: Final = "canopy"
"""The broker's name in traces; `service.instance.id` tells brokers apart."""

WAITING_SECONDS: Final = 4
"""The queue holds the spans of this many seconds at `otel.max_rate`; further ones are dropped. A span takes about 2
KB."""

BATCH: Final = 512
DELAY_MS: Final = 1_000.0

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")


def parent_of(text: str) -> SpanContext | None:
    """Return the context of a `traceparent` (W3C Trace Context, section 3.2) if it is sampled; else None."""
    found = _FORM.match(text) if len(text) <= 256 else None
    if found is None or not int(found[3], 16) & 1:
        return None
    if text.startswith("00") and len(text) != 55:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class _Exporter(SpanExporter):
    """Sends spans to the collector from a thread, and logs when the collector stops and resumes accepting them."""

    def __init__(self, inner: SpanExporter, url: str, log: Any) -> None:
        self._inner = inner
        # What stands behind a question mark may be a key.
        self._url = url.partition("?")[0]
        self._log = log
        self._reached = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        reached = result is SpanExportResult.SUCCESS
        if reached and not self._reached:
            self._log.info("spans are taken again", url=self._url)
        elif self._reached and not reached:
            self._log.warning("spans are not taken", url=self._url)
        self._reached = reached
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class Spans:
    """Makes the spans of one broker. Times in ns, Unix."""

    marker = MARKER

    def __init__(self, settings: Otel, broker_id: str, log: Any, exporter: SpanExporter | None = None) -> None:
        """`exporter` replaces the collector that the settings name.

        It blocks, and begins a thread: it is for a thread.
        """
        self._settings = settings
        # As `TraceIdRatioBased` has it: what other services sample is sampled here.
        self._bound = round(settings.sample * (1 << 64))
        # What a collector that does not answer for some seconds leaves.
        self._waiting = WAITING_SECONDS * settings.max_rate
        resource = Resource.create(
            {"service.name": SERVICE, "service.version": __version__, "service.instance.id": broker_id}
        )
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        if exporter is None:
            exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=SENDING)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _Exporter(exporter, settings.endpoint, log),
                max_queue_size=self._waiting,
                schedule_delay_millis=DELAY_MS,
                max_export_batch_size=min(BATCH, self._waiting),
            )
        )
        self._tracer = self._provider.get_tracer("canopy", __version__)
        # Of the messages that came last: traceparent → the span of their arrival, when that was, and the topic.
        self._arrived: OrderedDict[str, tuple[Span, int, str]] = OrderedDict()
        self._second = 0
        self._made = 0
        self.left_out = 0
        """Spans that exceeded `max_rate`."""

    def packet(self, inward: bool, data: bytes, size: int, client_id: str) -> None:
        """Handle an incoming or outgoing PUBLISH of 5.0 that contains `MARKER`."""
        publish = _publish(inward, data, size)
        if publish is None:
            return
        text = next((value for name, value in decode_forward(publish.properties).user if name == NAME), "")
        parent = parent_of(text)
        if parent is None or parent.trace_id & 0xFFFFFFFFFFFFFFFF >= self._bound:
            return
        now = time.time_ns()
        if not self._may(now):
            self.left_out += 1
            return
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.client.id": client_id,
            "messaging.message.body.size": len(publish.payload) + size - len(data),
            "mqtt.qos": publish.qos,
            "mqtt.retain": publish.retain,
            "mqtt.dup": publish.dup,
        }
        if publish.topic:
            attributes[TOPIC] = publish.topic.decode("utf-8", "replace")
        if inward:
            self._receive(text, parent, attributes, now)
        else:
            self._deliver(text, parent, attributes, now)

    def _receive(self, text: str, parent: SpanContext, attributes: Attributes, now: int) -> None:
        span = self._span("receive", SpanKind.SERVER, parent, attributes, now)
        self._arrived[text] = (span, now, str(attributes.get(TOPIC, "")))
        self._arrived.move_to_end(text)
        if len(self._arrived) > self._waiting:
            self._arrived.popitem(last=False)
        # When the turn is through that it came with.
        asyncio.get_running_loop().call_soon(_end, span)

    def _deliver(self, text: str, parent: SpanContext, attributes: Attributes, now: int) -> None:
        began = now
        known = self._arrived.get(text)
        if known is not None:
            parent, began = known[0].get_span_context(), known[1]
            if known[2]:
                # A frame may have an alias alone.
                attributes.setdefault(TOPIC, known[2])
        self._span("deliver", SpanKind.PRODUCER, parent, attributes, began).end(end_time=now)

    def _span(self, what: str, kind: SpanKind, parent: SpanContext, attributes: Attributes, start: int) -> Span:
        attributes["messaging.operation.name"] = what
        context = set_span_in_context(NonRecordingSpan(parent))
        return self._tracer.start_span(what, context, kind, attributes, start_time=start)

    def _may(self, now: int) -> bool:
        """True if `max_rate` allows one more span in this second."""
        second = now // 1_000_000_000
        if second != self._second:
            self._second = second
            self._made = 0
        self._made += 1
        return self._made <= self._settings.max_rate

    async def close(self) -> None:
        """Send the queued spans, if the collector accepts them in time."""
        await asyncio.to_thread(self._provider.shutdown)


def _end(span: Span) -> None:
    span.end(end_time=time.time_ns())


def _publish(inward: bool, data: bytes, size: int) -> Publish | None:
    """Decode as much of the packet as is there; None: it is no PUBLISH."""
    decoder = Decoder(MAX_PACKET, inward, V5, MAX_PROPERTIES)
    decoder.feed(shortened(data, size))
    try:
        return decoder.publish() if decoder.next_frame() else None
    except (ProtocolError, IndexError):
        return None
