"""Pages are few, and their sentences and the cells of their tables are short."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from tests.docs.blocks import PAGES, ROOT
from tests.docs.prose import cells, sentences
from tests.support.runs import for_each

GENERATED: Final = {"commands", "settings"}
"""Pages that tools/reference.py writes as a whole."""

WORDS: Final = 20
"""Of a sentence, on average over a page."""

WIDE: Final = {"architecture", "prove"}
"""Pages with a row for each package and all that it owns, or for each broker and all that was found."""

WRITTEN: Final = sorted({file.stem for file in ROOT.glob("docs/*.md")} - GENERATED)


def test_pages_are_few_enough_to_choose_from() -> None:
    """Who needs one more says which one goes."""
    assert len(WRITTEN) + len(GENERATED) <= 36


@for_each("page", WRITTEN)
def test_sentences_are_short_on_average(page: str) -> None:
    assert fmean(len(sentence.split()) for sentence in sentences(PAGES[page])) <= WORDS


@for_each("page", sorted({*WRITTEN} - WIDE))
def test_a_cell_of_a_table_can_be_read_at_a_glance(page: str) -> None:
    assert [cell for cell in cells(PAGES[page]) if len(cell) > 200] == []


def test_what_counts_as_a_sentence() -> None:
    page = """\
# A heading. It does not count.

**A label.** One (of 3.1.1; not two): `a.b c`
goes on. `x` begins another! Is
it one?

- an item without an end
- An item: the

      first. block

| a cell. It | b |
|---|---|
"""
    assert list(sentences(page)) == [
        "One (of 3.1.1; not two): X X goes on.",
        "X begins another!",
        "Is it one?",
    ]
    assert list(cells("| a `b` [c](d.md) |\n|---|\n| **e** f |\n")) == ["a b c", "e f"]
