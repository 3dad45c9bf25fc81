"""`canopy load capture` and `canopy load replay`.

Owns: their arguments, and what `capture` prints; a replay is played and reported like a run.

Exit codes of `capture`: 0 when it ended as it
was asked to, Ctrl-C included; 1 when the broker ended it (what came until then is in the file) or nothing could be
captured; 2 for a wrong command line. Of `replay`: those of `run`.

The package ``capture`` does the work, and is imported when it is needed: `canopy serve` starts without.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from canopy_load.cli.common import (
    Credentials,
    Output,
    Secured,
    TargetOption,
    clear,
    parse_targets,
    passing,
    play_and_report,
    seconds_option,
    stamp,
)
from canopy_load.cli.compare import VERSIONS, Mqtt
from canopy_load.errors import LoadError, Misuse
from canopy_mqtt.words import counted

MAX_PUBLISHERS: Final = 10_000
MAX_SUBSCRIBERS: Final = 10_000

MqttOption = Annotated[Mqtt, typer.Option("--mqtt", help="Version of MQTT.")]


def capture(
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="FILTER", help="Topic filter to subscribe to (#). Repeatable."),
    ] = None,
    target: Annotated[str, typer.Option("--target", metavar="URL", help="mqtt://HOST:PORT.")] = "mqtt://127.0.0.1:1883",
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="QoS of the subscriptions.")] = 2,
    mqtt: MqttOption = Mqtt.V5_0,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="S", parser=seconds_option, help="Stop after this time, such as 30 or 1m30s."
        ),
    ] = None,
    messages: Annotated[
        int | None, typer.Option("--messages", metavar="N", min=1, help="Stop after this many.")
    ] = None,
    sizes_only: Annotated[bool, typer.Option("--sizes-only", help="Write sizes instead of payloads.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write (capture-TIME.parquet).")
    ] = None,
    *,
    secured: Secured,
    user: Annotated[str | None, typer.Option("-u", "--user", "--username", metavar="NAME", help="User name.")] = None,
    password: Annotated[
        str | None,
        typer.Option(
            "-P", "--password", metavar="TEXT", envvar="CANOPY_LOAD_PASSWORD", show_envvar=True, help="Password."
        ),
    ] = None,
) -> None:
    """Write the messages that a subscriber receives to a file for `replay`, until Ctrl-C."""
    from canopy_load.capture.subscriber import CaptureOptions
    from canopy_load.capture.subscriber import capture as work
    from canopy_load.engine.running import run

    file = out or Path(f"capture-{stamp()}.parquet")
    (broker,) = parse_targets([target], secured)
    wanted = CaptureOptions(
        broker, filters or ["#"], file, qos, VERSIONS[mqtt], seconds,
        messages, sizes_only, user, password,
    )  # fmt: skip

    def progress(count: int) -> None:
        if sys.stderr.isatty():
            passing(f"{counted(count, 'message')} (Ctrl-C ends the capture)")

    try:
        found = run(lambda stop: work(wanted, stop, progress))
    except asyncio.CancelledError:
        raise LoadError("ended by a second signal; there is no capture") from None
    finally:
        clear()
    typer.echo(f"{file}: {found}")
    if found.trouble:
        raise LoadError(f"{wanted.target}: {found.trouble}; {file} holds what came until then")


def replay(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTURE",
            help="A file of `canopy load capture`, a recorder's folder, or a folder of Parquet files.",
        ),
    ],
    target: TargetOption = None,
    speed: Annotated[str, typer.Option("--speed", metavar="X", help="10x, 0.5x, or max: as fast as possible.")] = "1x",
    publishers: Annotated[
        int,
        typer.Option(
            "--publishers", metavar="N", min=1, max=MAX_PUBLISHERS, help="Publishers, which share the topics."
        ),
    ] = 1,
    subscribers: Annotated[
        int,
        typer.Option(
            "--subscribers", metavar="N", min=1, max=MAX_SUBSCRIBERS, help="Subscribers; each receives all messages."
        ),
    ] = 1,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="FILTER", help="The subscribers' topic filters (those of the capture). Repeatable."
        ),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Prefix of every topic.")] = "",
    mqtt: MqttOption = Mqtt.V5_0,
    *,
    output: Output,
    secured: Secured,
    who: Credentials,
) -> None:
    """Publish recorded traffic to a running broker with its recorded timing, and write a report."""
    from pydantic import ValidationError

    from canopy_load.capture.capture_file import CaptureError
    from canopy_load.capture.replay import ReplayOptions, parse_speed, prepare
    from canopy_load.scenario.plan import Plan

    try:
        asked = ReplayOptions(parse_speed(speed), publishers, subscribers, filters or (), prefix, VERSIONS[mqtt])
        job = prepare(source, asked, parse_targets(target, secured))
        Plan(job.scenario, "0" * 8)
    except CaptureError as error:
        raise Misuse(str(error)) from error
    except ValidationError as error:
        raise Misuse("; ".join(each["msg"] for each in error.errors())) from error
    typer.echo(f"{source}: {job.notes['replay']}", err=True)
    play_and_report(job, output, who)
