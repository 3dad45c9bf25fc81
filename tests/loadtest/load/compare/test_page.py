"""The page of a comparison."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from loadtest.load.compare.page import page, write
from tests.loadtest.load.compare.compared import comparison, result

EVIL = "<script>alert(1)</script>"


class Seen(HTMLParser):
    """The tags and the words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._code = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._code += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_the_page_holds_everything_and_loads_nothing() -> None:
    runs = {
        "canopy": [result(broker_us=4.0), result(broker_us=6.0), result(broker_us=5.0)],
        "mosquitto": [result(broker_us=2.5)],
    }
    seen = Seen(page(comparison(runs, remarks=["a remark"])))
    for words in (
        "unicast: canopy, mosquitto",
        "mosquitto 1.0",
        "a fast one",
        "a remark",
        'name = "unicast"',
    ):
        assert words in seen.text
    assert "5 µs 4 µs – 6 µs" in seen.text
    assert "2.50 µs 0.50× 2.50 µs – 2.50 µs" in seen.text
    assert {attributes.get("src", attributes.get("href")) for _, attributes in seen.tags} == {None, "data:,"}


def test_what_comes_from_outside_does_nothing() -> None:
    what = comparison({"canopy": [result(errors={EVIL: 1})]}, scenario_text=f"# {EVIL}", description=EVIL)
    what.entrants[0].label = EVIL
    what.entrants[0].version = EVIL
    what.environment["cpu"] = EVIL
    text = page(what)
    plain = page(comparison({"canopy": [result()]}))
    assert text.count(EVIL) == 0
    assert len(re.findall("<script", text)) == len(re.findall("<script", plain))
    assert Seen(text).text.count(EVIL) >= 5


def test_a_figure_of_the_generators_is_marked() -> None:
    text = Seen(page(comparison({"canopy": [result(limit="generator")], "mosquitto": [result()]}))).text
    assert "1,000*" in text
    assert "the figure is not the broker's" in text
    assert "the generator was the limit in 1 of 1 runs" in text
    assert "the figure is not the broker's" not in Seen(page(comparison({"canopy": [result()]}))).text


def test_a_page_can_be_made_of_nothing() -> None:
    what = comparison({"aedes": []}, interrupted=True)
    what.entrants[0].failure = "aedes is not installed"
    seen = Seen(page(what))
    for words in ("Nothing was measured", "Interrupted", "aedes is not installed"):
        assert words in seen.text


def test_both_files_are_written_whole(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write(comparison({"canopy": [result()]}), folder) == folder
    assert sorted(folder.iterdir()) == [folder / "compare.html", folder / "compare.json"]
    assert json.loads((folder / "compare.json").read_text())["scenario"] == "unicast"
    assert (folder / "compare.html").read_text().endswith("</html>\n")
