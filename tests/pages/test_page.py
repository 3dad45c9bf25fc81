"""What the pages of the load report and of the pipeline are made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from canopy_mqtt.pages import BLUE, TIME, Bar, Chart, Page, Series, Stage, linked, number, over
from canopy_mqtt.pages.page import ROWS, VALUES
from tests.loadtest.report.browser import opened

EVIL = "</script><script>document.title='owned'</script>"
DAY = 1_800_000_000


def plots() -> list[Chart]:
    """One of each kind."""
    times = [float(DAY + at) for at in range(20)]
    ups = [float(at) for at in range(20)]
    lines = [Series(EVIL, ups, BLUE), Series("b", [1.0, None] * 10, BLUE, dashed=True, right=True)]
    x, values = over({"curve": {1.0: 9.0, 10.0: 3.0}, "chosen": {5.0: 4.0}})
    steps = [Series(name, values[name], BLUE, steps=name == "curve") for name in values]
    bars = [Series("up", ups, BLUE, bars=True), Series("more", ups, BLUE, bars=True)]
    stages = [Stage(EVIL, 0, 10, shaded=True), Stage("rest", 10, 20)]
    return [
        Chart("lines", "Lines", "", times, lines, "a", "b", x_unit=TIME),
        Chart("bars", "Bars", "", ups, bars, stacked=True, stages=stages, named=True),
        Chart("steps", "Steps", "", x, steps, x_unit="filters", x_powers=True, joined=True),
        Chart("dot", "A point", "", [1.0], [Series("", [0.0], BLUE)], powers=True),
        Chart("none", "None", "", absent="Nothing was there."),
    ]


def made() -> Page:
    page = Page(f"Title {EVIL}", "about")
    for plot in plots():
        page.plot(plot)
    page.bars("tree", "Tree", "Of topics.", [Bar("all", 10, "10"), Bar(EVIL, 4, "4", low=2, high=5, depth=1)])
    page.table(["name", "count"], [[EVIL, 1]])
    return page


def test_every_kind_of_plot_is_drawn_and_nothing_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(made().html())

    found = opened(tmp_path / "page.html", tmp_path)

    assert (found.console, found.fetched) == ([], [])
    drawn = {key: classes["drawn"] for key, classes in found.figures.items()}
    assert drawn == {"lines": 1, "bars": 1, "steps": 1, "dot": 1, "none": 0, "tree": 0}
    assert {key: classes["u-series"] for key, classes in found.figures.items() if classes["drawn"]} == {
        "lines": 3, "bars": 3, "steps": 3, "dot": 2,
    }  # fmt: skip
    assert found.figures["bars"]["stage-name"] == 2
    assert (found.figures["tree"]["bar"], found.figures["tree"]["whisker"]) == (2, 1)
    assert found.elements["script"] == 2
    assert found.title.startswith("Title </script>")


def test_a_page_is_small() -> None:
    assert len(made().html()) < 100_000


def test_values_without_a_place_are_refused() -> None:
    with pytest.raises(ValueError, match="s has 1 values at 2 places"):
        Chart("c", "", "", [1, 2], [Series("s", [1], BLUE)]).data()
    with pytest.raises(ValueError, match="does not ascend"):
        Chart("c", "", "", [2, 2], [Series("s", [1, 1], BLUE)]).data()


def test_a_chart_has_its_values_beside_it_of_many_every_second() -> None:
    page = Page("Values")
    page.plot(Chart("few", "", "", [1, 2], [Series("a", [3.0, None], BLUE)], "ms"))
    many = range(VALUES + 1)
    page.plot(Chart("many", "", "", many, [Series("b", many, BLUE)], x_unit=TIME))
    html = page.html()
    assert '<th scope="col">a, ms</th>' in html
    assert "<td>1</td><td>3</td></tr><tr><td>2</td><td>–</td>" in html
    assert f"as a table, 51 of {VALUES + 1} rows" in html
    assert '1970-01-01 00:00:02</td><td>2</td></tr><tr><td class="left">1970-01-01 00:00:04</td>' in html


def test_no_text_is_markup() -> None:
    html = made().html()
    data = html.split('id="charts">', 1)[1].split("</script>", 1)[0]
    assert EVIL not in html
    assert len(json.loads(data)) == 4
    assert '<td class="left">&lt;/script&gt;' in html


def test_links_come_to_the_top_of_a_page_that_is_whole() -> None:
    page = linked(Page("One").html(), {"all": "index.html", "one": "one.html", "<two>": 'a"b.html'}, "one")
    assert '<nav><a href="index.html">all</a><b>one</b><a href="a&quot;b.html">&lt;two&gt;</a></nav>' in page
    assert page.index("<nav>") < page.index("<h1>")


def test_a_long_text_is_folded() -> None:
    page = Page("Long")
    page.folded("a log of <x>", "one\n<two>")
    html = page.html()
    assert "<summary>a log of &lt;x&gt;, 2 lines</summary><pre>one\n&lt;two&gt;</pre>" in html


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
