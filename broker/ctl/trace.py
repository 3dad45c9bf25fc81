"""`canopy ctl trace`: begin a trace and read it along, or have it as a file for Wireshark.

Promises: a trace that this command began ends with it, also by Ctrl-C, and is forgotten by the broker, unless it is to
be kept (`--keep`) or its file could not be written.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from broker.ctl.asking import Api, CtlError, named
from broker.ctl.options import asking, done, options
from broker.words import counted

UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
FORMS: Final = {".pcapng": "pcapng", ".pcap": "pcapng", ".jsonl": "jsonl", ".json": "jsonl"}
"""How a file's name ends → the form of what is in it; whatever else is text."""

app = typer.Typer(
    name="trace",
    help="Trace the packets of a client, a topic or an address.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def seconds(text: str | float) -> float:
    """A time as 30, 30s, 5m or 1h. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(text).strip())
    if not found or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is no time above 0 such as 30s, 5m or 1h")
    return float(found[1]) * UNITS[found[2]]


For = Annotated[float, typer.Option("--for", parser=seconds, metavar="TIME", help="For how long: 30s, 5m, 1h.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to a file: .pcapng, .jsonl, or text."),
]
MaxBytes = Annotated[int | None, typer.Option(min=1, metavar="BYTES", help="Memory that it may use in the broker.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the trace in the broker after it has ended.")]


@app.command("client")
@asking
def client(
    context: typer.Context,
    client_id: Annotated[str, typer.Argument(metavar="ID", help="Its client identifier.")],
    duration: For = 60.0,
    output: Output = None,
    max_bytes: MaxBytes = None,
    keep: Keep = False,
) -> None:
    """Trace all packets of one client."""
    _run(context, "clientid", client_id, duration, output, max_bytes, keep)


@app.command("topic")
@asking
def topic(
    context: typer.Context,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="A topic filter.")],
    duration: For = 60.0,
    output: Output = None,
    max_bytes: MaxBytes = None,
    keep: Keep = False,
) -> None:
    """Trace messages whose topics match a filter, and subscriptions to them."""
    _run(context, "topic", topic_filter, duration, output, max_bytes, keep)


@app.command("address")
@asking
def address(
    context: typer.Context,
    network: Annotated[str, typer.Argument(metavar="IP", help="An IP address, or a network such as 10.0.0.0/8.")],
    duration: For = 60.0,
    output: Output = None,
    max_bytes: MaxBytes = None,
    keep: Keep = False,
) -> None:
    """Trace all packets of an address or a network."""
    _run(context, "ip_address", network, duration, output, max_bytes, keep)


@app.command("list")
@asking
def every(context: typer.Context) -> None:
    """List the traces in the broker."""
    found = options(context).api().call("GET", "/trace")
    if options(context).as_json:
        typer.echo(json.dumps(found["data"]))
        return
    for trace in found["data"]:
        value = json.dumps(trace["value"][:60])
        typer.echo(
            f"{trace['name']}  {trace['type']} {value}  {trace['status']}  {counted(trace['packets'], 'packet')}"
        )


@app.command("get")
@asking
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The trace.")],
    output: Output = None,
) -> None:
    """Get the packets of a trace so far, as lines or as a file."""
    api = options(context).api()
    if output is not None:
        _save(api, name, output)
        return
    form = "jsonl" if options(context).as_json else "text"
    for line in api.lines("GET", f"/trace/{named(name)}/download", format=form):
        _print(line)


@app.command("stop")
@asking
def stop(context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="The trace.")]) -> None:
    """End a trace; the broker keeps its packets."""
    known = options(context).api().call("PUT", f"/trace/{named(name)}/stop")
    typer.echo(json.dumps(known) if options(context).as_json else f"{name}: {counted(known['packets'], 'packet')}")


@app.command("remove")
@asking
def remove(context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="The trace.")]) -> None:
    """End a trace and delete it."""
    options(context).api().call("DELETE", f"/trace/{named(name)}")
    done(context, f"removed the trace {name}")


def _run(
    context: typer.Context,
    kind: str,
    value: str,
    duration: float,
    output: Path | None,
    max_bytes: int | None,
    keep: bool,
) -> None:
    """Begin a trace, read it along, and end it."""
    api = options(context).api()
    wanted = {"type": kind, "value": value, "duration": duration, "max_bytes": max_bytes}
    name = api.call("POST", "/trace", wanted)["name"]
    form = "jsonl" if options(context).as_json else "text"
    follow = f"/trace/{named(name)}/follow"
    done = False
    try:
        with _interrupted(lambda: api.call("PUT", f"/trace/{named(name)}/stop")):
            for line in api.lines("GET", follow, format=form):
                if output is None:
                    _print(line)
        if output is not None:
            _save(api, name, output)
        _conclude(api.call("GET", f"/trace/{named(name)}"), output)
        done = True
    finally:
        if not keep and (done or output is None):
            with suppress(CtlError):
                api.call("DELETE", f"/trace/{named(name)}")


@contextmanager
def _interrupted(stop: Callable[[], Any]) -> Iterator[None]:
    """Ctrl-C ends the trace, and with it the reading; a second one ends the command."""

    def told(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, before)
        stop()

    before = signal.signal(signal.SIGINT, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _save(api: Api, name: str, output: Path) -> None:
    """Have a trace in a file. Raises CtlError."""
    form = FORMS.get(output.suffix, "text")
    try:
        with output.open("wb") as file:
            for piece in api.pieces("GET", f"/trace/{named(name)}/download", format=form):
                file.write(piece)
    except OSError as error:
        raise CtlError(f"{output}: {error.strerror}") from None


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _conclude(known: dict[str, Any], output: Path | None) -> None:
    where = f" in {output}" if output is not None else ""
    why = "" if known["status"] in ("time over", "stopped") else f" ({known['status']})"
    typer.echo(f"canopy: {counted(known['packets'], 'packet')}{where}{why}", err=True)
