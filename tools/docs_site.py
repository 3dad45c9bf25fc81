"""Makes the parts of the documentation site that are not in docs/: hooks of mkdocs, which `mkdocs.yml` names.

A page says in a comment what is put in while the site is built: the statements of the specifications, from the tags. A
file outside of docs/ to which a page links (`../config/edge.toml`) goes into the site as it is, below `source/`: so the
link holds there as in a clone.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = re.compile(r"\[((?:`[^`]*`|[^\]`])*)\]\(\.\./([^)#\s]+)(?:#[^)\s]*)?\)")
"""A link out of docs/: its text, and the path from the project's root."""
MADE: Final = re.compile(r"<!-- made at the build: ([\w ]+) -->")
"""The comment in a page that names what is put in."""

ONLY_IN_THE_SITE: Final = re.compile(r"[^.\n]*\bthe site \(`make docs`\)[^\n]*\n")
"""The sentence of a page for readers of a clone."""


def completed(markdown: str) -> str:
    """A page of docs/ with what its comment says is made at the build."""
    page = ONLY_IN_THE_SITE.sub("", markdown)
    match MADE.search(markdown):
        case None:
            return markdown
        case made if made[1] == "statements":
            return page.replace(made[0], conformance.statements(ROOT))
        case made:
            raise ValueError(f"nothing makes what is to stand in place of {made[0]}")


# It stands beside this file, where mkdocs lets hooks import from.
conformance: Final[Any] = importlib.import_module("conformance")


def outside(text: str) -> Iterator[str]:
    """The paths of the files and folders outside of docs/ to which a page links."""
    for match in OUTSIDE.finditer(text):
        yield match[2].rstrip("/")


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: every file outside of docs/ that a page links to."""
    from mkdocs.structure.files import File  # the tests of the pages need no mkdocs

    wanted = {path for file in files.documentation_pages() for path in outside(file.content_string)}
    for path in sorted(wanted):
        if (ROOT / path).is_file():
            files.append(File.generated(config, f"source/{path}{_as_text(path)}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs: links out of docs/ lead to the copies; a folder has none, and is named without a link."""

    def inside(match: re.Match[str]) -> str:
        path = match[2].rstrip("/")
        if (ROOT / path).is_dir():
            return match[1]
        # A file that is not there has no copy, which strict mode says.
        return f"[{match[1]}](source/{path}{_as_text(path)})"

    return OUTSIDE.sub(inside, completed(markdown))


def _as_text(path: str) -> str:
    """A browser shows a text file; it would offer the others for saving, and mkdocs would make pages of Markdown."""
    return "" if path.endswith((".svg", ".png", ".json", ".xml", ".txt")) else ".txt"
