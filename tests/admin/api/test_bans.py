"""Bans over HTTP, against who gets in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from canopy_mqtt import Broker
from canopy_mqtt.admin.api import bans
from canopy_mqtt.core.codec.reason_codes import ADMINISTRATIVE_ACTION, BANNED
from canopy_mqtt.security.bans import Ban
from tests.admin.api.conftest import Api
from tests.e2e import wire
from tests.e2e.wire import Peer

CONNACK = 2


async def connack(broker: Broker, client_id: str, user: str | None = None) -> int:
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(wire.connect(client_id, user=user))
    code = (await peer.wait_for(CONNACK)).code
    peer.abort()
    return code


async def test_who_is_banned_goes_and_does_not_come_back(api: Api, broker: Broker) -> None:
    peer = await Peer.join(broker.ports[0], "a/b", user="bob")
    other = await Peer.join(broker.ports[0], "c", user="carol")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    status, made = await api.call("POST", "/banned", {"as": "clientid", "who": "a/b", "until": later, "reason": "loud"})
    assert (status, made["as"], made["reason"]) == (200, "clientid", "loud")
    assert (await peer.closed())[-1].code == ADMINISTRATIVE_ACTION
    peer.abort()
    assert await connack(broker, "a/b", "bob") == BANNED
    assert await connack(broker, "b", "bob") == 0
    await other.fence()
    (found,) = (await api.get("/banned"))["data"]
    assert (found["who"], found["by"]) == ("a/b", "local")
    assert (await api.call("DELETE", "/banned/clientid/a%2Fb"))[0] == 204
    assert (await api.call("DELETE", "/banned/clientid/a%2Fb"))[0] == 404
    assert await connack(broker, "a/b", "bob") == 0
    other.abort()


async def test_a_ban_that_names_no_end_holds_until_it_is_lifted(api: Api, broker: Broker) -> None:
    assert (await api.call("POST", "/banned", {"as": "peerhost_net", "who": "127.0.0.0/8"}))[0] == 200
    assert await connack(broker, "a") == BANNED
    assert [each["until"] for each in await api.all("/banned", 1)] == ["infinity"]
    assert (await api.call("DELETE", "/banned/peerhost_net/127.0.0.0%2F8"))[0] == 204
    assert await connack(broker, "a") == 0


@pytest.mark.parametrize(
    "body",
    [
        {"as": "clientid"},
        {"as": "host", "who": "a"},
        {"as": "peerhost", "who": "a"},
        {"as": "clientid", "who": "a", "until": "2020-01-01T00:00:00Z"},
        {"as": "clientid", "who": "a", "until": "2099-01-01T00:00:00"},
    ],
)
async def test_what_is_no_ban_is_refused(api: Api, body: dict[str, Any]) -> None:
    assert (await api.call("POST", "/banned", body))[0] == 400
    assert (await api.get("/banned"))["data"] == []


async def test_each_ban_is_on_one_page(api: Api) -> None:
    for name in "cab":
        await api.call("POST", "/banned", {"as": "username", "who": name})
    assert [each["who"] for each in await api.all("/banned", 2)] == ["a", "b", "c"]


async def test_bans_are_made_ready_in_turns_a_page_at_a_time(
    api: Api, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c{number:03}" for number in range(30)]
    for name in reversed(names):
        assert broker.bans.add(Ban("clientid", name, 0.0, 0.0, "me", ""), 0.0)
    made: list[str] = []
    known = bans._known

    def counted(broker: Any, ban: Ban) -> Any:
        made.append(ban.who)
        return known(broker, ban)

    monkeypatch.setattr(bans, "_known", counted)
    page = await api.get("/banned", limit=10)
    # Those of other pages cost nothing.
    assert made == names[:10]
    assert [each["who"] for each in page["data"]] == names[:10]
    assert [each["who"] for each in await api.all("/banned", 7)] == names


async def test_a_ban_may_end_with_the_last_of_all_dates(api: Api) -> None:
    body = {"as": "clientid", "who": "a", "until": "9999-12-31T23:59:59.999999-12:00"}
    assert (await api.call("POST", "/banned", body))[0] == 200
    assert [each["until"] for each in await api.all("/banned", 1)] == ["9999-12-31T23:59:59.000+00:00"]
