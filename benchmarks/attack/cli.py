"""The command line of `make attack`: runs the list, prints a table or JSON, and exits with 1 when a bar is missed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.attack.attacks import LIST
from benchmarks.attack.bars import Bars, calm_p99
from benchmarks.attack.pairs import World, p99
from benchmarks.attack.runner import Result, run
from loadtest.brokers.process import at_work, raise_file_limit

FILES: Final = 8_192
"""Files that an attack and the broker may each have open."""

WIDTH: Final = 160
"""Columns where there is no terminal."""

SHOWN: Final = 3
"""Bounds that are shown of an attack, the most frequent ones."""

app = typer.Typer(add_completion=False)


@app.command()
def attack(
    names: Annotated[list[str] | None, typer.Argument(help="Attacks, or parts of their names; none: all.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds that each attack goes on.", min=0.1, max=60)] = 1.2,
    calm: Annotated[float, typer.Option(help="Seconds without an attack before each.", min=0.1, max=60)] = 0.4,
    scale: Annotated[float, typer.Option(help="Part of each attack's numbers.", min=0.001, max=1)] = 1.0,
    pairs: Annotated[int, typer.Option(help="Well-behaved pairs.", min=1, max=1000)] = 100,
    ratio: Annotated[float, typer.Option(help="Bar: p99 of the pairs, times that without an attack.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and no table.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the attacks and run none.")] = False,
) -> None:
    """Attack a broker of its own on 127.0.0.1 and say what that did to it and to its other clients."""
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else WIDTH)
    chosen = [each for each in LIST.values() if not names or any(part in each.name for part in names)]
    if listed or not chosen:
        for each in chosen or LIST.values():
            console.print(f"{each.name}: {each.about}", highlight=False)
        raise typer.Exit(0 if chosen else 2)
    raise_file_limit(FILES)
    bars = Bars(ratio)
    results: list[Result] = []
    with at_work() as cores, World(pairs, cores.generator) as world:
        console.print(f"{len(chosen)} attacks beside {pairs} pairs; {cores}", highlight=False)
        for each in chosen:
            result = run(each, world, cores, seconds, calm, scale)
            results.append(result)
            console.print(f"  {each.name}: {_line(result)}", highlight=False)
    normal = calm_p99(results)
    missed = {result.attack.name: bars.missed(result, normal) for result in results}
    if as_json:
        sys.stdout.write(json.dumps([as_row(result, normal, missed[result.attack.name]) for result in results]) + "\n")
    else:
        console.print(_table(results, normal, missed))
    for name, bad in missed.items():
        for text in bad:
            console.print(f"[red]missed[/red] {name}: {text}", highlight=False)
    if any(missed.values()):
        raise typer.Exit(1)


def held(result: Result) -> Counter[str]:
    """What the broker did to the attack: reason codes, lines of its log, drops."""
    return result.told.answers + result.log + result.drops


def as_row(result: Result, calm: float, missed: list[str]) -> dict[str, object]:
    """A result as JSON has it. Sizes in bytes, times in seconds."""
    return {
        "attack": result.attack.name,
        "about": result.attack.about,
        "sent": result.told.sent,
        "connections": result.told.connections,
        "growth": result.growth,
        "growth_allowed": result.attack.growth,
        "cpu": result.cpu,
        "ping_wait": result.under.wait,
        "ping_wait_cpu": result.under.wait_cpu,
        "ping_wait_allowed": result.attack.wait,
        "pings": result.under.pings,
        "p99": p99(result.under.latencies),
        "p99_work": p99(result.under.works),
        "p99_calm": calm,
        "messages": result.under.sent,
        "lost": result.under.lost,
        "cut": result.under.cut,
        "held": dict(held(result)),
        "missed": missed,
    }


def _line(result: Result) -> str:
    if result.broken:
        return result.broken
    return (
        f"+{result.growth / 1e6:.1f} MB for {result.told.sent / 1e6:.2f} MB sent, "
        f"PING {result.under.wait_cpu * 1e3:.1f} ms, p99 {p99(result.under.latencies) * 1e3:.2f} ms, "
        f"of it work {p99(result.under.works) * 1e3:.2f} ms"
    )


def _table(results: list[Result], calm: float, missed: dict[str, list[str]]) -> Table:
    table = Table(title=f"p99 of the pairs without an attack: {calm * 1e3:.2f} ms", title_justify="left")
    table.add_column("attack")
    for name in ("sent MB", "grew MB", "PING ms (of it broker's work)", "p99 ms (of it work)", "times"):
        table.add_column(name, justify="right")
    table.add_column("what held")
    for result in results:
        under = p99(result.under.latencies)
        texts = [f"{text} ×{count}" for text, count in held(result).most_common(SHOWN)]
        style = "red" if missed[result.attack.name] else ""
        table.add_row(
            result.attack.name,
            f"{result.told.sent / 1e6:.2f}",
            f"{result.growth / 1e6:.1f}",
            f"{result.under.wait * 1e3:.1f} ({result.under.wait_cpu * 1e3:.1f})",
            f"{under * 1e3:.2f} ({p99(result.under.works) * 1e3:.2f})",
            f"{under / calm:.1f}" if calm else "–",
            ", ".join(texts) or "nothing was refused",
            style=style,
        )
    return table


def main(arguments: Sequence[str]) -> None:
    """The entry point; it ends the program."""
    app(list(arguments), prog_name="python -m benchmarks attack")
