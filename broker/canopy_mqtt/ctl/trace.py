"""`canopy ctl trace` and `traces`: starts a trace and follows it, or saves it as a file for Wireshark.

Promises: a trace that this command started ends with it, also by Ctrl-C, and is removed from the broker, unless it is
to be kept (`--keep`) or its file could not be written.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from canopy_mqtt.ctl.api_client import ApiClient, CtlError, named
from canopy_mqtt.ctl.options import done, failures_in_one_line, options
from canopy_mqtt.words import counted

UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
FORMS: Final = {".pcapng": "pcapng", ".pcap": "pcapng", ".jsonl": "jsonl", ".json": "jsonl"}
"""The suffix of a file's name → the format of the file; any other suffix means text."""


def seconds(text: str | float) -> float:
    """Parse a time such as 30, 30s, 5m or 1h. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(text).strip())
    if not found or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is no time above 0 such as 30s, 5m or 1h")
    return float(found[1]) * UNITS[found[2]]


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to a file: .pcapng, .jsonl, or text."),
]


class Kind(StrEnum):
    CLIENT = "client"
    TOPIC = "topic"
    ADDRESS = "address"


KINDS: Final = {Kind.CLIENT: "clientid", Kind.TOPIC: "topic", Kind.ADDRESS: "ip_address"}
"""The API's names of them."""


@failures_in_one_line
def trace(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="client, topic or address.", show_default=False)],
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="A client identifier; a topic filter; an IP address, or a network.", show_default=False
        ),
    ],
    duration: Annotated[
        float, typer.Option("--for", parser=seconds, metavar="TIME", help="For how long: 30s, 5m, 1h.")
    ] = 60.0,
    output: Output = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Memory that it may use in the broker.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the trace in the broker after it has ended.")] = False,
) -> None:
    """Trace all packets of a client or an address, or messages on a topic and subscriptions to it."""
    _run(context, KINDS[kind], what, duration, output, max_bytes, keep)


@failures_in_one_line
def traces(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Get the packets of this trace so far.")] = None,
    output: Output = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the trace NAME; the broker keeps its packets.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="End the trace NAME and delete it.")] = False,
) -> None:
    """List the traces in the broker, or get, stop or remove one of them."""
    if stop + remove + (output is not None) > 1:
        raise typer.BadParameter("--output, --stop and --remove exclude each other")
    api = options(context).api()
    if name is None:
        if stop or remove or output is not None:
            raise typer.BadParameter("NAME is missing; canopy ctl traces lists the names")
        _list(context, api)
    elif remove:
        api.call("DELETE", f"/trace/{named(name)}")
        done(context, f"removed the trace {name}")
    elif stop:
        known = api.call("PUT", f"/trace/{named(name)}/stop")
        typer.echo(json.dumps(known) if options(context).as_json else f"{name}: {counted(known['packets'], 'packet')}")
    elif output is not None:
        _save(api, name, output)
    else:
        form = "jsonl" if options(context).as_json else "text"
        for line in api.lines("GET", f"/trace/{named(name)}/download", format=form):
            _print(line)


def _list(context: typer.Context, api: ApiClient) -> None:
    found = api.call("GET", "/trace")
    if options(context).as_json:
        typer.echo(json.dumps(found["data"]))
        return
    for each in found["data"]:
        value = json.dumps(each["value"][:60])
        typer.echo(f"{each['name']}  {each['type']} {value}  {each['status']}  {counted(each['packets'], 'packet')}")


def _run(
    context: typer.Context,
    kind: str,
    value: str,
    duration: float,
    output: Path | None,
    max_bytes: int | None,
    keep: bool,
) -> None:
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
    """End the trace, and with it the reading, on Ctrl-C; a second one ends the command."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, before)
        stop()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _save(api: ApiClient, name: str, output: Path) -> None:
    form = FORMS.get(output.suffix, "text")
    try:
        # The trace holds what clients sent.
        with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
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
