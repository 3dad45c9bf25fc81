"""Which version of MQTT a link speaks, and what it can do with each.

Owns: the order of the attempts, the bridge bit, and RETAIN over 3.1.1.
"""

from __future__ import annotations

import pytest

from tests.e2e import wire
from tests.e2e.links.network import OFTEN, Net, link, pairs, still, told
from tests.e2e.links.scripted_upstream import BRIDGE, Caller, Heard, ScriptedUpstream

V311 = 4


def levels(upstream: ScriptedUpstream) -> list[int]:
    """The protocol level of each CONNECT, without repetitions side by side."""
    found = [caller.connect.level for caller in upstream.callers if caller.heard]
    return [level for index, level in enumerate(found) if not index or found[index - 1] != level]


async def linked(upstream: ScriptedUpstream, topic_filter: str) -> Caller:
    """The connection that is there to stay, when it has subscribed. In 3.1.1 one with a clean session comes before it,
    to end an older session."""

    def there() -> list[Caller]:
        able = [it for it in upstream.accepted() if topic_filter in it.filters]
        return [it for it in able if it.version == 5 or not it.connect.clean]

    await upstream.until("it is linked", there)
    return there()[0]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ((5, V311), [5]),
        ((V311, V311 | BRIDGE), [5, V311 | BRIDGE]),
        ((V311,), [5, V311 | BRIDGE, V311]),
    ],
    ids=["5.0", "bridge", "3.1.1"],
)
async def test_auto_finds_the_best_that_upstream_speaks(net: Net, known: tuple[int, ...], expected: list[int]) -> None:
    """And works with it, both ways."""
    upstream = await net.scripted(ScriptedUpstream(known))
    edge = await net.edge(link(upstream, publish=["up"]), sys={"interval": OFTEN})
    below = await net.join(edge, "below", "down")
    caller = await linked(upstream, "down")
    assert levels(upstream) == expected
    await caller.publish("down", b"1", qos=1)
    assert (await below.message()).payload == b"1"
    await below.publish("up", b"2", qos=1)
    await upstream.until("it goes up", lambda: caller.published("up") == [b"2"])
    operator = await net.join(edge, "operator")
    version = "5.0" if expected == [5] else "3.1.1"
    await told(operator, "$SYS/broker/upstream/up/version", lambda value: value.startswith(version))


async def test_auto_after_a_broker_that_closes_without_a_word(net: Net) -> None:
    """Some old brokers do when they are spoken to in 5.0."""

    class Old(ScriptedUpstream):
        def connack(self, caller: Caller) -> bytes:
            if caller.connect.level != V311:
                caller.connect.code = 1
                return b""
            return super().connack(caller)

    upstream = await net.scripted(Old((V311,)))
    edge = await net.edge(link(upstream))
    await net.join(edge, "below", "down")
    assert (await linked(upstream, "down")).connect.level == V311


@pytest.mark.parametrize(
    ("version", "allowed", "known"),
    [
        ("5.0", {5}, (V311, V311 | BRIDGE)),
        ("3.1.1", {V311, V311 | BRIDGE}, (5,)),
        ("auto", {5, V311, V311 | BRIDGE}, ()),
    ],
)
async def test_no_version_in_common(net: Net, version: str, allowed: set[int], known: tuple[int, ...]) -> None:
    """A version that is set is kept to. There is no connection, but another attempt, and the reason can be read."""
    upstream = await net.scripted(ScriptedUpstream(known))
    edge = await net.edge(link(upstream, version=version), sys={"interval": OFTEN})
    await upstream.until("three attempts", lambda: len(upstream.callers) >= 4)
    assert {caller.connect.level for caller in upstream.callers if caller.heard} <= allowed
    assert upstream.accepted() == []
    operator = await net.join(edge, "operator")
    await told(operator, "$SYS/broker/upstream/up/trouble", lambda value: value)


async def test_what_5_0_says(net: Net) -> None:
    """CONNECT and SUBSCRIBE have what the promises need: the session's life, who we are, No Local, RAP."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(
        link(
            upstream,
            client_id="site-7",
            username="me",
            password="secret",
            keep_alive=33,
            session_expiry=600,
            status_topic="sites/7",
            subscribe_qos=1,
        ),
        federation={"broker_id": "edge-7"},
    )
    await net.join(edge, "below", ("down", 2))
    caller = await upstream.caller()
    said = caller.connect
    assert (said.client_id, said.user, said.password, said.keep_alive) == ("site-7", "me", b"secret", 33)
    assert (said.clean, said.get(wire.SESSION_EXPIRY)) == (True, 600)
    assert said.user_properties("canopy-link") == ["edge-7"]
    assert said.will is not None
    assert (said.will[0], said.will[1], said.will[3]) == ("sites/7", b"0", True)
    await upstream.until("subscribed", lambda: "down" in caller.filters)
    assert caller.filters["down"] & 3 == 1
    assert caller.filters["down"] & wire.NO_LOCAL
    assert caller.filters["down"] & wire.RETAIN_AS_PUBLISHED
    await upstream.until("the status", lambda: caller.published("sites/7") == [b"1"])
    caller.abort()
    second = await upstream.caller(1)
    assert not second.connect.clean


@pytest.mark.parametrize("kind", ["mosquitto", "aedes", "canopy"])
async def test_retain_stays_over_3_1_1(net: Net, kind: str) -> None:
    """In bridge mode a live message comes with RETAIN: whoever subscribes here later gets the newest."""
    upstream = await net.upstream(kind)
    above = await net.join(upstream, "above", version=4)
    await above.publish("r/1", b"old", qos=1, retain=True)
    edge = await net.edge(link(upstream, version="3.1.1"))
    first = await net.join(edge, "first", "r/+")
    (found,) = await net.down(above, first, least=[1])
    assert pairs(found) == [("r/1", b"old")]
    await above.publish("r/1", b"new", qos=1, retain=True)
    (found,) = await net.down(above, first)
    assert pairs(found) == [("r/1", b"new")]
    second = await net.join(edge, "second", "r/#")
    (found,) = await net.down(above, second, least=[1])
    assert pairs(found) == [("r/1", b"new")]
    assert found[0].retain


@pytest.mark.parametrize("kind", ["mosquitto", "aedes", "canopy"])
async def test_what_goes_up_by_3_1_1_does_not_come_back(net: Net, kind: str) -> None:
    """In bridge mode: a link that publishes what it asks for."""
    upstream = await net.upstream(kind)
    above = await net.join(upstream, "above", "both", version=4)
    edge = await net.edge(link(upstream, version="3.1.1", publish=["both", "fence/#"]))
    below = await net.join(edge, "below", "both")
    await net.down(above, below)
    await below.publish("both", b"1", qos=1)
    await net.up(below, above)
    (found,) = await net.down(above, below)
    assert pairs(found) == [("both", b"1")]
    await above.publish("both", b"2", qos=1)
    (found,) = await net.down(above, below)
    assert pairs(found) == [("both", b"2")]


async def test_an_echo_in_plain_3_1_1_does_not_go_round(net: Net) -> None:
    """No No Local there: upstream sends the link's own message back. It is heard here once more, and that is all."""

    class Echo(ScriptedUpstream):
        async def answer(self, caller: Caller, heard: Heard) -> None:
            await super().answer(caller, heard)
            if heard.kind == wire.PUBLISH and heard.topic in caller.filters:
                await caller.publish(heard.topic, heard.payload, qos=1)

    upstream = await net.scripted(Echo((V311,)))
    edge = await net.edge(link(upstream, publish=["both"]))
    below = await net.join(edge, "below", "both", "fence")
    caller = await linked(upstream, "fence")
    await below.publish("both", b"1", qos=1)
    await upstream.until("it goes up", lambda: caller.published("both"))
    await still(edge)
    await caller.publish("fence", b"", qos=1)
    found = []
    while (message := await below.message()).topic != "fence":
        found.append(message)
    assert 1 <= len(found) <= 2
    assert caller.published("both") == [b"1"]
