"""What the API lists, against a model of what random clients did."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeAlias

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.properties import SESSION_EXPIRY_INTERVAL
from tests.admin.api.conftest import BASE, Api
from tests.e2e.wire import Peer

CLIENTS: Final = ("a", "b/c", "ü")
FILTERS: Final = ("#", "x/+", "$share/g/x/1")
TOPICS: Final = ("x/1", "x/2", "y")

Step: TypeAlias = tuple[str, str, str, int]

STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(CLIENTS), st.just(""), st.integers(0, 1)),
        st.tuples(st.just("leave"), st.sampled_from(CLIENTS), st.just(""), st.just(0)),
        st.tuples(st.just("end"), st.sampled_from(CLIENTS), st.just(""), st.just(0)),
        st.tuples(st.just("subscribe"), st.sampled_from(CLIENTS), st.sampled_from(FILTERS), st.integers(0, 2)),
        st.tuples(st.just("unsubscribe"), st.sampled_from(CLIENTS), st.sampled_from(FILTERS), st.just(0)),
        st.tuples(st.just("retain"), st.sampled_from(CLIENTS), st.sampled_from(TOPICS), st.integers(0, 3)),
        st.tuples(st.just("clear"), st.just(""), st.sampled_from(TOPICS), st.just(0)),
    ),
    max_size=15,
)


class Model:
    """A broker with clients, and what is to be listed of it."""

    def __init__(self, broker: Broker, api: Api) -> None:
        self.broker = broker
        self.api = api
        self.peers: dict[str, Peer] = {}
        self.all: list[Peer] = []
        self.kept: dict[str, bool] = {}
        """Sessions, and whether each outlives its connection."""
        self.subscriptions: dict[tuple[str, str], int] = {}
        self.retained: dict[str, tuple[int, str]] = {}

    async def step(self, what: str, client: str, name: str, number: int) -> None:
        peer = self.peers.get(client)
        if what == "join":
            await self._leave(client)
            wishes = [(SESSION_EXPIRY_INTERVAL, 1_000)] if number else []
            self.peers[client] = await Peer.join(self.broker.ports[0], client, clean=False, props=wishes)
            self.all.append(self.peers[client])
            self.kept[client] = bool(number)
        elif what == "leave":
            await self._leave(client)
        elif what == "end":
            status, _ = await self.api.call("DELETE", f"/sessions/{client.replace('/', '%2F')}")
            assert status == (204 if client in self.kept else 404)
            self._over(client)
            if self.peers.pop(client, None) is not None and peer is not None:
                await peer.closed()
        elif what == "clear":
            status, _ = await self.api.call("DELETE", f"/mqtt/retainer/message/{name.replace('/', '%2F')}")
            assert status == (204 if self.retained.pop(name, None) else 404)
        elif peer is None:
            return
        elif what == "subscribe":
            await peer.subscribe((name, number))
            self.subscriptions[client, name] = number
        elif what == "unsubscribe":
            await peer.unsubscribe(name)
            self.subscriptions.pop((client, name), None)
        else:
            await peer.publish(name, b"x" * number, retain=True)
            self.retained.pop(name, None)
            if number:
                self.retained[name] = (number, client)

    async def _leave(self, client: str) -> None:
        peer = self.peers.pop(client, None)
        if peer is not None:
            await peer.disconnect()
            if not self.kept[client]:
                self._over(client)

    def _over(self, client: str) -> None:
        self.kept.pop(client, None)
        for key in [key for key in self.subscriptions if key[0] == client]:
            del self.subscriptions[key]

    async def check(self, limit: int) -> None:
        found = await self.api.all("/clients", limit)
        assert [(each["clientid"], each["connected"]) for each in found] == [
            (client, client in self.peers) for client in sorted(self.kept)
        ]
        for each in found:
            mine = [key for key in self.subscriptions if key[0] == each["clientid"]]
            assert each["subscriptions_cnt"] == len(mine)
        away = await self.api.all("/clients", limit, conn_state="disconnected")
        assert {each["clientid"] for each in away} == self.kept.keys() - self.peers.keys()
        held = await self.api.all("/subscriptions", limit)
        assert [(each["clientid"], each["topic"], each["qos"]) for each in held] == [
            (*key, qos) for key, qos in sorted(self.subscriptions.items())
        ]
        messages = await self.api.all("/mqtt/retainer/messages", limit)
        assert [(each["topic"], each["payload_size"], each["from_clientid"]) for each in messages] == [
            (topic, *facts) for topic, facts in sorted(self.retained.items())
        ]


async def drive(steps: list[Step], limit: int) -> None:
    settings: dict[str, Any] = {
        "listen": ("mqtt://127.0.0.1:0",),
        "http": {"listen": ("http://127.0.0.1:0",)},
        "sys": {"interval": 0.0},
        "shutdown": {"flush_timeout": 0.0},
    }
    async with (
        Broker(Settings.model_validate(settings)) as broker,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        async with session.get(broker.http[0] + BASE + "/openapi.json") as answer:
            model = Model(broker, Api(broker, session, await answer.json()))
        try:
            for client in CLIENTS[:2]:
                await model.step("join", client, "", 1)
                for name in FILTERS:
                    await model.step("subscribe", client, name, 1)
            for step in steps:
                await model.step(*step)
            await model.check(limit)
        finally:
            for peer in model.all:
                peer.abort()


@given(steps=STEPS, limit=st.integers(1, 4))
def test_what_is_listed_is_what_clients_did(steps: list[Step], limit: int) -> None:
    asyncio.run(drive(steps, limit))
