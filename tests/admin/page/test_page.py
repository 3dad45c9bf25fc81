"""What a person does with the page, and what clients cannot do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker
from canopy_mqtt.security.passwords.password_file import edit
from tests.admin.conftest import Serve
from tests.admin.page.conftest import Visit, picture, retain
from tests.admin.test_authentication import OTHER, TOKEN, hashed
from tests.admin.test_server import https
from tests.e2e import wire
from tests.support.waiting import until

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "\"><script>document.title='owned'</script>",
    "javascript:document.title='owned'",
    "{{constructor.constructor('1')()}}%3Cb%3E&lt;b&gt;",
    "\u202egnp.eruces",
)


def headline(page: Page) -> Any:
    return page.locator("#headline")


@asynccontextmanager
async def connected(broker: Broker, client_id: str) -> AsyncIterator[wire.Peer]:
    """A client."""
    peer = await wire.Peer.join(broker.ports[0], client_id)
    try:
        yield peer
    finally:
        peer.abort()


@asynccontextmanager
async def slow(broker: Broker, client_id: str) -> AsyncIterator[None]:
    """A subscriber that acknowledges nothing and has lost messages."""
    peer = await wire.Peer.join(broker.ports[0], client_id, props=[(wire.RECEIVE_MAXIMUM, 1)])
    await peer.subscribe(("news", 1))
    publisher = await wire.Peer.join(broker.ports[0], "publisher")
    for _ in range(20):
        await publisher.publish("news", b"x", qos=1)
    await publisher.disconnect()
    await until(lambda: broker.monitor.slow_count == 1)
    try:
        yield
    finally:
        peer.abort()


SLOW: dict[str, Any] = {"queue": {"slow_after": 0.1, "session_messages": 10, "live_messages": 10}}


async def test_the_overview_says_that_all_is_well(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    page = await visit(broker)
    await expect(headline(page)).to_contain_text("All is well: 0 clients connected")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await expect(page.locator("figure canvas")).to_have_count(6)


async def test_it_loads_over_https(serve: Serve, visit: Visit, tmp_path: Path) -> None:
    broker = await serve(https(tmp_path)[0])
    page = await visit(broker, ignore_https_errors=True)
    await expect(headline(page)).to_contain_text("All is well: 0 clients connected")
    await expect(page.locator("figure canvas")).to_have_count(6)


@pytest.mark.long
async def test_it_says_who_is_slow_and_what_they_lost(serve: Serve, visit: Visit) -> None:
    broker = await serve(**SLOW)
    async with slow(broker, "dashboard-7"):
        page = await visit(broker)
        await expect(headline(page)).to_contain_text("1 slow subscriber, worst dashboard-7")
        lost = broker.router.counters.dropped_in_all()
        assert lost
        await expect(headline(page)).to_contain_text(f"lost {lost}")
        # What is said anew each second leaves the focus where it is.
        link = headline(page).get_by_role("link", name="dashboard-7")
        await link.focus()
        before = await headline(page).inner_text()
        await expect(headline(page)).not_to_have_text(before)
        await expect(link).to_be_focused()
        # And it is read out once.
        await expect(page.locator("#said")).to_contain_text("worst dashboard-7")
        await picture(page, "slow-light")
        for scheme, width, shot in (("dark", 1280, "slow-dark"), ("dark", 390, "slow-phone")):
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await page.set_viewport_size({"width": width, "height": 844})
            # Nothing but tables may be wider than the screen, and these scroll by themselves.
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await picture(page, shot)


@pytest.mark.long
async def test_it_says_which_upstream_is_down_and_why(serve: Serve, visit: Visit) -> None:
    broker = await serve(upstream=({"name": "cloud", "url": f"mqtt://127.0.0.1:{free_port()}"},))
    page = await visit(broker)
    await expect(headline(page)).to_contain_text("upstream cloud down since")
    await expect(headline(page).locator("ul.bad")).to_be_visible()
    await headline(page).get_by_role("link", name="cloud").click()
    await expect(page.get_by_role("table", name="Links to upstream brokers")).to_contain_text("no network connection")
    await picture(page, "upstream")


@pytest.mark.long
async def test_a_link_is_connected_again(serve: Serve, visit: Visit) -> None:
    there = await serve()
    broker = await serve(upstream=({"name": "cloud", "url": f"mqtt://127.0.0.1:{there.ports[0]}"},))
    assert broker.links is not None
    link = broker.links.links["cloud"]
    await until(lambda: link.connected)
    page = await visit(broker, "upstreams")
    await page.get_by_role("button", name="Connect cloud again").click()
    await page.get_by_role("button", name="Connect cloud again: Sure?").click()
    await expect(page.get_by_text("Done.")).to_be_visible()
    await until(lambda: link.connected and link.connects == 2)
    await picture(page, "upstream-again")


@pytest.mark.long
async def test_sessions_of_clients_that_are_away_are_ended(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    for name in (HOSTILE[0], ".."):
        peer = await wire.Peer.join(broker.ports[0], name, props=[(wire.SESSION_EXPIRY, 3600)])
        await peer.disconnect()
        await until(lambda name=name: broker.router.sessions[name].send_buffer is None)  # type: ignore[misc]
    page = await visit(broker, "client?id=..")
    await expect(page.get_by_role("heading", name="Client ..")).to_be_visible()
    await page.get_by_role("button", name="End the session").click()
    await page.get_by_role("button", name="End the session: its queued messages are lost").click()
    await expect(page.get_by_role("alert")).to_contain_text("There is no client or session")
    assert list(broker.router.sessions) == [HOSTILE[0]]
    page = await visit(broker, "sessions")
    await expect(page.get_by_role("table")).to_contain_text(HOSTILE[0])
    await expect(page.get_by_role("table")).to_contain_text("1 h")
    await page.get_by_role("button", name="End").click()
    await page.get_by_role("button", name="End: its queued messages are lost").click()
    await expect(page.get_by_text("No entries.")).to_be_visible()
    assert not broker.router.sessions


@pytest.mark.long
async def test_topics_open_level_by_level(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    for number in range(150):
        retain(broker, f"plant/{number:03}/temp")
    page = await visit(broker, "topics")
    await page.get_by_role("button", name="Open plant").click()
    await expect(page.get_by_role("button", name="Open 099")).to_be_visible()
    await expect(page.get_by_role("button", name="Open 100")).to_have_count(0)
    await page.get_by_role("button", name="More").click()
    await expect(page.get_by_role("button", name="Open 149")).to_be_visible()
    await page.get_by_role("button", name="Open 100").click()
    await expect(page.locator("li", has_text="temp").first).to_be_visible()


@pytest.mark.long
async def test_names_from_clients_stay_text(serve: Serve, visit: Visit) -> None:
    """In topics, in the headline and in tables. A script that ran, or was refused by the policy, fails the test."""
    for hostile in HOSTILE[:2]:
        broker = await serve(**SLOW)
        for name in HOSTILE:
            retain(broker, f"{name}/below" if "/" not in name else name)
        async with slow(broker, hostile):
            page = await visit(broker)
            await expect(headline(page)).to_contain_text(hostile)
            await expect(page.get_by_role("table", name="Slow subscribers")).to_contain_text(hostile)
            await page.get_by_role("link", name="Topics").click()
            await expect(page.locator(".tree")).to_contain_text(HOSTILE[0])
            # What turns the direction of text around is shown, and does not do so.
            await expect(page.locator(".tree")).to_contain_text("⟨202E⟩gnp.eruces")
            assert await page.locator("main img, main script, #headline img, #headline script").count() == 0
            assert "owned" not in await page.title()


@pytest.mark.long
async def test_keys_lead_from_view_to_view(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    page = await visit(broker)
    await expect(headline(page)).to_contain_text("All is well")
    await page.keyboard.press("2")
    await expect(page.get_by_role("heading", name="Slow subscribers")).to_be_visible()
    await expect(page.get_by_role("link", name="Slow", exact=True)).to_have_attribute("aria-current", "page")
    await page.keyboard.press("1")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Settings of a broker with the operator alice, the viewer bob, and a token for each role."""
    users = tmp_path / "users"
    for name in ("alice", "bob"):
        edit(users, name, hashed("secret"), create=True)
    (tmp_path / "viewers").write_text(f"{TOKEN}\n")
    (tmp_path / "operators").write_text(f"{OTHER}\n")
    return {
        "password_file": str(users),
        "operators": ("alice",),
        "viewer_token_file": str(tmp_path / "viewers"),
        "operator_token_file": str(tmp_path / "operators"),
    }


@pytest.mark.long
async def test_one_signs_in_as_a_user_or_with_a_token(serve: Serve, visit: Visit, files: dict[str, Any]) -> None:
    broker = await serve(files)
    page = await visit(broker)
    await page.get_by_label("User").fill("alice")
    await page.get_by_label("Password or token").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("wrong user, password or token")
    await page.get_by_label("User").fill("alice")
    await page.get_by_label("Password or token").fill("secret")
    await page.keyboard.press("Enter")
    await expect(page.locator("#who")).to_have_text("alice (operator)")
    # The tab knows them still, another one does not, and neither does this one after signing out.
    await page.reload()
    await expect(page.locator("#who")).to_have_text("alice (operator)")
    assert await page.evaluate("document.cookie + localStorage.length") == "0"
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_label("Password or token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("#who")).to_contain_text("(viewer)")


@pytest.mark.long
async def test_clients_are_searched_and_paged(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    names = [f"sensor-{number:02}" for number in range(60)] + list(HOSTILE[:4])
    peers = [await wire.Peer.join(broker.ports[0], each) for each in names]
    page = await visit(broker, "clients")
    table = page.get_by_role("table", name="Clients")
    for hostile in HOSTILE[:3]:
        await expect(table).to_contain_text(hostile)
    await expect(page.get_by_role("button", name="Previous page")).to_be_disabled()
    await page.get_by_role("button", name="Next page").click()
    await expect(page.get_by_text("Page 2")).to_be_visible()
    await expect(table).to_contain_text("sensor-59")
    await page.get_by_role("button", name="Previous page").click()
    await expect(page.get_by_text("Page 1")).to_be_visible()
    await page.locator("main").focus()
    await page.keyboard.press("/")
    await page.keyboard.type("sensor-1")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**like_clientid=sensor-1")
    await expect(table.get_by_role("row")).to_have_count(11)
    await picture(page, "clients")
    for peer in peers:
        peer.abort()


@pytest.mark.long
async def test_a_client_s_story_is_told_and_it_is_disconnected(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    async with connected(broker, "sensor/7") as peer:
        await peer.subscribe(("plant/<b>/#", 1), *(f"filter/{number}" for number in range(100)))
        page = await visit(broker, "clients")
        await page.get_by_role("link", name="sensor/7").click()
        await expect(page.get_by_role("heading", name="Client sensor/7")).to_be_visible()
        await expect(page.get_by_role("definition").filter(has_text="101")).to_be_visible()
        subscriptions = page.get_by_role("table", name="Subscriptions of this client")
        await expect(subscriptions).to_contain_text("filter/25")
        await picture(page, "client")
        await page.get_by_role("link", name="All of them").click()
        listed = page.get_by_role("table", name="Subscriptions", exact=True)
        await expect(listed).to_contain_text("filter/25")
        await page.get_by_role("button", name="Next page").click()
        await expect(listed).to_contain_text("filter/54")
        await page.get_by_role("button", name="Next page").click()
        await expect(listed).to_contain_text("plant/<b>/#")
        await page.go_back()
        # Once is not enough.
        await page.get_by_role("button", name="Disconnect").click()
        assert broker.router.sessions["sensor/7"].send_buffer is not None
        await page.get_by_role("button", name="Disconnect: Sure?").click()
        gone = await peer.wait_for(wire.DISCONNECT)
        assert gone.code == 0x98
        await expect(page.get_by_role("alert")).to_contain_text("There is no client or session")


@pytest.mark.long
async def test_a_viewer_gets_no_buttons_that_change_something(
    serve: Serve, visit: Visit, files: dict[str, Any]
) -> None:
    broker = await serve(files)
    async with connected(broker, "sensor/7"):
        page = await visit(broker, "client?id=sensor/7")
        for token, buttons in ((TOKEN, 0), (OTHER, 1)):
            await page.get_by_label("Password or token").fill(token)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("definition").filter(has_text="connected")).to_be_visible()
            await expect(page.get_by_role("button", name="Disconnect")).to_have_count(buttons)
            await expect(page.get_by_role("link", name="Traces")).to_have_count(buttons)
            await page.get_by_role("button", name="Sign out").click()


@pytest.mark.long
async def test_a_client_is_banned_and_let_in_again(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    async with connected(broker, HOSTILE[1]) as peer:
        page = await visit(broker, "clients")
        await page.get_by_role("link", name=HOSTILE[1]).click()
        await page.get_by_role("button", name="Ban for an hour").click()
        await page.get_by_role("button", name="Ban for an hour: Sure?").click()
        assert (await peer.wait_for(wire.DISCONNECT)).code == 0x98
    await page.get_by_role("link", name="Bans").click()
    await expect(page.get_by_role("table", name="Bans")).to_contain_text(HOSTILE[1])
    await picture(page, "bans")
    await page.get_by_role("button", name="Lift").click()
    await page.get_by_role("button", name="Lift: Sure?").click()
    await expect(page.get_by_text("No entries.")).to_be_visible()
    async with connected(broker, HOSTILE[1]):
        pass


@pytest.mark.long
async def test_a_message_is_explained(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    async with connected(broker, HOSTILE[0]) as peer:
        await peer.subscribe("plant/#")
        page = await visit(broker, "explain")
        await page.get_by_label("Topic").fill("plant/temp")
        await page.get_by_role("button", name="Explain").click()
        table = page.get_by_role("table", name="Receivers")
        await expect(table).to_contain_text(HOSTILE[0])
        await expect(table).to_contain_text("yes")
        await picture(page, "explain")


@pytest.mark.long
async def test_a_trace_is_begun_saved_and_forgotten(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    async with connected(broker, "sensor") as peer:
        page = await visit(broker, "traces")
        await page.get_by_label("Which").fill("sensor")
        await page.get_by_role("button", name="Begin").click()
        await expect(page.get_by_role("table", name="Traces")).to_contain_text("clientid sensor")
        await peer.publish("topic", b"payload")
        await peer.fence()
        async with page.expect_download() as saved:
            await page.get_by_role("button", name="jsonl").click()
        file = await (await saved.value).path()
        assert "topic" in await asyncio.to_thread(file.read_text)
        await picture(page, "traces")
        await page.get_by_role("button", name="Forget").click()
        await page.get_by_role("button", name="Forget: Sure?").click()
        await expect(page.get_by_text("No entries.")).to_be_visible()


@pytest.mark.long
async def test_a_retained_message_is_found_read_and_cleared(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    retain(broker, "plant/<i>/temp", b'{"html": "<script>document.title=1</script>"}')
    retain(broker, "plant/raw", b"\xff\x00\x01")
    page = await visit(broker, "retained")
    await expect(page.get_by_role("table")).to_contain_text("plant/raw")
    await page.get_by_label("Filter").fill("plant/+/temp")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("table")).not_to_contain_text("plant/raw")
    await page.get_by_role("link", name="plant/<i>/temp").click()
    await expect(page.get_by_label("Payload")).to_have_text('{ "html": "<script>document.title=1</script>" }')
    await picture(page, "retained")
    await page.get_by_role("button", name="Clear").click()
    await page.get_by_role("button", name="Clear: Sure?").click()
    await expect(page.get_by_role("alert").first).to_be_visible()
    assert broker.router.retained.get("plant/<i>/temp") is None
    await page.get_by_role("link", name="Topics").click()
    await page.get_by_role("button", name="Open plant").click()
    await page.get_by_role("link", name="raw").click()
    await expect(page.get_by_label("Payload")).to_have_text("ff 00 01")


@pytest.mark.long
async def test_all_views_are_there_and_say_something(serve: Serve, visit: Visit) -> None:
    broker = await serve()
    page = await visit(broker)
    views = page.get_by_role("navigation").get_by_role("link")
    await expect(views.first).to_be_visible()
    await expect(headline(page)).to_contain_text("All is well")
    for view in await views.all():
        await view.click()
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await expect(view).to_have_attribute("aria-current", "page")
        await expect(page.locator("main").get_by_role("alert")).to_have_count(0)
        # Each control has a name.
        unnamed = (
            "[...document.querySelectorAll('main input, main select')].filter((each) => !each.labels.length).length"
        )
        assert await page.evaluate(unnamed) == 0


@pytest.mark.long
async def test_what_the_broker_has_not_is_not_offered(serve: Serve, visit: Visit) -> None:
    page = await visit(await serve())

    async def describe(route: Route) -> None:
        await route.fulfill(json={"paths": {"/api/v5/topics": {"get": {}}}})

    await page.route("**/api/v5/openapi.json", describe)
    await page.reload()
    await expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(
        ["Overview", "Slow", "Topics", "Upstream", "Store"]
    )
