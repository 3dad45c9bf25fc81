"""The built site in a browser: nothing is broken, comes from elsewhere or sticks out, and search answers."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright

from tests.admin.page.conftest import ARGUMENTS, CHROMIUM

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index", "operations", "embedding", "recorder", "architecture", "tutorial", "settings", "hooks")
PATIENCE = 100_000.0
"""Milliseconds for what a page loads, the index of the search among it: no promise, but a bound."""
CONTRAST = 4.5
"""Of text, by WCAG 2.1, 1.4.3."""
PALE = """([selector, least]) => {
    const parts = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => {
        const [r, g, b] = parts(colour).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor, alpha = parts(colour)[3] ?? 1;
            if (alpha === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [...document.querySelectorAll(selector)].filter(each => each.textContent.trim());
    if (!found.length) return ["nothing is " + selector];
    return found.map(each => {
        const [a, b] = [getComputedStyle(each).color, behind(each)].map(light).sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), each.textContent.trim()];
    }).filter(([ratio]) => ratio < least);
}"""
"""The elements whose text has less contrast with what is behind it."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing of it."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of the built site."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: make setup")
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


ASKED_AND_FOUND = """() => {
    document.querySelector(".md-search__input").dispatchEvent(new KeyboardEvent("keyup"));
    return document.querySelector(".md-search-result__item") !== null;
}"""
"""JavaScript: let a key of the search go, and say whether there are results."""


def watch(page: Page, site: str) -> list[str]:
    """What goes wrong on a page from now on."""
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith((site, "data:", "blob:")) else wrong.append(request.url),
    )
    return wrong


@pytest.mark.long
async def test_pages_light_dark_wide_and_narrow(site: str) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        # The width decides what sticks out, and the colours what is pale: those of a few pages are those of all.
        for dark, width, names in ((False, 390, PAGES), (False, 1280, PAGES), (True, 1280, PAGES[:2])):
            page = await browser.new_page(color_scheme="dark" if dark else "light")
            page.set_default_timeout(PATIENCE)
            wrong = watch(page, site)
            await page.set_viewport_size({"width": width, "height": 800})
            for name in names:
                await page.goto(f"{site}/{name}.html")
                beyond = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert (name, width, beyond <= 0) == (name, width, True)
                if width == 390:
                    continue
                for selector in (".md-content a:not(.headerlink)", ".md-header__topic", ".md-typeset p"):
                    pale = await page.evaluate(PALE, [selector, CONTRAST])
                    assert (name, dark, selector, pale) == (name, dark, selector, [])
            assert wrong == []
        await page.goto(f"{site}/index.html")
        await page.fill(".md-search__input", "receive_maximum")
        # The page reads the words when a key is let go, once it listens: it may not do so yet.
        await page.wait_for_function(ASKED_AND_FOUND, polling=100)
        await browser.close()
