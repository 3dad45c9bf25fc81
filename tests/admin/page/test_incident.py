"""The page in an incident and after it: what was before it was opened, gaps, and a broker that comes back."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from canopy_mqtt import Broker, Settings
from canopy_mqtt.admin import events
from canopy_mqtt.core.ledger import FULL_MESSAGES
from tests.admin.conftest import Serve
from tests.admin.page.conftest import Visit, picture, retain
from tests.e2e import wire
from tests.support.waiting import until

AT = events.SAMPLE.index("at")
LAG = events.SAMPLE.index("lag")


async def drawn(page: Page, what: str) -> Any:
    """What the charts draw, as `live.js` has it."""
    return await page.evaluate(f"import('/page/live.js').then((live) => [live.{what}])")


def past(broker: Broker, *ages: float) -> None:
    """Have the broker have taken samples so many seconds ago, before those that it has."""
    assert broker.admin is not None
    samples = broker.admin.feed.samples
    newest = samples[-1]
    old = []
    for number, age in enumerate(ages):
        row = list(newest)
        row[AT], row[LAG] = newest[AT] - age * 1000, 5.0
        row[1] = number
        old.append(row)
    samples.extendleft(reversed(old))


@pytest.mark.long
async def test_no_line_leads_over_what_was_not_measured(serve: Serve, visit: Visit) -> None:
    """Neither of rates nor of values; and what is older than the axis does not decide how high it is."""
    broker = await serve()
    past(broker, 4_000, 3_999, 400, 399, 398)
    page = await visit(broker)
    await expect(page.locator("figure canvas")).to_have_count(6)
    # All at once: a sample more comes a moment later.
    times, lags, rates = await drawn(page, "times(), live.values('lag'), live.rates('received')")
    assert len(times) == len(lags) == len(rates)
    assert times == sorted(times)
    assert times[-1] - times[0] <= 600
    assert lags[:4] == [5.0, 5.0, 5.0, None]
    assert rates[1:5] == [1.0, 1.0, None, None]
    assert None not in lags[4:]
    await picture(page, "gap")


@pytest.mark.long
async def test_two_pages_have_the_same_samples(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    one = await visit(broker)
    other = await visit(broker, "slow")
    for page in (one, other):
        await expect(page.locator("#headline")).to_contain_text("All is well")
    times = [(await drawn(page, "live.samples.map((each) => each.at)"))[0] for page in (one, other)]
    assert all(len(each) == len(set(each)) for each in times)
    assert broker.admin is not None
    taken = {row[AT] for row in broker.admin.feed.samples}
    assert set(times[0]) | set(times[1]) <= taken


async def test_a_restart_is_told_and_what_was_shown_is_read_again(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    url = broker.http[0]
    page = await visit(broker, "clients")
    headline = page.locator("#headline")
    await expect(headline).to_contain_text("All is well")
    await broker.stop()
    await expect(headline).to_contain_text("the broker does not answer")
    await expect(headline).not_to_contain_text("All is well")
    await expect(page.locator("main").get_by_role("alert")).to_contain_text("the broker does not answer")
    again = Broker(
        Settings.model_validate(
            {"listen": ("mqtt://127.0.0.1:0",), "http": {"listen": (url,)}, "sys": {"interval": 0.0}}
        )
    )
    async with again:
        peer = await wire.Peer.join(again.ports[0], "came-back")
        await expect(headline).to_contain_text("All is well")
        await expect(page.get_by_role("table", name="Clients")).to_contain_text("came-back")
        await expect(page.locator("main").get_by_role("alert")).to_have_count(0)
        await expect(page.get_by_role("link", name="Clients")).to_have_attribute("aria-current", "page")
        peer.abort()


@pytest.mark.long
async def test_an_address_of_no_view_says_so(serve: Serve, visit: Visit) -> None:
    page = await visit(await serve(), "nowhere?x=1")
    await expect(page.get_by_role("heading", name="There is no such view")).to_be_visible()
    await page.locator("main").get_by_role("link", name="Clients").click()
    await expect(page.get_by_role("heading", name="Clients")).to_be_visible()


@pytest.mark.long
async def test_a_client_that_is_gone_has_no_buttons(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    page = await visit(broker, "client?id=here")
    main = page.locator("main")
    await expect(main.get_by_role("alert")).to_contain_text("There is no client or session")
    await expect(main.get_by_role("button")).to_have_count(0)
    peer = await wire.Peer.join(broker.ports[0], "here", props=[(wire.SESSION_EXPIRY, 3600)])
    await expect(main.get_by_role("button", name="Disconnect")).to_be_visible()
    peer.abort()
    # Its session is there, and no connection that could be ended.
    await expect(main.get_by_role("button", name="Disconnect")).to_have_count(0)
    await expect(main.get_by_role("button", name="End the session")).to_be_visible()
    broker.router.end_session(broker.router.sessions["here"], broker.loop.time())
    await expect(main.get_by_role("button")).to_have_count(0)


@pytest.mark.long
async def test_a_list_follows_and_a_search_finds_capitals(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    page = await visit(broker, "clients?like_clientid=SENSOR")
    table = page.get_by_role("table", name="Clients")
    await expect(table).to_contain_text("No entries.")
    peer = await wire.Peer.join(broker.ports[0], "Sensor-7")
    await expect(table).to_contain_text("Sensor-7")
    await expect(page.get_by_label("Client identifier contains")).to_have_value("SENSOR")
    peer.abort()
    await expect(table).to_contain_text("No entries.")


async def test_who_lost_messages_and_who_was_refused_is_there_after_they_left(serve: Serve, visit: Visit) -> None:
    broker = await serve(queue={"report_interval": 0.1})
    peer = await wire.Peer.join(broker.ports[0], "dashboard", version=4)
    broker.router.sessions["dashboard"].ledger.lost(FULL_MESSAGES, 4_157)
    await peer.publish("$SYS/<b>", b"x", qos=1)
    page = await visit(broker, "client?id=dashboard")
    await expect(page.locator("main")).to_contain_text("publish 1; the last at")
    await expect(page.locator("main")).to_contain_text("publish $SYS/<b> by the topic is the broker's own")
    peer.abort()
    await until(lambda: broker.monitor.losers.newest() and broker.refusal_log.recent.newest())
    await page.get_by_role("link", name="Overview").click()
    for name, texts in (
        ("Clients that lost messages", ("dashboard (gone)", "4,157", "full-messages")),
        ("Clients that were refused something", ("dashboard (gone)", "publish 1", "$SYS/<b>", "the broker's own")),
    ):
        for text in texts:
            await expect(page.get_by_role("table", name=name)).to_contain_text(text)
    await page.get_by_role("link", name="Losers").click()
    await expect(page.get_by_role("table", name="Clients that lost messages")).to_contain_text("4,157")


@pytest.mark.long
async def test_a_phone_shows_the_active_tab_and_breaks_topics_between_levels(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    retain(broker, "home/kitchen/temperature/left")
    page = await visit(broker, "retained", viewport={"width": 390, "height": 844})
    tab = page.get_by_role("link", name="Retained", exact=True)
    await expect(tab).to_be_in_viewport(ratio=0.95)
    await page.evaluate("location.hash = '#/banned'")
    await expect(page.get_by_role("link", name="Bans")).to_be_in_viewport(ratio=0.95)
    await page.go_back()
    cell = page.get_by_role("link", name="home/kitchen/temperature/left")
    await expect(cell).to_be_visible()
    lines = await cell.evaluate(
        """(link) => {
          const lines = new Map();
          const walk = document.createTreeWalker(link, NodeFilter.SHOW_TEXT);
          for (let text = walk.nextNode(); text; text = walk.nextNode()) {
            for (let at = 0; at < text.length; at += 1) {
              const range = document.createRange();
              range.setStart(text, at);
              range.setEnd(text, at + 1);
              const top = Math.round(range.getBoundingClientRect().top);
              lines.set(top, (lines.get(top) ?? "") + text.data[at]);
            }
          }
          return [...lines.values()];
        }"""
    )
    assert "".join(lines) == "home/kitchen/temperature/left"
    assert all(line.endswith("/") for line in lines[:-1])
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await picture(page, "retained-phone")


@pytest.mark.long
@pytest.mark.parametrize(("broker_id", "shown"), [("plant-7", "plant-7"), ("", "127.0.0.1:")])
async def test_the_title_names_the_broker_and_not_a_random_number(
    serve: Serve, visit: Visit, broker_id: str, shown: str
) -> None:
    broker = await serve(federation={"broker_id": broker_id})
    page = await visit(broker, "slow")
    await expect(page.locator("#broker")).to_contain_text(shown)
    await expect(page).to_have_title(f"Slow · {broker.http[0].removeprefix('http://')} · Canopy")


@pytest.mark.long
async def test_shares_have_a_digit_behind_the_point_and_legends_have_values(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    peer = await wire.Peer.join(broker.ports[0], "sensor")
    for number in range(200):
        await peer.publish("many" if number else "one", b"x", qos=1)
    page = await visit(broker, "top")
    table = page.get_by_role("table", name="Top")
    await expect(table).to_contain_text("99.5 %")
    await expect(table).to_contain_text("0.5 %")
    await page.get_by_role("link", name="Overview").click()
    legend = page.locator("figure", has_text="Clients").locator(".u-legend")
    await expect(legend).to_contain_text("1")
    await expect(legend).not_to_contain_text("–")
    peer.abort()
