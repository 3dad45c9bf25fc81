"""The commands of the pages run as they stand there, and print what the pages show."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import BLOCKS
from tests.docs.stages import BEFORE, NOT_RUN
from tests.docs.terminals import Command, Reader, commands
from tests.support.runs import for_each

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    page for page in sorted((ROOT / "docs").glob("*.md")) if next(commands(page.read_text(encoding="utf-8")), None)
]
NEEDED: Final = ("bash", "openssl", "mosquitto_pub", "mosquitto_sub")


SCRIPTS: Final = tuple(
    block
    for block in BLOCKS
    if block.language == "sh"
    and not any(block.page == page and block.text.startswith(first) for page, first in NOT_RUN)
)
QUICK: Final = {"README", "security-tokens"}
"""Pages whose commands take some seconds, and run with the tests that protect."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in QUICK else pytest.mark.long)
        for page in sorted({block.page for block in SCRIPTS})
    ],
)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    for tool in (*NEEDED, "mosquitto", "sqlite3"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    with Reader(tmp_path) as reader:
        for block in (each for each in SCRIPTS if each.page == page):
            for (name, first), stage in BEFORE.items():
                if page == name and block.text.startswith(first):
                    stage(reader)
            assert reader.script(block.text)
            reader.leave()


@for_each("listed", [*NOT_RUN, *BEFORE], ids=" ".join)
def test_what_is_listed_is_there(listed: tuple[str, str]) -> None:
    page, first = listed
    assert any(block.page == page and block.text.startswith(first) for block in BLOCKS)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    for tool in NEEDED:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    with Reader(tmp_path) as reader:
        assert reader.follow(page.read_text(encoding="utf-8"))


def test_the_tutorial_is_among_the_pages_that_are_run() -> None:
    assert "tutorial" in {page.stem for page in PAGES}


class TestTheReader:
    """It would notice a page that is wrong."""

    def test_a_page_is_taken_apart(self) -> None:
        page = '```console\n$ a <<E\n> b\n>\n> E\nshown\n$ c\n```\n\n```console title="T"\n$ d\n```\n```sh\n$ e\n```\n'
        page += '```toml title="f.toml"\ng = 1\n```\n'
        assert list(commands(page)) == [
            Command("", "a <<E\nb\n\nE", "shown\n"),
            Command("", "c", ""),
            Command("T", "d", ""),
            Command("", "cat > f.toml <<'END'\ng = 1\nEND", ""),
        ]

    def test_what_is_shown_has_to_be_printed(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader:
            assert reader.follow("```console\n$ printf 'a b\\nc\\nd\\n'\na …\n…\nd\n$ printf 'x\\n'\nx\n```\n") == 2
            with pytest.raises(AssertionError, match="printed"):
                reader.follow("```console\n$ echo a\nb\n```\n")
            with pytest.raises(AssertionError, match="ended with 3"):
                reader.follow("```console\n$ exit 3\n```\n")

    def test_a_terminal_runs_until_it_is_interrupted(self, tmp_path: Path) -> None:
        page = '```console title="T"\n$ sleep 1000\n```\n```console title="T"\n^C\n```\n'
        with Reader(tmp_path) as reader:
            assert reader.follow(page) == 2
            with pytest.raises(AssertionError, match="ended"):
                reader.follow('```console title="T"\n$ true\nready\n```\n')

    def test_ports_become_free_ones(self, tmp_path: Path) -> None:
        with Reader(tmp_path) as reader, pytest.raises(AssertionError):
            reader.follow("```console\n$ echo 1883 | grep 1883 | grep -w $((1880 + 3))\n```\n")
