"""A page in a real browser: headless Chromium, cut off from every name.

Owns: ``opened``, which loads a file and returns what became of it.

Promises: nothing leaves the machine: no host name resolves. The browser's own errands (updates, accounts) are not
counted as the page's.

What should stand on the page, the test says.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest


@dataclass
class Opened:
    """A page after its scripts have run."""

    dom: str
    console: list[str]
    """What it wrote to the console, errors among it."""
    fetched: list[str]
    """What it asked the network for; the file itself and data URLs are not the network."""
    figures: dict[str, Counter[str]] = field(default_factory=dict)
    """For each figure, by its id, how many elements bear which class (an element without one: its name)."""
    elements: Counter[str] = field(default_factory=Counter)
    title: str = ""
    text: str = ""
    """What stands in the body, between the tags, without scripts."""


def opened(page: Path, folder: Path, width: int = 800) -> Opened:
    """Load a page in a window of so many pixels and wait until it is at rest. Without Chromium, the test is skipped."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    log = folder / "net.json"
    done = subprocess.run(
        [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
            f"--window-size={width},800", "--disable-background-networking", "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}",
            "--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom", page.as_uri(),
        ],
        capture_output=True,
        timeout=90,
        check=True,
    )  # fmt: skip
    reader = _Reader()
    reader.feed(done.stdout.decode())
    reader.close()
    found = reader.opened
    found.dom = done.stdout.decode()
    found.console = [line for line in done.stderr.decode(errors="replace").splitlines() if ":CONSOLE" in line]
    found.fetched = list(_asked_by_the_page(log))
    return found


def _asked_by_the_page(log: Path) -> Iterator[str]:
    """Requests that the page initiated. The browser's own have no origin."""
    for event in json.loads(log.read_text())["events"]:
        about = event.get("params", {})
        if "url" in about and about.get("initiator", "not an origin") != "not an origin":
            url = str(about["url"])
            if urlsplit(url).scheme not in ("file", "data", "blob"):
                yield url


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened = Opened("", [], [])
        self._figure: Counter[str] | None = None
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.opened.elements[tag] += 1
        if tag == "figure":
            self._figure = self.opened.figures[attributes.get("id") or ""] = Counter()
        if self._figure is not None:
            self._figure.update((attributes.get("class") or tag).split())
        if tag in ("title", "script", "style"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "figure":
            self._figure = None
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "title":
            self.opened.title += data
        elif not self._inside:
            self.opened.text += data
