"""The progress of a run: a live view in a terminal, plain lines anywhere else; and the table that closes a run.

Owns: ``audience``, which picks one of ``Live`` and ``Plain``, and ``summary``.

Promises: nothing here takes long: the view is drawn when something is told, at most ten times a second, without a
thread of its own. What comes from outside is shown as text, never obeyed: neither as markup nor as a terminal's
control sequence. The plain lines are ASCII in fixed columns.

The command prints where the files of the report are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live as Screen
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from canopy_load.capture.recording import OPEN_END
from canopy_load.engine.job import Audience
from canopy_load.report.result import Result, Second
from canopy_load.report.wording import (
    DASH,
    GROUP_HEADINGS,
    THRESHOLD_HEADINGS,
    Tone,
    cores,
    figures,
    findings,
    group_cells,
    memory,
    micros,
    number,
    threshold_rows,
)
from canopy_load.scenario.scenario_schema import Scenario
from canopy_mqtt.pages import plain
from canopy_mqtt.words import counted

REDRAW: Final = 0.1
"""Seconds between two drawings at the least, where clients come by the thousand."""
SPARKS: Final = 40
"""Seconds in a small curve."""
ERRORS: Final = 10
"""Kinds of errors in the closing table; the report has them all."""
GROUPS: Final = 30

_COUNTS: Final = ("clients", "sent", "due", "received", "lost")
_TIMES: Final = ("p50", "p99", "max")
_ANY_WIDTH: Final = 10_000
_BELOW: Final = ("doubled", "reordered", "altered")
_BARS: Final = "▁▂▃▄▅▆▇█"
_STYLES: Final[dict[Tone, str]] = {"good": "green", "plain": "", "warn": "yellow", "bad": "bold red"}
_MARKS: Final[dict[Tone, str]] = {"good": "✓", "plain": "·", "warn": "!", "bad": "✗"}


@contextmanager
def audience(console: Console, scenario: Scenario, target: str) -> Iterator[Audience]:
    """Return the listener for this console: `Live` on a terminal, else `Plain`. The view closes with the context."""
    if not console.is_terminal:
        yield Plain(console, scenario, target)
        return
    live = Live(scenario, target)
    with Screen(console=console, auto_refresh=False, transient=True) as screen:
        live.screen = screen
        yield live


def sparkline(values: Sequence[float]) -> str:
    """A curve of one character for each value, from 0 to the greatest."""
    most = max(values, default=0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(len(_BARS) - 1, round(max(value, 0) / most * (len(_BARS) - 1)))] for value in values)


class Live(Audience):
    """The view in a terminal. `screen` may be absent: then only `__rich__` draws it."""

    def __init__(self, scenario: Scenario, target: str) -> None:
        self.screen: Screen | None = None
        self._name = plain(scenario.name)
        self._target = plain(target)
        self._length = sum(stage.seconds for stage in scenario.stages)
        self._phase = "starting"
        self._up = 0
        self._wanted = 0
        self._last: Second | None = None
        self._gaps = 0
        self._copies = 0
        self._out: deque[float] = deque(maxlen=SPARKS)
        self._in: deque[float] = deque(maxlen=SPARKS)
        self._p99: deque[float] = deque(maxlen=SPARKS)
        self._drawn = float("-inf")

    def phase(self, text: str) -> None:
        self._phase = plain(text)
        self._draw()

    def clients(self, up: int, wanted: int) -> None:
        self._up, self._wanted = up, wanted
        if time.monotonic() - self._drawn >= REDRAW or up == wanted:
            self._draw()

    def second(self, second: Second) -> None:
        self._last = second
        self._up = second.clients_up
        self._wanted = max(self._wanted, self._up)
        self._gaps += second.gaps
        self._copies += second.copies
        self._out.append(_rate(second.sent, second))
        self._in.append(_rate(second.received, second))
        self._p99.append(second.p99 or 0.0)
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self.screen is not None:
            self.screen.update(self, refresh=True)

    def __rich__(self) -> RenderableType:
        return Group(self._head(), self._progress(), self._table())

    def _head(self) -> RenderableType:
        head = Text.assemble(("canopy load ", "dim"), (self._name, "bold"), (" → ", "dim"), self._target)
        head.append(f"   {self._phase}", "cyan")
        return head

    def _progress(self) -> RenderableType:
        line = Table.grid(padding=(0, 2))
        done = 0.0 if self._last is None else self._last.start + self._last.seconds
        done = min(max(done, 0.0), self._length)
        known = self._length < OPEN_END
        line.add_row(
            ProgressBar(self._length, done, 30, pulse=not known, complete_style="green", finished_style="green"),
            Text(f"{done:.0f} of {self._length:.0f} s" if known else f"{done:.0f} s"),
            Text(f"clients {self._up:,} of {self._wanted:,}", "" if self._up >= self._wanted else "yellow"),
        )
        return line

    def _table(self) -> RenderableType:
        last = self._last
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(justify="right", no_wrap=True, min_width=14)
        rows.add_column(no_wrap=True, overflow="crop")
        if last is None:
            return rows
        rows.add_row("sent", f"{number(self._out[-1])} /s", Text(sparkline(self._out), "blue"))
        rows.add_row("received", f"{number(self._in[-1])} /s", Text(sparkline(self._in), "green"))
        if last.foreign:
            rows.add_row("of others", f"{number(_rate(last.foreign, last))} /s", Text())
        rows.add_row("latency p99", micros(last.p99), Text(sparkline(self._p99), "yellow"))
        rows.add_row("p50, max", micros(last.p50), Text(micros(last.max)))
        # Whether they are lost or duplicates is known when the run is over.
        rows.add_row("missing", _alarm(self._gaps), Text.assemble(("further copies ", "dim"), _alarm(self._copies)))
        busiest = f"busiest process {100 * last.generator_busiest:.0f} %"
        hot = "bold red" if last.generator_busiest > 0.9 else "dim"
        rows.add_row("generator CPU", cores(last.generator_cpu), Text(busiest, hot))
        if last.broker_cpu is not None or last.broker_memory is not None:
            rows.add_row("broker CPU", cores(last.broker_cpu), Text(memory(last.broker_memory), "dim"))
        return rows


class Plain(Audience):
    """One line a second for files and pipes."""

    COLUMNS: Final = (
        ("time s", 8),
        ("clients", 8),
        ("sent/s", 10),
        ("recv/s", 10),
        ("p50 ms", 9),
        ("p99 ms", 9),
        ("max ms", 9),
        ("gaps", 8),
        ("copies", 8),
        ("gen cpu", 8),
        ("brk cpu", 8),
        ("brk MB", 8),
    )

    def __init__(self, console: Console, scenario: Scenario, target: str) -> None:
        self._console = console
        self._print(f"canopy load: {scenario.name} on {target}")
        self._print("".join(name.rjust(width) for name, width in self.COLUMNS) + "  stage")

    def phase(self, text: str) -> None:
        self._print(f"-- {text}")

    def clients(self, up: int, wanted: int) -> None:
        if up == wanted:
            self._print(f"-- {up} of {wanted} clients are up")

    def second(self, second: Second) -> None:
        figures_of = (
            f"{second.start + second.seconds:.1f}",
            str(second.clients_up),
            f"{_rate(second.sent, second):.0f}",
            f"{_rate(second.received, second):.0f}",
            _thousandth(second.p50),
            _thousandth(second.p99),
            _thousandth(second.max),
            str(second.gaps),
            str(second.copies),
            f"{second.generator_cpu:.2f}",
            "-" if second.broker_cpu is None else f"{second.broker_cpu:.2f}",
            "-" if second.broker_memory is None else f"{second.broker_memory / 1e6:.1f}",
        )
        line = "".join(text.rjust(width) for text, (_, width) in zip(figures_of, self.COLUMNS, strict=True))
        self._print(f"{line}  {second.stage}")

    def _print(self, line: str) -> None:
        safe = plain(line).encode("ascii", "backslashreplace").decode("ascii")
        self._console.print(Text(safe), soft_wrap=True, highlight=False)


def summary(result: Result) -> RenderableType:
    """Return the text that is printed after a run: the findings, the figures, the groups, the errors."""
    head = Text.assemble((plain(result.scenario), "bold"), (" on ", "dim"), plain(result.target))
    if result.broker:
        head.append(f" ({plain(result.broker)})", "dim")
    if result.measured_seconds:
        head.append(f", {number(result.measured_seconds)} s measured", "dim")
    parts: list[RenderableType] = [head, Text()]
    for finding in findings(result):
        parts.append(Text(f"{_MARKS[finding.tone]} {plain(finding.text)}", _STYLES[finding.tone]))
    parts += [Text(), _figures_table(result)]
    if result.thresholds:
        parts += [Text(), _thresholds_table(result)]
    if result.groups:
        parts += [Text(), _Groups(result)]
    if result.errors:
        parts += [Text(), _errors_table(result)]
    if result.reconciled is not None and result.reconciled.agrees is not False and result.reconciled.why:
        parts += [Text(), Text(f"Ledger: {plain(result.reconciled.why)}")]
    return Padding(Group(*parts), (1, 0))


def _figures_table(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for each in figures(result):
        table.add_row(each.name, Text(each.value, _STYLES[each.tone] if each.tone == "bad" else "bold"), each.note)
    return table


def _thresholds_table(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="dim")
    for heading in THRESHOLD_HEADINGS:
        table.add_column(heading, overflow="fold")
    for condition, value, holds in threshold_rows(result):
        table.add_row(plain(condition), value, Text(holds, _STYLES["good" if holds == "yes" else "bad"]))
    return table


class _Groups:
    """The table of the groups: in one piece where that is not wider than the terminal, else the latencies in a second
    one. What the columns do not say goes under it."""

    def __init__(self, result: Result) -> None:
        self._cells = [dict(zip(GROUP_HEADINGS, group_cells(each), strict=True)) for each in result.groups[:GROUPS]]
        self._more = len(result.groups) - len(self._cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(_COUNTS + _TIMES)
        if console.measure(whole, options=options.update(max_width=_ANY_WIDTH)).maximum <= options.max_width:
            yield whole
        else:
            yield self._table(_COUNTS)
            yield Text()
            yield self._table(_TIMES)
        notes = self._notes()
        if notes:
            yield Text("\n".join(notes), "dim")

    def _table(self, headings: tuple[str, ...]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="dim")
        table.add_column("group", overflow="fold")
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for cells in self._cells:
            table.add_row(*(Text(cells[heading]) for heading in ("group", *headings)))
        return table

    def _notes(self) -> list[str]:
        notes: list[str] = []
        for cells in self._cells:
            rest = [f"{cells[name]} {name}" for name in _BELOW if cells[name] not in ("0", DASH)]
            if rest or cells["notes"]:
                notes.append(f"{cells['group']}: {'; '.join([*rest, *filter(None, [cells['notes']])])}")
        if self._more:
            notes.append(f"and {counted(self._more, 'further group')}, see the report")
        return notes


def _errors_table(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True, style="yellow")
    table.add_column(overflow="fold")
    found = sorted(result.errors.items(), key=lambda item: -item[1])
    for what, times in found[:ERRORS]:
        table.add_row(f"{times:,} ×", Text(plain(what)))
    if len(found) > ERRORS:
        table.add_row("", Text(f"and {counted(len(found) - ERRORS, 'further kind')} of errors, see the report", "dim"))
    return table


def _rate(amount: int, second: Second) -> float:
    return amount / second.seconds if second.seconds > 0 else 0.0


def _alarm(amount: int) -> Text:
    return Text(f"{amount:,}", "yellow" if amount else "green")


def _thousandth(us: float | None) -> str:
    return "-" if us is None else f"{us / 1e3:.2f}"
