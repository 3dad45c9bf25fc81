"""The picture: well-formed, a line for each layout, a mark for each count, every line with its name."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.figures import short_count
from benchmarks.routing.plot import PANELS, draw, main

SVG = "{http://www.w3.org/2000/svg}"
COUNTS = (1e3, 1e4, 1e5, 1e6)
CROWDS = (10.0, 1e3, 1e5)


def data() -> dict[str, Any]:
    filters = [
        {
            "count": count,
            "insert_ns": 500.0 + at,
            "match_ns": 300.0,
            "remove_ns": 2.0,
            "bytes": 230.0,
            "bytes_index": 9.0,
        }
        for at, count in enumerate(COUNTS)
    ]
    subscribers = [{"count": count, "add_ns": 100.0, "discard_ns": 50.0, "deliver_ns": 33.0} for count in CROWDS]
    both = {"filters": filters, "subscribers": subscribers}
    return {"core": "compiled", "growth": {name: {"nodes": points, "<b>": points} for name, points in both.items()}}


def test_a_line_for_each_layout_and_a_mark_for_each_count() -> None:
    root = ElementTree.fromstring(draw(data()))
    panels = root.findall(f"{SVG}g")
    assert len(panels) == len(PANELS)
    for panel, (series, *_) in zip(panels, PANELS, strict=True):
        counts = COUNTS if series == "filters" else CROWDS
        lines = panel.findall(f"{SVG}polyline")
        assert [len(line.attrib["points"].split()) for line in lines] == [len(counts)] * 2
        assert len({line.attrib["stroke"] for line in lines}) == 2
        assert len(panel.findall(f"{SVG}circle")) == 2 * len(counts)
        texts = [text.text for text in panel.findall(f"{SVG}text")]
        labels = [text for text in panel.findall(f"{SVG}text") if text.find(f"{SVG}tspan") is not None]
        names = {text.findtext(f"{SVG}tspan", ""): text.attrib["fill"] for text in labels}
        assert sorted(names) == ["<b>", "nodes"]
        assert sorted(names.values()) == sorted(line.attrib["stroke"] for line in lines)
        assert {short_count(count) for count in counts} <= set(texts)


def test_the_axis_is_logarithmic_and_the_cost_starts_at_zero() -> None:
    root = ElementTree.fromstring(draw(data()))
    line = next(root.iter(f"{SVG}polyline"))
    across = [float(point.split(",")[0]) for point in line.attrib["points"].split()]
    steps = [after - before for before, after in pairwise(across)]
    assert max(steps) - min(steps) < 0.3
    assert "0" in [text.text for text in root.iter(f"{SVG}text")]


def test_one_count_alone_can_be_drawn() -> None:
    small = data()
    for series in small["growth"].values():
        for layout in series:
            series[layout] = series[layout][:1]
    ElementTree.fromstring(draw(small))


def test_the_command_writes_the_picture(tmp_path: Path) -> None:
    source, target = tmp_path / "growth.json", tmp_path / "growth.svg"
    source.write_text(json.dumps(data()))
    assert main([str(source), str(target)]) == 0
    ElementTree.parse(target)


def test_the_command_refuses_what_it_cannot_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "rows.json"
    source.write_text('{"rows": []}')
    assert main([str(source), str(tmp_path / "x.svg")]) == 2
    assert main([str(tmp_path / "none.json"), str(tmp_path / "x.svg")]) == 2
    assert main([]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert not (tmp_path / "x.svg").exists()
