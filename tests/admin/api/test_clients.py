"""Clients, sessions and subscriptions over HTTP, against what the clients themselves did."""

from __future__ import annotations

import asyncio
import string
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt import Broker
from canopy_mqtt.admin import paging
from canopy_mqtt.admin.api import clients
from canopy_mqtt.admin.api.clients import subscriptions_of
from canopy_mqtt.admin.paging import cursor_of, in_turns
from canopy_mqtt.core.codec.reason_codes import ADMINISTRATIVE_ACTION
from tests.admin.api.conftest import Api
from tests.core.shared_store import SharedStore, ToldJournal
from tests.e2e.wire import Peer
from tests.support.waiting import counted_turns, until

DISCONNECT: Final = 14


@pytest.fixture
async def fleet(broker: Broker) -> AsyncIterator[list[Peer]]:
    """Seven clients of two users; the last one is away and has a session."""
    peers = []
    for number in range(7):
        peer = await Peer.join(
            broker.ports[0],
            f"dev/{number}",
            user=f"user{number % 2}",
            clean=number != 6,
            props=[(17, 100)] if number == 6 else [],
        )
        await peer.subscribe((f"own/{number}/#", 1), ("all", 2))
        peers.append(peer)
    await peers[6].disconnect()
    await peers[6].closed()
    yield peers[:6]
    for peer in peers:
        peer.abort()


def names(entries: list[Any]) -> list[str]:
    return [entry["clientid"] for entry in entries]


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
async def test_each_client_is_on_one_page(api: Api, fleet: list[Peer], limit: int) -> None:
    del fleet
    assert names(await api.all("/clients", limit)) == [f"dev/{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"clientid": "dev/3"}, [3]),
        ({"clientid": "dev"}, []),
        ({"like_clientid": "v/3"}, [3]),
        ({"like_clientid": "DEV/3"}, [3]),
        ({"like_username": "USER1"}, [1, 3, 5]),
        ({"username": "user1"}, [1, 3, 5]),
        ({"like_username": "user", "limit": 2}, [0, 1]),
        ({"conn_state": "disconnected"}, [6]),
        ({"conn_state": "connected", "username": "user0"}, [0, 2, 4]),
        ({"ip_address": "127.0.0.0/8"}, range(7)),
        ({"ip_address": "10.0.0.1"}, []),
        ({"min_dropped": 1}, []),
        ({"min_lag": 0.1}, []),
    ],
)
async def test_a_query_chooses(api: Api, fleet: list[Peer], query: dict[str, Any], wanted: list[int]) -> None:
    del fleet
    page = await api.get("/clients", **query)
    assert names(page["data"]) == [f"dev/{number}" for number in wanted]


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 10_001}, {"cursor": "?"}, {"page": 1}, {"ip_address": "a"}, {"conn_state": "x"}]
)
async def test_what_cannot_be_asked_is_said(api: Api, query: dict[str, Any]) -> None:
    status, found = await api.call("GET", "/clients", **query)
    assert (status, found["code"]) == (400, "BAD_REQUEST")
    assert next(iter(query)) in found["message"]


async def test_one_client(api: Api, broker: Broker, fleet: list[Peer]) -> None:
    await fleet[0].publish("own/1/x", b"hello", qos=1)
    await fleet[1].fence()
    found = await api.get("/clients/dev%2F1", "/clients/{client_id}")
    assert found["username"] == "user1"
    assert (found["connected"], found["state"], found["proto_ver"]) == (True, "connected", "5.0")
    assert (found["subscriptions_cnt"], found["inflight_cnt"], found["delivered"]) == (2, 1, 1)
    assert (await api.get("/clients/dev%2F0", "/clients/{client_id}"))["received"] == 1
    away = await api.get("/clients/dev%2F6", "/clients/{client_id}")
    assert (away["connected"], away["connected_at"], away["port"], away["expiry_interval"]) == (False, None, None, 100)
    assert away["disconnected_at"] is not None
    assert (await api.call("GET", "/clients/nobody"))[0] == 404
    idle = await api.get("/clients/dev%2F3", "/clients/{client_id}")
    assert (idle["receive_maximum"], idle["inflight_bytes"]) == (broker.router.limits.max_inflight, 0)
    assert broker.router.sessions["dev/3"].made_window is None


async def test_a_kicked_client_is_told_why_and_keeps_its_session(api: Api, broker: Broker) -> None:
    peer = await Peer.join(broker.ports[0], "a/b c", clean=True, props=[(17, 100)])
    assert (await api.call("DELETE", "/clients/a%2Fb%20c"))[0] == 204
    last = (await peer.closed())[-1]
    assert (last.kind, last.code) == (DISCONNECT, ADMINISTRATIVE_ACTION)
    assert not (await api.get("/clients/a%2Fb%20c", "/clients/{client_id}"))["connected"]
    # There is nobody to kick any more.
    assert (await api.call("DELETE", "/clients/a%2Fb%20c"))[0] == 404
    assert (await api.call("DELETE", "/sessions/a%2Fb%20c"))[0] == 204
    assert (await api.call("DELETE", "/sessions/a%2Fb%20c"))[0] == 404
    assert "a/b c" not in broker.router.sessions
    peer.abort()


async def test_a_session_that_brokers_share_ends_in_their_store(api: Api, broker: Broker) -> None:
    journal = ToldJournal()
    store = SharedStore(journal, at_once=False)
    broker.router.journal, broker.router.shared = journal, store
    joining = asyncio.create_task(Peer.join(broker.ports[0], "c", clean=False, props=[(17, 100)]))
    await until(lambda: store.attempts)
    [attempt] = store.attempts
    attempt.opened(None)
    peer = await joining
    assert (await api.call("DELETE", "/sessions/c"))[0] == 204
    assert (await peer.closed())[-1].code == ADMINISTRATIVE_ACTION
    assert [(each, each.expiry) for each in store.over] == [(attempt, 0)]
    assert journal.told[-1] == ("gone", "c")
    peer.abort()


async def test_a_session_ends_under_its_client(api: Api, broker: Broker, fleet: list[Peer]) -> None:
    assert (await api.call("DELETE", f"/sessions/{quote('dev/2', safe='')}"))[0] == 204
    assert (await fleet[2].closed())[-1].code == ADMINISTRATIVE_ACTION
    assert "dev/2" not in broker.router.sessions
    await fleet[0].publish("all", b"x")
    await fleet[0].fence()


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
async def test_each_subscription_is_on_one_page(api: Api, fleet: list[Peer], limit: int) -> None:
    del fleet
    found = [(entry["clientid"], entry["topic"]) for entry in await api.all("/subscriptions", limit)]
    assert found == [(f"dev/{number}", topic) for number in range(7) for topic in ("all", f"own/{number}/#")]


async def test_subscriptions_are_chosen_and_shown_with_their_options(api: Api, fleet: list[Peer]) -> None:
    await fleet[4].subscribe(("$share/g/own/#", 0), props=[(11, 7)])
    assert len((await api.get("/subscriptions", topic="all", qos=2))["data"]) == 7
    assert names((await api.get("/subscriptions", topic="own/3/#"))["data"]) == ["dev/3"]
    (shared,) = (await api.get("/subscriptions", share_group="g"))["data"]
    assert (shared["clientid"], shared["subid"], shared["qos"]) == ("dev/4", 7, 0)
    mine = await api.get("/clients/dev%2F4/subscriptions", "/clients/{client_id}/subscriptions", limit=2)
    assert [entry["topic"] for entry in mine["data"]] == ["$share/g/own/#", "all"]
    assert mine["meta"]["cursor"] == cursor_of("all")


async def test_what_goes_while_a_page_is_made_ends_no_list() -> None:
    class Held:
        qos, no_local, retain_as_published, retain_handling, identifier = 0, False, False, 0, 0

    subscriptions = dict.fromkeys("abcdefg", Held())
    session: Any = SimpleNamespace(client_id="x", subscriptions=subscriptions)

    def wanted(name: str) -> bool:
        if name == "g":
            # Its client unsubscribes, when others have been found already.
            subscriptions.pop("b", None)
        return True

    found = await subscriptions_of(session, None, 4, wanted)
    assert [each.topic for each in found] == ["a", "c", "d", "e"]
    assert [each.topic for each in await subscriptions_of(session, "e", 4, wanted)] == ["f", "g"]


async def test_clients_are_made_ready_in_turns(api: Api, fleet: list[Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    del fleet
    monkeypatch.setattr(clients, "BUILT", 2)
    at_once: list[int] = [0]

    def counted(broker: Any, session: Any) -> Any:
        if at_once[-1] == 0:
            broker.loop.call_soon(at_once.append, 0)
        at_once[-1] += 1
        return view(broker, session)

    view = clients.view
    monkeypatch.setattr(clients, "view", counted)
    assert len(names((await api.get("/clients"))["data"])) == 7
    assert sum(at_once) == 7
    assert max(at_once) <= 2


async def test_the_event_loop_has_turns_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "NAMES", 10)
    async with counted_turns() as turns:
        await paging.first_names([str(number) for number in range(1_000)], None, 5, lambda _: True)
    assert len(turns) >= 99


NAMES = st.lists(st.text(string.ascii_lowercase + "/", min_size=1, max_size=4), unique=True)


@given(found=NAMES, most=st.integers(1, 10), after=st.none() | st.text("abz/", max_size=2))
def test_the_first_names_are_those_that_sorting_gives(found: list[str], most: int, after: str | None) -> None:
    made = asyncio.run(paging.first_names(found, after, most, lambda name: len(name) % 3 != 0))
    wanted = sorted(name for name in found if (after is None or name > after) and len(name) % 3)
    assert made == wanted[:most]


async def test_a_page_of_long_names_has_fewer(api: Api, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_CHARACTERS", 250)
    ids = [f"{number}{'x' * 99}" for number in range(5)]
    peers = [await Peer.join(broker.ports[0], client_id) for client_id in ids]
    page = await api.get("/clients")
    assert (len(page["data"]), page["meta"]["hasnext"]) == (2, True)
    assert names(await api.all("/clients", 100)) == ids
    # One that is too long by itself is a page.
    monkeypatch.setattr(paging, "PAGE_CHARACTERS", 10)
    assert names(await api.all("/clients", 100)) == ids
    for peer in peers:
        peer.abort()


async def test_names_as_long_as_mqtt_has_them_end_no_list(api: Api, broker: Broker) -> None:
    peer = await Peer.join(broker.ports[0], "a", user=None)
    long = ["é" * (size // 2) for size in (9_000, 60_000)]
    for name in long:
        await peer.subscribe((name, 0))
        assert (await api.call("POST", "/publish", {"topic": name, "payload": "x", "retain": True}))[0] == 200
    await peer.subscribe(("z" * 65_000, 0))
    for path in ("/subscriptions", "/mqtt/retainer/messages"):
        assert [each["topic"] for each in await api.all(path, 1)][-2:] == long
    for name in long:
        assert (await api.call("DELETE", f"/mqtt/retainer/message/{quote(name, safe='')}"))[0] == 204
    peer.abort()


async def test_subscriptions_that_hardly_anybody_has_take_one_walk_over_the_clients(
    api: Api, broker: Broker, fleet: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = set(broker.router.sessions)
    await fleet[5].subscribe(("$share/few/t", 1))
    walked: list[int] = []

    def counted(items: Any, turn: int = paging.NAMES) -> Any:
        names = list(items)
        walked.append(all(isinstance(name, str) for name in names) and set(names) == everybody)
        return in_turns(names, turn)

    monkeypatch.setattr(paging, "in_turns", counted)
    page = await api.get("/subscriptions", limit=1, share_group="few")
    assert [each["topic"] for each in page["data"]] == ["$share/few/t"]
    assert sum(walked) == 1
