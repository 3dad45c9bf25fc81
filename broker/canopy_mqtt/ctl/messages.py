"""`canopy ctl retained` and `canopy ctl publish`: lists retained messages, and publishes messages of the operator."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from canopy_mqtt.ctl.api_client import CtlError, named
from canopy_mqtt.ctl.lists import Columns, Limit, show, write
from canopy_mqtt.ctl.options import done, failures_in_one_line, options
from canopy_mqtt.ctl.top import printable
from canopy_mqtt.words import counted

RETAINED: Final[Columns] = {
    "bytes": lambda of: of["payload_size"],
    "QoS": lambda of: of["qos"],
    "expires in": lambda of: of["expires_in"],
    "published by": lambda of: of["from_clientid"],
    "topic": lambda of: of["topic"],
}

Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


@failures_in_one_line
def retained(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="FILTER", help="Only topics that match this filter.")] = "#",
    get: Annotated[
        bool, typer.Option("--get", help="Write the payload of the topic FILTER; on a terminal with escapes.")
    ] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Clear the retained message of the topic FILTER.")] = False,
    limit: Limit = 100,
) -> None:
    """List retained messages, by topic, or get or clear one of them."""
    if get and clear:
        raise typer.BadParameter("--get or --clear, not both")
    if not get and not clear:
        show(context, RETAINED, "/mqtt/retainer/messages", limit, topic=topic)
        return
    place = f"/mqtt/retainer/message/{named(topic)}"
    if clear:
        options(context).api().call("DELETE", place)
        done(context, f"cleared the retained message of {printable(topic)}")
        return
    found = options(context).api().call("GET", place)
    if options(context).as_json:
        typer.echo(json.dumps(found))
    else:
        payload = base64.b64decode(found["payload"])
        write(harmless(payload) if sys.stdout.isatty() else payload)


def harmless(payload: bytes) -> bytes:
    """Escape a payload for a terminal: a client's escape sequences must not control it. Lines and tabs stay."""
    text = payload.decode("utf-8", "backslashreplace")
    shown = (each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)
    return "".join(shown).encode() + (b"" if text.endswith("\n") else b"\n")


@failures_in_one_line
def publish(
    context: typer.Context,
    topic: Topic,
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="Text; without it and --file, the payload is empty.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the payload; - for standard input.")
    ] = None,
    qos: Annotated[int, typer.Option(min=0, max=2)] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="Publish it as a retained message.")] = False,
    expires: Annotated[int | None, typer.Option(min=0, metavar="SECONDS", help="Seconds until it expires.")] = None,
    content_type: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A user property.")
    ] = None,
) -> None:
    """Publish a message as the operator. Access rules do not apply."""
    user: dict[str, str] = {}
    for each in properties or []:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--property")
        user[name] = value
    if file is not None and payload:
        raise typer.BadParameter("there is a PAYLOAD already", param_hint="--file")
    given: dict[str, Any] = {
        "message_expiry_interval": expires, "content_type": content_type, "user_properties": user or None,
    }  # fmt: skip
    body = {
        "topic": topic,
        "payload": base64.b64encode(
            payload.encode("utf-8", "surrogateescape") if file is None else _read(file)
        ).decode(),
        "payload_encoding": "base64",
        "qos": qos,
        "retain": retain,
        "properties": {name: value for name, value in given.items() if value is not None},
    }
    answer = options(context).api().call("POST", "/publish", body)
    if options(context).as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"for {counted(answer['matched'], 'subscriber')}" + (", and retained" if answer["retained"] else ""))


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CtlError(f"{file}: {error.strerror}") from None
