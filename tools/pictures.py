"""Makes the pictures of the documentation and of the Home Assistant app: screenshots, by Chromium.

    make pictures

A broker with its recorder serves the sample plant of `make demo` and a load for some seconds; then the pipeline reads
the record. Figures in the pictures are those of the machine that makes them. It needs Chromium.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, async_playwright, expect

from tools.programs import ROOT, fail

CANOPY: Final = (sys.executable, "-P", "-m", "canopy_mqtt")
PICTURES: Final = ROOT / "docs" / "assets"
APP: Final = ROOT / "config" / "homeassistant" / "canopy"
ICON: Final = ROOT / "broker" / "canopy_mqtt" / "admin" / "page" / "static" / "icon.svg"

MAX_BYTES: Final = 150_000
"""Of a picture: a clone has them all."""

WIDTH: Final = 1_100
"""Pixels, of the page's columns side by side."""

SCALE: Final = "0.3"
"""Of the fleet's clients: any machine carries so many beside a browser."""

SECONDS: Final = 14.0
"""Of load, which the charts of the page show."""

FLEET: Final = re.compile(r"\b1\d\d clients")
"""What the page's headline says once the fleet is there."""

LOGO: Final = """
<body style="margin:0"><div style="width:250px;height:100px;display:flex;align-items:center;gap:14px;
justify-content:center;font:600 40px sans-serif;color:#1d7a4f;background:#fff">
<div style="width:72px">{icon}</div>Canopy</div>
"""


async def run(folder: Path, *words: str) -> None:
    """Run a command of Canopy in a folder to its end. Fails with what it wrote."""
    process = await asyncio.create_subprocess_exec(*CANOPY, *words, stdout=PIPE, stderr=STDOUT, cwd=folder)
    told, _ = await process.communicate()
    if process.returncode:
        fail(f"canopy {' '.join(words)}\n{told.decode()}")


async def started(process: Process) -> tuple[str, str]:
    """Return the broker's MQTT URL and that of its page."""
    assert process.stderr is not None
    async for line in process.stderr:
        if line.startswith(b"{") and (event := json.loads(line))["event"] == "started":
            return event["listening"][0], event["http"][0]
    return fail("the broker did not start")


@asynccontextmanager
async def broker(record: Path) -> AsyncIterator[tuple[str, str]]:
    """Run a broker that records, while the block lasts: its MQTT URL, and that of its page."""
    settings = ("http.listen=http://127.0.0.1:0", f"recorder.directory={record}", "recorder.deliveries=true")
    sets = [word for setting in (*settings, "log.format=json") for word in ("--set", setting)]
    process = await asyncio.create_subprocess_exec(
        *CANOPY, "serve", "--listen", "mqtt://127.0.0.1:0", *sets, stderr=PIPE
    )
    try:
        urls = await started(process)
        # The broker does not wait for a reader of its log.
        assert process.stderr is not None
        reading = asyncio.create_task(process.stderr.read())
        yield urls
        process.terminate()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def save(page: Page, file: Path) -> None:
    """Save what the browser shows. Fails if the picture is too large."""
    size = len(await page.screenshot(path=str(file)))
    print(f"canopy: {file.relative_to(ROOT)}: {size:,} bytes")
    if size > MAX_BYTES:
        fail(f"{file}: more than {MAX_BYTES:,} bytes")


async def icons(browser: Browser) -> None:
    """Make the icon and the logo of the app from the icon of the page."""
    icon = ICON.read_text(encoding="utf-8")
    shapes: Sequence[tuple[str, int, int, str]] = (
        ("icon", 128, 128, f'<body style="margin:0">{icon}'),
        ("logo", 250, 100, LOGO.format(icon=icon)),
    )
    for name, width, height, content in shapes:
        page = await browser.new_page(viewport={"width": width, "height": height})
        await page.set_content(content)
        await save(page, APP / f"{name}.png")
        await page.close()


async def screenshots(browser: Browser, folder: Path) -> None:
    """Make the pictures of the page and of the reports."""
    page = await browser.new_page(viewport={"width": WIDTH, "height": 760})
    async with broker(folder / "record") as (mqtt, http):
        plant = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "tools" / "plant.py"), mqtt.rpartition(":")[2]
        )
        await plant.wait()
        await page.goto(f"{http}/#/overview")
        load = ("load", "run", "mixed-fleet", "--target", mqtt, "--out", "load", "--scale", SCALE)
        loading = asyncio.create_task(run(folder, *load))
        await expect(page.locator("#headline")).to_contain_text(FLEET, timeout=60_000)
        await asyncio.sleep(SECONDS)
        await save(page, PICTURES / "page-overview.png")
        subscriptions = await (await page.request.get(f"{http}/api/v5/subscriptions?limit=1000")).text()
        of_the_run = re.search(r"fleet/[0-9a-f]{8}/", subscriptions)
        assert of_the_run is not None
        await page.goto(f"{http}/#/explain?topic={of_the_run[0]}telemetry/region-1/1")
        await expect(page.locator("main")).to_contain_text("ingest")
        await save(page, PICTURES / "page-explain.png")
        await loading
    await page.goto((folder / "load" / "report.html").as_uri())
    await save(page, PICTURES / "load-report.png")
    await run(folder, "pipeline", "report", "--input", "record", "--output", "report")
    await page.goto((folder / "report" / "index.html").as_uri())
    await save(page, PICTURES / "pipeline-report.png")
    await page.close()


async def main() -> None:
    """Make all pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        fail("needs chromium: apt install chromium")
    with tempfile.TemporaryDirectory(prefix="canopy-pictures-") as folder:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            await icons(browser)
            if sys.argv[1:] != ["icons"]:
                await screenshots(browser, Path(folder))
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
