"""The benchmark of the mesh: its formulas, its page, and small whole runs on real brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mesh import paper
from benchmarks.mesh.cli import PARTS, fill, main, parse
from benchmarks.mesh.interest import Figures
from benchmarks.mesh.joining import fill as retain
from benchmarks.mesh.nodes import await_that, connected, scene, start_node
from benchmarks.network.links import LoadError

ROOT = Path(__file__).resolve().parents[3]
KNOWN = paper.Constants(
    Figures(filter_bytes=400.0, filter_cpu=5.0, churn_cpu=100.0, churn_own_cpu=20.0, churn_wire=90.0, idle_cpu=200.0),
    local_cpu=1.0,
    crossing_cpu=3.0,
)


def test_growth_is_by_its_formulas() -> None:
    found = paper.growth(11, KNOWN, filters=1_000, churn=2.0)
    assert (found.links, found.filters_known, found.memory) == (10, 10_000, 4_000_000.0)
    assert found.background_cpu == pytest.approx(10 * (200 + 2 * 120) / 1e6)
    assert found.background_wire == pytest.approx(10 * (2 * 90 + 8_202 / 60))
    assert found.delivery_cpu == pytest.approx((1.0 + 10 * 3.0) / 11)


def test_every_formula_and_size_is_printed() -> None:
    text = paper.text(KNOWN)
    assert all(formula in text for formula in paper.FORMULAS)
    assert [line.split()[0] for line in text.splitlines()[-len(paper.SIZES) :]] == [str(each) for each in paper.SIZES]


def test_the_page_has_a_place_for_each_table() -> None:
    page = (ROOT / "docs" / "benchmarks-mesh.md").read_text(encoding="utf-8")
    for part in PARTS:
        page = fill(page, part, f"the table {part}\n---")
    assert all(f"<!-- {part} -->\n```text\nthe table {part}\n---\n```\n" in page for part in PARTS)
    with pytest.raises(LookupError, match="0 places"):
        fill(page, "other", "")


def test_unknown_loads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["crossing", "--rows", "none"])
    assert "no load 'none'" in capsys.readouterr().err


@pytest.mark.long
def test_nodes_become_one() -> None:
    """One joins another that has retained messages, and has them then."""
    with scene() as stack:
        first = start_node(stack, "a", [], None)
        retain(first, 100)
        await_that("it is alone", lambda: connected(first, 0))
        second = start_node(stack, "b", [first], None)
        for node in (first, second):
            await_that("both are in step", lambda node=node: connected(node, 1))  # type: ignore[misc]
        with pytest.raises(LoadError, match="three nodes"):
            await_that("three nodes", lambda: connected(first, 2), patience=0.0)


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_small_run(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part prints its table, and writes it into the page."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- {part} -->\n```text\n```\nafter\n", encoding="utf-8")
    assert main([part, "--quick", "--rows", "pairs", "--page", str(page)]) == 0
    text = (
        page.read_text(encoding="utf-8")
        .removeprefix(f"before\n<!-- {part} -->\n```text\n")
        .removesuffix("```\nafter\n")
    )
    assert len(text.splitlines()) > 3
    assert text in capsys.readouterr().out
    assert "FAILED" not in text
