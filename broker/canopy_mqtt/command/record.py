"""The command ``canopy record``.

Exit codes: 0 success, 1 the folder cannot be read, or has a fault, 2 the command line is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from canopy_mqtt.terminal import MISUSED, fail, foreseen
from canopy_mqtt.words import counted, size

app = typer.Typer(
    name="record",
    help="Inspect, verify and read a record.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _folder(text: str) -> Path:
    if "://" in text:
        fail(
            f"{text}: not a folder of this machine: copy it, hidden files too; `canopy record files` and the jobs of "
            "`canopy pipeline` read it there",
            MISUSED,
        )
    return Path(text)


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The recorder's folder (recorder.directory).", parser=_folder)
]


def failures_in_one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def guarded(*arguments: Any, **flags: Any) -> Any:
        try:
            from canopy_mqtt.record.files.folder import RecorderError
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            fail("`canopy record` needs pyarrow: in a clone of Canopy run `make setup` or pip install '.[record]'")
        return foreseen(command, RecorderError)(*arguments, **flags)

    return guarded


@app.command()
@failures_in_one_line
def ls(directory: Directory) -> None:
    """List the segments with their numbers, times and sizes, and the gaps."""
    from canopy_mqtt.record.reader import listing

    count = events = total = 0
    for about in listing(directory):
        count += 1
        events += about["rows"]
        total += about["bytes"]
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in about["kinds"].items())
        numbers = f"{about['from_seq']}..{about['to_seq']}"
        times = f"{about['first_ts'][:19]}..{about['last_ts'][11:19]}"
        typer.echo(f"{about['segment']}  {numbers}  {times}  {size(about['bytes'])}  {kinds}")
        for first, last, lost in about["gaps"]:
            typer.echo(f"  gap: {first}..{last}, {counted(lost, 'event')}")
    typer.echo(f"{counted(count, 'segment')}, {counted(events, 'event')}, {size(total)}")


@app.command()
@failures_in_one_line
def stats(
    directory: Directory, as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False
) -> None:
    """Summarize the record: time, events by kind, messages, bytes, clients, topics, drops by cause, gaps.

    The exit code is 1 where a segment is missing that a manifest tells of; the others are counted all the same.
    """
    from canopy_mqtt.record.statistics import COUNTED, statistics

    found = statistics(directory)
    if as_json:
        typer.echo(json.dumps(found.summary(), ensure_ascii=False))
    else:

        def most(count: int, what: str) -> str:
            return f"{count:,} or more {what}s" if count >= COUNTED else counted(count, what)

        if found.first is not None and found.last is not None:
            typer.echo(f"{found.first:%Y-%m-%d %H:%M:%S} to {found.last:%Y-%m-%d %H:%M:%S} UTC, {found.seconds:,.0f} s")
        typer.echo(f"{counted(found.segments, 'segment')}, {size(found.file_bytes)}")
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in found.kinds.most_common())
        typer.echo(f"{counted(found.events, 'event')}: {kinds}")
        typer.echo(
            f"{counted(found.messages, 'message')}, {size(found.payload_bytes)} of payload, {found.rate:,.1f} a second"
            f"; {most(found.topics, 'topic')}, {most(found.clients, 'client')}"
        )
        causes = ", ".join(f"{number:,} {cause}" for cause, number in found.drops.most_common())
        typer.echo(f"dropped: {causes or 'nothing'}")
        lost = f", {counted(found.lost_events, 'event')} at most" if found.gaps else ""
        typer.echo(f"{counted(found.gaps, 'gap')}{lost}")
    if found.missing:
        fail("\n".join(f"{path}: its manifest is there, and it is not" for path in found.missing))


@app.command()
@failures_in_one_line
def cat(
    directory: Directory,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only events of this kind. Repeatable.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="FILTER", help="Only publishes whose topics match this filter.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Print at most this many.")] = None,
) -> None:
    """Print the events, one JSON object on each line."""
    from canopy_mqtt.core.codec.reason_codes import ProtocolError
    from canopy_mqtt.core.codec.topic_names import matches, validate_filter
    from canopy_mqtt.record.reader import events, plain
    from canopy_mqtt.record.schema import ERASED
    from canopy_mqtt.record.unpack import KINDS

    for name in kind or ():
        if name not in (*KINDS, ERASED):
            fail(f"--kind {name}: one of {', '.join((*KINDS, ERASED))}", MISUSED)
    chosen: Callable[[str], bool] | None = None
    if topic is not None:
        try:
            validate_filter(topic)
        except (ProtocolError, ValueError) as error:
            fail(f"--topic {topic}: {error}", MISUSED)
        chosen = partial(matches, topic)
    for event in islice(events(directory, frozenset(kind or ()), chosen), limit):
        sys.stdout.write(json.dumps(plain(event), ensure_ascii=False) + "\n")
    sys.stdout.flush()
