"""`canopy ctl explain`: says what would happen to a message now, with a sentence for each receiver."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from canopy_mqtt.ctl.options import failures_in_one_line, options
from canopy_mqtt.ctl.top import printable
from canopy_mqtt.words import counted

LARGEST: Final = 268_435_455


@failures_in_one_line
def explain(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic name, with its publisher's mount if any.")],
    client: Annotated[str, typer.Option("--client", metavar="ID", help="Only this client.")] = "",
    publisher: Annotated[
        str | None, typer.Option("--publisher", metavar="ID", help="The publisher, for access rules and No Local.")
    ] = None,
    qos: Annotated[int, typer.Option(min=0, max=2, help="The QoS.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="The message has the RETAIN flag.")] = False,
    size: Annotated[int, typer.Option(min=0, max=LARGEST, metavar="BYTES", help="Size of its payload.")] = 1,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many receivers.")] = 100,
    cursor: Annotated[str, typer.Option(metavar="CURSOR", help="Continue after the previous answer.")] = "",
) -> None:
    """Show who would receive a message published now, who would not, and why. Nothing is published.

    With --client, the exit code is 3 when that client would not get it.
    """
    api = options(context).api()
    answer = api.call(
        "GET", "/explain", topic=topic, client=client or None, publisher=publisher, qos=qos,
        retain="true" if retain else None, size=size, limit=limit, cursor=cursor or None,
    )  # fmt: skip
    if options(context).as_json:
        typer.echo(json.dumps(answer))
    else:
        _show(answer)
    if client and not _reaches(answer, client):
        raise typer.Exit(3)


def _reaches(answer: dict[str, Any], client: str) -> bool:
    """Return True if a client would get it, by its own subscription or as the next member of a share group."""
    chosen = [group["next"] for group in answer["groups"] if group["next"] is not None]
    return any(one["client_id"] == client and one["gets"] for one in [*answer["receivers"], *chosen])


def _show(answer: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)

    def add_line(mark: str, style: str, sentence: str) -> None:
        console.print(Text.assemble(("  " + mark.ljust(5), style), printable(sentence)))

    retain = ", retained" if answer["retain"] else ""
    size = counted(answer["size"], "byte")
    console.print(Text(printable(f"{answer['topic']}: QoS {answer['qos']}{retain}, payload of {size}"), "bold"))
    publisher = answer["publisher"]
    add_line("pub", "green" if publisher["accepted"] else "red", publisher["sentence"])
    for match in answer["filters"]:
        groups = f", {counted(match['groups'], 'share group')}" if match["groups"] else ""
        add_line("via", "cyan", f"{match['topic_filter']} ({counted(match['subscriptions'], 'subscription')}{groups})")
    if answer["more_filters"]:
        add_line("via", "cyan", counted(answer["more_filters"], "more filter"))
    if not answer["filters"]:
        add_line("via", "cyan", "no matching filter")
    for receiver in answer["receivers"]:
        mark = ("yes" if receiver["certain"] else "yes?") if receiver["gets"] else "no"
        add_line(mark, "green" if receiver["gets"] else "red", receiver["sentence"])
        for line in _state(receiver):
            add_line("", "", line)
    for group in answer["groups"]:
        add_line("group", "cyan", group["sentence"])
        chosen = group["next"]
        if chosen is not None:
            add_line("yes" if chosen["gets"] else "no", "green" if chosen["gets"] else "red", chosen["sentence"])
    if answer["more_groups"]:
        add_line("group", "cyan", counted(answer["more_groups"], "more share group"))
    if answer["retained"] is not None:
        add_line("kept", "green" if answer["retained"]["stored"] else "yellow", answer["retained"]["sentence"])
    if answer["in_turns"]:
        add_line(
            "note",
            "yellow",
            "it has so many receivers that the broker serves them in turns; each may have changed by then",
        )
    if answer["cursor"] is not None:
        add_line("more", "yellow", f"there are more: --cursor {answer['cursor']}")


def _state(receiver: dict[str, Any]) -> list[str]:
    """Describe the receiver's queues and losses, if there are any."""
    lines: list[str] = []
    queue, ledger = receiver["queue"], receiver["ledger"]
    if queue is not None and (queue["live_messages"] or queue["waiting_messages"] or queue["in_flight"]):
        lines.append(
            f"  its queues ({queue['policy']}): {queue['live_messages']} to be written, "
            f"{queue['waiting_messages']} waiting, {queue['in_flight']} in flight"
        )
    if ledger is not None and ledger["dropped"]:
        lost = ", ".join(f"{count} {cause}" for cause, count in ledger["dropped"].items())
        lines.append(f"  so far {ledger['delivered']} delivered, lost: {lost}")
    return lines
