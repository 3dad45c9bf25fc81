"""What the pages of the load report and of the pipeline are made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from canopy_pages import BLUE, POWERS, Page, Plot, bars, line, linked, number, treemap
from canopy_pages.page import ROWS
from tests.loadtest.load.report.browser import opened

EVIL = "</script><script>document.title='owned'</script>"
DAY = 1_800_000_000


def tree() -> Plot:
    nodes = [
        ("0 ", "", "all topics", 10.0, "all topics", "2 topics"),
        ("1 a", "0 ", "a", 7.0, "a", ""),
        ("1 b", "0 ", EVIL, 3.0, EVIL, ""),
    ]
    return treemap("messages", nodes, "tree", "Tree", "Of topics.")


def plots() -> list[Plot]:
    """One of each kind."""
    times = [float(DAY + at) for at in range(20)]
    heat = {
        "type": "heatmap", "x": [DAY, DAY + 1, DAY + 2], "y": ["< 2 µs", "< 4 µs"], "z": [[1.0, None], [2.0, 1.0]],
        "colorbar": {"title": {"text": "messages"}, "tickvals": [1, 2], "ticktext": ["10", "100"]},
    }  # fmt: skip
    dates = {"xaxis": {"type": "date", "matches": "time"}}
    return [
        Plot("lines", "Lines", "", [line(EVIL, times, times, BLUE), line("b", times, [1.0] * 20, BLUE)], dates),
        Plot("heat", "Cells", "", [heat], dates, tall=True),
        Plot("bars", "Bars", "", [bars("", ["one\n1", f"{EVIL}\n2"], [1.0, 2.0], BLUE)]),
        Plot("dot", "A point", "", [line("", [1.0], [0.0], BLUE)], {"xaxis": {**POWERS}}),
        Plot("none", "None", "", absent="Nothing was there."),
        tree(),
    ]


def made() -> Page:
    page = Page(f"Title {EVIL}", "about")
    for plot in plots():
        page.plot(plot)
    page.table(["name", "count"], [[EVIL, 1]])
    return page


def test_every_kind_of_plot_is_drawn_and_nothing_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(made().html())

    found = opened(tmp_path / "page.html", tmp_path)

    assert (found.console, found.fetched) == ([], [])
    drawn = {key: classes["drawn"] for key, classes in found.figures.items()}
    assert drawn == {"lines": 1, "heat": 1, "bars": 1, "dot": 1, "none": 0, "tree": 1}
    assert found.figures["lines"]["curve"] == 2
    assert found.figures["dot"]["point"] == 1
    assert found.figures["tree"]["branch"] == 3
    assert found.figures["heat"]["cells"] == 1
    assert found.elements["script"] == 2
    assert found.title.startswith("Title </script>")
    assert "could not be drawn" not in found.text


def test_a_page_is_small() -> None:
    assert len(made().html()) < 100_000


@pytest.mark.parametrize(
    "plot",
    [
        Plot("p", "", "", [{**line("", [1.0], [1.0], BLUE), "hovertemplate": "%{y}"}]),
        Plot("p", "", "", [line("", [1.0], [1.0], BLUE)], {"legend": {}}),
        Plot("p", "", "", [line("", [1.0], [1.0], BLUE)], {"xaxis": {"tickformat": "%H"}}),
    ],
)
def test_what_would_not_be_drawn_is_refused(plot: Plot) -> None:
    with pytest.raises(ValueError, match=r"page\.js knows no "):
        plot.data()


def test_no_text_is_markup() -> None:
    html = made().html()
    data = html.split('id="plots">', 1)[1].split("</script>", 1)[0]
    assert EVIL not in html
    assert len(json.loads(data)) == 5
    assert '<td class="left">&lt;/script&gt;' in html


def test_links_come_to_the_top_of_a_page_that_is_whole() -> None:
    page = linked(Page("One").html(), {"all": "index.html", "one": "one.html", "<two>": 'a"b.html'}, "one")
    assert '<nav><a href="index.html">all</a><b>one</b><a href="a&quot;b.html">&lt;two&gt;</a></nav>' in page
    assert page.index("<nav>") < page.index("<h1>")


def test_a_long_table_is_cut_with_a_line_that_says_so() -> None:
    page = Page("Long")
    page.table(["n"], [[at] for at in range(ROWS + 5)], "the table n")
    html = page.html()
    assert len(re.findall("<td", html)) == ROWS
    assert f"{ROWS} of {ROWS + 5} rows are shown; all of them are in the table n." in html


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (1234567, "1,234,567"), (2.0, "2"), (0.12345, "0.123"), (1234.56, "1,234.6")]
)
def test_numbers_are_what_people_read(value: float | None, text: str) -> None:
    assert number(value) == text
