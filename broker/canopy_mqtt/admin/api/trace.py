"""The routes of traces: start, list, follow, download, stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.paging import Meta, Page
from canopy_mqtt.admin.routing import BASE, MISSING, Call, Routes, with_security_headers
from canopy_mqtt.observe.trace import as_json, as_text, pcapng
from canopy_mqtt.observe.trace.entries import Entry, Kind, State, Trace
from canopy_mqtt.observe.trace.traces import TraceError, TraceExists

ROUTES: Final = Routes("trace")
ALL: Final = f"{BASE}/trace"
ONE: Final = f"{ALL}/{{name}}"
LIVE: Final = f"{ONE}/follow"
FILE: Final = f"{ONE}/download"

Form: TypeAlias = Literal["text", "jsonl", "pcapng"]

FORMS: Final[dict[Form, Callable[[Iterable[Entry]], Iterator[bytes]]]] = {
    "text": as_text.lines,
    "jsonl": as_json.lines,
    "pcapng": pcapng.blocks,
}

TYPES: Final[dict[Form, str]] = {
    "text": "text/plain; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "pcapng": "application/x-pcapng",
}

ENTRIES: Final = 64
WRITE_BYTES: Final = 65_536
"""Entries, and bytes, that one write carries."""

LOOK: Final = 1.0
"""Seconds between two checks for a client that has stopped following."""


class Begin(BaseModel):
    """A new trace."""

    model_config = ConfigDict(extra="forbid")

    type: Kind
    value: Annotated[str, Field(min_length=1, max_length=65_535)]
    """A client identifier; a topic filter; an IP address or network."""
    name: Annotated[str, Field(max_length=64)] = ""
    """Its name; empty: the broker chooses one."""
    duration: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds; null: the maximum of the settings."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes that it may take; null: the maximum of the settings."""


class Known(BaseModel):
    """A trace."""

    name: str
    type: Kind
    value: str
    status: State
    started_at: str
    """UTC."""
    ended_at: str | None
    """UTC; null while it runs."""
    duration: float
    max_bytes: int
    bytes: int
    packets: int


class Wanted(BaseModel):
    """The format of a trace."""

    format: Form = "text"


class WantedLive(BaseModel):
    """The format of a trace that is followed."""

    format: Literal["text", "jsonl"] = "text"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _known(trace: Trace) -> Known:
    return Known(
        name=trace.name,
        type=trace.kind,
        value=trace.value,
        status=trace.state,
        started_at=_time(trace.started_at),
        ended_at=None if trace.running else _time(trace.ended_at),
        duration=trace.seconds,
        max_bytes=trace.max_bytes,
        bytes=trace.bytes,
        packets=trace.packets,
    )


def _named(call: Call) -> Trace:
    trace = call.broker.traces.all.get(call.path["name"])
    if trace is None:
        raise ApiError(404, "NOT_FOUND", "there is no such trace")
    return trace


@ROUTES.add("POST", ALL, role="operator", body=Begin, status=201)
async def begin(call: Call) -> Known:
    """Start a trace."""
    body: Begin = call.body
    try:
        return _known(call.broker.traces.start(body.type, body.value, body.name, body.duration, body.max_bytes))
    except TraceExists as error:
        raise ApiError(409, "ALREADY_EXISTS", str(error)) from None
    except TraceError as error:
        raise ApiError(400, "BAD_REQUEST", str(error)) from None


@ROUTES.add("GET", ALL, role="operator")
async def every(call: Call) -> Page[Known]:
    """Running traces, and ended ones that are kept."""
    found = [_known(trace) for trace in call.broker.traces.all.values()]
    return Page[Known](data=found, meta=Meta(limit=len(found), hasnext=False))


@ROUTES.add("GET", ONE, role="operator")
async def one(call: Call) -> Known:
    """A trace."""
    return _known(_named(call))


@ROUTES.add("PUT", f"{ONE}/stop", role="operator")
async def stop(call: Call) -> Known:
    """End a trace and keep its packets."""
    return _known(call.broker.traces.stop(_named(call).name))


@ROUTES.add("DELETE", ONE, role="operator", status=204)
async def remove(call: Call) -> None:
    """End a trace and delete its packets."""
    call.broker.traces.remove(_named(call).name)


@ROUTES.add("GET", FILE, role="operator", query=Wanted, streams=True)
async def download(call: Call) -> web.StreamResponse:
    """The packets of a trace so far."""
    trace = _named(call)
    return await send(call, trace.name, list(trace.entries))


async def send(call: Call, name: str, entries: Sequence[Entry], missing: Sequence[str] = ()) -> web.StreamResponse:
    """Answer with these entries of a trace. `missing`: the workers whose entries are not among them."""
    form: Form = call.query.format
    ending = "txt" if form == "text" else form
    response = _response(form)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.{ending}"'
    if missing:
        response.headers[MISSING] = ", ".join(missing)
    await response.prepare(call.request)
    if call.request.method != "HEAD":
        await _write(response, FORMS[form](entries))
    await response.write_eof()
    return response


@ROUTES.add("GET", LIVE, role="operator", query=WantedLive, streams=True)
async def follow(call: Call) -> web.StreamResponse:
    """The packets of a trace and new ones, until it ends or the client closes the connection."""
    return await send_live(call, _along(call, _named(call)))


async def send_live(call: Call, batches: AsyncIterator[list[Entry]]) -> web.StreamResponse:
    """Answer with these entries of a trace, each batch as soon as it comes."""
    form: Form = call.query.format
    response = _response(form)
    await response.prepare(call.request)
    if call.request.method != "HEAD":
        async for entries in batches:
            await _write(response, FORMS[form](entries))
    await response.write_eof()
    return response


async def _along(call: Call, trace: Trace) -> AsyncIterator[list[Entry]]:
    at = 0
    while True:
        try:
            async with asyncio.timeout(LOOK):
                if not await trace.more(at):
                    return
        except TimeoutError:
            transport = call.request.transport
            if transport is None or transport.is_closing():
                return
            continue
        entries = trace.entries[at : at + ENTRIES]
        at += len(entries)
        yield entries


def _response(form: Form) -> web.StreamResponse:
    response = web.StreamResponse()
    response.headers["Content-Type"] = TYPES[form]
    with_security_headers(response)
    return response


async def _write(response: web.StreamResponse, pieces: Iterator[bytes]) -> None:
    """Write the pieces, which a thread makes: a packet with many properties takes milliseconds.

    A client that takes nothing is cut off by its `HttpConnection`.
    """
    while batch := await asyncio.to_thread(_batch, pieces):
        await response.write(batch)


def _batch(pieces: Iterator[bytes]) -> bytes:
    """Join some of the pieces; empty: there are no more."""
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if len(batch) >= ENTRIES or size >= WRITE_BYTES:
            break
    return b"".join(batch)
