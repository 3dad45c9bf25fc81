"""The page in headless Chromium, driven by Playwright, before a broker in the test's process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

from canopy_mqtt import Broker
from canopy_mqtt.admin import events
from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.core.queues.message import Message

# What they import looks at files: not in the event loop.
all_routes()

CHROMIUM = shutil.which("chromium")

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip

NO_ANSWER = re.compile("Failed to load resource: (the server responded with|net::ERR_)")

LOOK_AGAIN_SOON = """
const later = window.setTimeout;
window.setTimeout = (call, wait, ...given) => later(call, wait === 2000 || wait === 3000 ? wait / 10 : wait, ...given);
"""
"""What the page waits for before it looks at a list, or for the broker, again: 3 and 2 seconds."""

Visit = Callable[..., Awaitable[Page]]
"""Opens a broker's page at a place (`clients?username=u`), or at the URL of a proxy before it.

What else it gets is for the browser's context."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the browser of this process takes orders: each test has contexts of its own in it."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    folder = tmp_path_factory.mktemp("chromium")
    command = [CHROMIUM, "--headless", "--remote-debugging-port=0", f"--user-data-dir={folder}", *ARGUMENTS]
    with subprocess.Popen([*command, "about:blank"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield next(line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on "))
        process.terminate()


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        yield await playwright.chromium.connect_over_cdp(chromium)


@pytest.fixture
async def visit(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Visit]:
    """Whatever the page writes to the console, and every script error or refusal by its policy, fails the test."""
    monkeypatch.setattr(events, "EVERY", 0.2)
    wrong: list[str] = []
    async with AsyncExitStack() as stack:

        async def open_page(broker: Broker, place: str = "overview", url: str | None = None, **context: Any) -> Page:
            made = await browser.new_context(**context)
            stack.push_async_callback(made.close)
            page = await made.new_page()
            page.set_default_timeout(20_000)
            await page.add_init_script(LOOK_AGAIN_SOON)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "console",
                # An answer that refuses, or a broker that is gone, is told as an error, too; the page has to cope.
                lambda message: None if NO_ANSWER.match(message.text) else wrong.append(message.text),
            )
            await page.goto(f"{url or broker.http[0]}/#/{place}")
            return page

        yield open_page
    assert wrong == []


def retain(broker: Broker, topic: str, payload: bytes = b"value") -> None:
    """Have the broker keep a retained message."""
    broker.router.publish(Message(topic.encode(), payload, 0, True, b"", 0.0, ""), None)
    broker.after_batch()


async def picture(page: Page, name: str) -> None:
    """Take a screenshot where `CANOPY_PICTURES` names a folder."""
    folder = os.environ.get("CANOPY_PICTURES")
    if folder:
        await page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
