"""What a terminal and a pipe get to see of a run, and the table that closes it."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from canopy_load.report.live import Live, Plain, audience, summary
from canopy_load.report.result import Second
from canopy_load.scenario.scenario_schema import Group, Scenario, Stage
from tests.loadtest.results import ATTACK, full_result

SCENARIO = Scenario(
    name="unicast",
    stages=[Stage(name="warm-up", seconds=4, measured=False), Stage(name="steady", seconds=20)],
    groups=[Group(name="all", clients=4)],
)


def shown(what: RenderableType, width: int = 100) -> str:
    console = Console(file=StringIO(), force_terminal=False, width=width)
    console.print(what)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_terminal_gets_a_live_view_and_a_pipe_gets_lines() -> None:
    terminal = Console(file=StringIO(), force_terminal=True, width=100)
    with audience(terminal, SCENARIO, "mqtt://127.0.0.1:1883") as heard:
        assert isinstance(heard, Live)
        heard.clients(4, 4)
    assert isinstance(terminal.file, StringIO)
    assert "clients 4 of 4" in terminal.file.getvalue()
    assert terminal.file.getvalue().rstrip().endswith("\x1b[2K"), "the view is gone when the run is over"

    pipe = Console(file=StringIO(), force_terminal=False)
    with audience(pipe, SCENARIO, "mqtt://127.0.0.1:1883") as heard:
        assert isinstance(heard, Plain)


def test_the_view_shows_a_second() -> None:
    view = Live(SCENARIO, "mqtt://127.0.0.1:1883")
    view.phase("steady")
    view.clients(3, 5)
    stalled = Second(
        9.0, 0.5, "steady", True, clients_up=4, sent=500, received=600, gaps=7, copies=2, p50=450.0, p99=1_500.0,
        max=30_000.0, generator_cpu=0.5, generator_busiest=0.25, broker_cpu=0.9, broker_memory=50_000_000,
    )  # fmt: skip
    view.second(replace(stalled, gaps=1, sent=0))
    view.second(stalled)

    text = shown(view)

    assert "unicast → mqtt://127.0.0.1:1883   steady" in text
    assert "10 of 24 s" in text
    assert "clients 4 of 5" in text
    assert re.search(r"sent +1,000 /s +▁█", text)
    assert re.search(r"received +1,200 /s", text)
    assert re.search(r"latency p99 +1\.5 ms", text)
    assert re.search(r"p50, max +450 µs +30 ms", text)
    assert re.search(r"missing +8 +further copies 4", text)
    assert re.search(r"generator CPU +0\.50 cores +busiest process 25 %", text)
    assert re.search(r"broker CPU +0\.90 cores +50 MB", text)


def test_thousands_of_clients_are_few_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=100)
    drawn: list[object] = []
    with audience(console, SCENARIO, "mqtt://127.0.0.1:1883") as heard:
        assert isinstance(heard, Live)
        assert heard.screen is not None
        monkeypatch.setattr(heard.screen, "update", lambda *_, **__: drawn.append(None))
        monkeypatch.setattr("canopy_load.report.live.time.monotonic", lambda: 1000.0)
        for up in range(1, 5_001):
            heard.clients(up, 5_000)

    assert len(drawn) == 2  # the first, and the last, whenever it comes


def test_plain_lines_stand_in_columns() -> None:
    console = Console(file=StringIO(), force_terminal=False, width=40)
    lines = Plain(console, SCENARIO, "mqtt://127.0.0.1:1883")
    result = full_result()
    lines.phase("connecting")
    lines.clients(3, 4)
    lines.clients(4, 4)
    for second in result.seconds[:5]:
        lines.second(second)
    lines.phase("over")

    assert isinstance(console.file, StringIO)
    text = console.file.getvalue().splitlines()
    assert text[0] == "canopy load: unicast on mqtt://127.0.0.1:1883"
    assert text[2:4] == ["-- connecting", "-- 4 of 4 clients are up"]
    assert text[-1] == "-- over"
    head, *rows = [text[1], *text[4:-1]]
    assert len(rows) == 5
    at = 0
    for name, width in Plain.COLUMNS:
        assert head[at : at + width].strip() == name
        assert all(re.fullmatch(r" *[-.0-9]+", row[at : at + width]) for row in rows), name
        at += width
    assert [row[at:] for row in rows] == ["  connecting"] * 2 + ["  warm-up"] * 3
    assert rows[0].split()[:6] == ["-1.0", "200", "0", "0", "-", "-"]
    assert "\x1b" not in console.file.getvalue()


def test_plain_lines_are_ascii_whatever_comes() -> None:
    console = Console(file=StringIO(), force_terminal=False)
    Plain(console, SCENARIO, "mqtt://127.0.0.1:1883").phase(f"µ {ATTACK}\n[bold]next[/bold]")

    assert isinstance(console.file, StringIO)
    last = console.file.getvalue().splitlines()[-1]
    assert last.isascii()
    assert last.startswith("-- \\xb5 </script>")
    assert last.endswith("\\u202e\\x1b[31m\\n[bold]next[/bold]")


def test_the_summary_says_what_was_wrong_first() -> None:
    text = shown(summary(full_result()), width=80)

    order = ["✗ Lost: 20 of 120,000", "✗ Doubled: 3 copies", "✗ Reordered: 1", "✗ Altered: 1", "! Unconfirmed: 1"]
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert places[-1] < text.index("latency p99.9")
    assert re.search(r"^operators +20 +– +120,000 +119,979 +20 ", text, re.MULTILINE)
    assert "sleepers: slow or frozen, not in the totals" in text
    assert re.search(r"3 × +connection reset by peer", text)
    assert "Ledger: All 20 missing" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
