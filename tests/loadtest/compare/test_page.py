"""The page of a comparison."""

from __future__ import annotations

import html
import re

from canopy_load.compare.compare_page import page
from tests.loadtest.compare.compared import comparison, result

EVIL = "<script>alert(1)</script>"


def words_of(text: str) -> str:
    """What people read."""
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(shown).split())


def test_the_page_holds_everything_and_loads_nothing() -> None:
    runs = {
        "canopy": [result(broker_us=4.0), result(broker_us=6.0), result(broker_us=5.0)],
        "mosquitto": [result(broker_us=2.5)],
    }
    text = page(comparison(runs, remarks=["a remark"]))
    seen = words_of(text)
    for words in (
        "unicast: canopy, mosquitto",
        "mosquitto 1.0",
        "a fast one",
        "a remark",
        'name = "unicast"',
    ):
        assert words in seen
    assert "5 µs 4 µs – 6 µs" in seen
    assert "2.50 µs 0.50× 2.50 µs – 2.50 µs" in seen
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,"]


def test_what_comes_from_outside_does_nothing() -> None:
    what = comparison({"canopy": [result(errors={EVIL: 1})]}, scenario_text=f"# {EVIL}", description=EVIL)
    what.entrants[0].label = EVIL
    what.entrants[0].version = EVIL
    what.environment["cpu"] = EVIL
    text = page(what)
    plain = page(comparison({"canopy": [result()]}))
    assert text.count(EVIL) == 0
    assert len(re.findall("<script", text)) == len(re.findall("<script", plain))
    assert words_of(text).count(EVIL) >= 5
