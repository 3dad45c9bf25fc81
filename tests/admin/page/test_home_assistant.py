"""The page in the sidebar of Home Assistant: in a frame, through its ingress and the app's own proxy."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, expect

from tests.support.home_assistant import App

PUBLISH = """async () => (await fetch("api/v5/publish", {
    method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({topic: "home/kitchen", payload: "21", retain: true}),
})).status"""


async def test_it_shows_what_changes_and_may_change_things(browser: Browser, tmp_path: Path) -> None:
    """Home Assistant's page may frame it, its live figures come, and a request that changes something is taken."""
    async with App(tmp_path).running() as home:
        context = await browser.new_context()
        page = await context.new_page()
        page.set_default_timeout(20_000)
        await page.goto(f"{home.url}/")
        frame = page.frame_locator("iframe")
        await expect(frame.locator("#headline")).not_to_be_empty(timeout=20_000)
        assert await frame.locator("body").evaluate(PUBLISH) == 200
        await frame.locator("body").evaluate("location.hash = '#/retained'")
        await expect(frame.get_by_text("home/kitchen")).to_be_visible(timeout=20_000)
        await context.close()
