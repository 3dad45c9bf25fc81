"""The documentation site: every page has its place, the generated reference is complete, no link is dead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from canopy_mqtt.command.cli import app
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.settings import defaults
from canopy_mqtt.settings.environment import variable
from tests.support.runs import for_each
from tests.support.tools import load

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
LISTED: Final = re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BLOCK: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


tool = load("docs_site")
reference = load("reference")


@pytest.fixture(scope="module")
def settings_page() -> str:
    """The page of the settings, which takes a second to make."""
    page: str = reference.settings_page()
    return page


def _commands(command: Any, path: str) -> list[str]:
    below = getattr(command, "commands", {})
    return [path, *(each for name, one in below.items() if not one.hidden for each in _commands(one, f"{path} {name}"))]


def test_every_page_has_one_place_in_the_navigation() -> None:
    assert sorted(LISTED) == [page.name for page in PAGES]


def test_the_page_of_settings_has_each_setting_and_its_variable(settings_page: str) -> None:
    page = settings_page
    for name, default in defaults().items():
        assert f"| `{name}` |" in page
        # Lists of tables stand in files alone.
        assert default == () or f"`{variable(name)}`" in page
    for table in ("upstream", "listener", "rule", "authenticator", "queue.rules", "cluster.nodes"):
        assert f"## `[[{table}]]`" in page
    row = next(line for line in page.splitlines() if line.startswith("| `limits.max_packet_size` |"))
    assert "| whole number, 0 to 267,386,884 | `8388608` | Bytes of the largest packet accepted" in row


def test_settings_are_few_enough_to_know() -> None:
    """Who needs one more says which one goes, or why a constant with its reason does not do.

    A cluster has ten: names, addresses and files are those of each node, and its two bounds are promises to operators,
    as is when a node counts as dead: sooner, and one that is slow loses its clients; later, and theirs wait.
    Workers have one, their number.
    """
    assert len(defaults()) <= 160 + 10 + 1


def test_a_setting_leads_to_the_pages_that_explain_it(settings_page: str) -> None:
    page = settings_page
    row = next(line for line in page.splitlines() if line.startswith("| `queue.hold_publishers` |"))
    assert "See [" in row
    assert "[overload](overload.md)" in row


def test_every_setting_tells_what_it_is(settings_page: str) -> None:
    """In the file of the defaults, or beside the model."""
    rows = [line for line in settings_page.splitlines() if line.startswith("| `")]
    assert [row for row in rows if not row.split(" | ")[-1].rstrip(" |").split("<br>")[0]] == []


def test_the_page_of_commands_has_each_command_with_its_options() -> None:
    page = reference.commands_page()
    commands = _commands(typer.main.get_command(app), "canopy")
    assert [line.lstrip("# ") for line in page.splitlines() if line.startswith("##")] == commands
    assert "canopy ctl trace" in commands
    assert "--log-level LEVEL" in page


def shown(name: str) -> str:
    """A page of docs/ as the site has it."""
    text: str = tool.on_page_markdown((ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert "made at the build" not in text
    assert "the site (" not in text
    return text


def test_the_page_of_figures_has_each_figure_and_its_topics() -> None:
    page = shown("sys.md")
    for figure in FIGURES:
        assert not figure.exported or f"| `{figure.metric}" in page
        assert all(f"`{topic.path}`" in page for topic in figure.topics)


def test_the_page_of_conformance_has_each_statement() -> None:
    page = shown("conformance.md")
    for number in re.findall(
        r'id = "(MQTT3?-[\d.-]+)"',
        "".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "conformance").glob("*.toml")),
    ):
        assert f"| {number} |" in page


def test_what_nothing_makes_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing makes"):
        tool.on_page_markdown("<!-- made at the build: tea -->")


def test_the_pages_of_reference_are_those_of_the_code(tmp_path: Path) -> None:
    """The check that `make lint` runs finds a page that somebody changed by hand, and writing it mends that."""
    assert reference.main(["--check"]) == 0
    made = tmp_path / "settings.md"
    made.write_text((ROOT / "docs" / "settings.md").read_text(encoding="utf-8") + "by hand", encoding="utf-8")
    assert reference.main(["--check", "--docs", str(tmp_path)]) == 1
    assert reference.main(["--write", "--docs", str(tmp_path)]) == 0
    assert reference.main(["--check", "--docs", str(tmp_path)]) == 0
    assert "by hand" not in made.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@for_each("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    """In the repository as one sees it; `make docs` looks at those of the site."""
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), target


def test_pictures_are_few_small_and_shown() -> None:
    """`make pictures` makes them; a clone has them all."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = sorted((ROOT / "docs" / "assets").glob("*.png"))
    assert 0 < len(pictures) <= 6
    for picture in pictures:
        assert picture.stat().st_size <= 150_000, picture.name
        assert f"](assets/{picture.name})" in text


def test_a_link_out_of_the_folder_leads_to_a_copy_and_one_to_a_folder_is_text() -> None:
    page = tool.on_page_markdown(
        "[a](../config/edge.toml), [`b[0]`](../broker/canopy_mqtt/words.py#L3), [c/](../config/), [d](sys.md)"
    )
    assert page == "[a](source/config/edge.toml.txt), [`b[0]`](source/broker/canopy_mqtt/words.py.txt), c/, [d](sys.md)"
