"""A 5.0 subscriber chooses the policy of its queue by user properties of SUBSCRIBE, and gets what it was granted.

Owns: `canopy-queue`, `canopy-max-age` and `canopy-depth` over real sockets. The broker is embedded, so that the ledger
can be looked at.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from canopy_mqtt.core.ledger import FULL_MESSAGES, REPLACED
from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import KEPT, Scene, number_of, stamped
from tests.e2e.wire import Packet, Peer
from tests.support.losses import dropped_by_cause

QUEUE: Final = "canopy-queue"
MAX_AGE: Final = "canopy-max-age"
DEPTH: Final = "canopy-depth"

KEEP: Final = [(wire.SESSION_EXPIRY, KEPT)]
"""CONNECT of a client whose session stays."""


def wishes(**wish: str) -> wire.Properties:
    """User properties: `wishes(queue="latest", max_age="5")`."""
    return [(wire.USER_PROPERTY, (f"canopy-{name.replace('_', '-')}", value)) for name, value in wish.items()]


async def ask(peer: Peer, props: wire.Properties, *filters: tuple[str, int]) -> Packet:
    """Subscribe, and return the SUBACK."""
    packet_id = peer.next_id()
    await peer.send(wire.subscribe(packet_id, filters or [("load", 0)], props))
    found = await peer.wait_for(wire.SUBACK)
    assert found.packet_id == packet_id
    assert len(found.codes) == len(filters or [0])
    return found


def granted(suback: Packet) -> dict[str, str]:
    """Return the user properties of a SUBACK, each name once."""
    pairs = suback.all(wire.USER_PROPERTY)
    found = dict(pair for pair in pairs if isinstance(pair, tuple))
    assert len(found) == len(pairs)
    return found


# --------------------------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize("policy", ["drop-newest", "drop-oldest", "disconnect", "latest"])
async def test_each_policy_may_be_chosen(scene: SetScene, policy: str) -> None:
    """The SUBACK repeats what was asked for, for all filters of the packet, and grants each its QoS."""
    stage = await scene(queue={"live_messages": 50})
    peer = await stage.join("chooser")
    suback = await ask(peer, wishes(queue=policy, max_age="2.5", depth="7"), ("a", 0), ("b/+", 1), ("c/#", 2))
    assert suback.codes == (0, 1, 2)
    told = granted(suback)
    assert told[QUEUE] == policy
    assert float(told[MAX_AGE]) == 2.5
    assert told[DEPTH] == "7"
    assert suback.get(wire.REASON_STRING) is None


@pytest.mark.parametrize(
    ("queue", "wish", "expected"),
    [
        pytest.param({}, {"max_age": "60"}, (5, 20), id="an age beyond the limit"),
        pytest.param({}, {"depth": "1000"}, (5, 20), id="a depth beyond the limit"),
        pytest.param(
            {"rules": [{"topic_filter": "load/#", "depth": 10, "max_age": 2.0}]},
            {"max_age": "4", "depth": "15"},
            (2, 10),
            id="a rule for the subscription",
        ),
        pytest.param(
            {"rules": [{"client_id": "choos*", "live_messages": 8}]},
            {"depth": "15"},
            (5, 8),
            id="a rule for the client",
        ),
        pytest.param({"max_age": 0.0}, {"max_age": "3600"}, (3600, 20), id="an age where there is no limit"),
        pytest.param({"live_messages": 0}, {"depth": "123456"}, (5, 123456), id="a depth where there is no limit"),
    ],
)
async def test_what_is_granted_is_within_the_limits(
    scene: SetScene, queue: dict[str, Any], wish: dict[str, str], expected: tuple[float, int]
) -> None:
    """The administrator's bounds may be tightened and not loosened; the SUBACK says how far."""
    stage = await scene(queue={"live_messages": 20, "max_age": 5.0, **queue})
    peer = await stage.join("chooser")
    suback = await ask(peer, wishes(**wish), ("load/+", 0))
    assert suback.codes == (0,)
    told = granted(suback)
    for name, value in ((MAX_AGE, expected[0]), (DEPTH, expected[1])):
        if name[7:].replace("-", "_") in wish:
            assert float(told[name]) == value


@pytest.mark.parametrize("allowed", [["drop-newest", "drop-oldest"], []], ids=["not this one", "nothing"])
async def test_a_policy_that_may_not_be_chosen(scene: SetScene, allowed: list[str]) -> None:
    """The SUBACK tells the administrator's policy; with an empty list, age and depth are the administrator's, too."""
    stage = await scene(queue={"live_messages": 20, "policy": "drop-oldest", "subscriber_policies": allowed})
    peer = await stage.join("chooser")
    suback = await ask(peer, wishes(queue="latest", max_age="1", depth="2"))
    assert suback.codes == (0,)
    told = granted(suback)
    assert told[QUEUE] == "drop-oldest"
    if allowed:
        assert (float(told[MAX_AGE]), told[DEPTH]) == (1, "2")
    else:
        assert float(told[MAX_AGE]) == 0
        assert told[DEPTH] != "2"


BAD: Final = [
    (QUEUE, "newest"),
    (MAX_AGE, "soon"),
    (MAX_AGE, "nan"),
    (DEPTH, "-1"),
    ("canopy-policy", "latest"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value!r:.12}" for name, value in BAD])
async def test_a_wish_that_means_nothing(scene: SetScene, name: str, value: str) -> None:
    """0x83 for each filter with a reason string that names the property; no subscription is made or changed."""
    stage = await scene()
    peer = await stage.join("chooser", "old")
    good = wishes(**({"depth": "5"} if name != DEPTH else {"max_age": "5"}))
    suback = await ask(peer, [*good, (wire.USER_PROPERTY, (name, value))], ("load", 0), ("old", 1), ("more/#", 2))
    assert suback.codes == (0x83, 0x83, 0x83)
    reason = suback.get(wire.REASON_STRING)
    assert isinstance(reason, str)
    assert name in reason
    assert granted(suback) == {}
    publisher = await stage.join("publisher")
    for topic in ("load", "more/of/it", "old"):
        await publisher.publish(topic, b"x", qos=1)
    assert [(packet.topic, packet.qos) for packet in await peer.fence()] == [("old", 0)]


@pytest.mark.parametrize("bad", [False, True], ids=["granted", "refused"])
@pytest.mark.parametrize("terms", [(wire.REQUEST_PROBLEM, 0), (wire.MAXIMUM_PACKET_SIZE, 24)], ids=["none", "small"])
async def test_who_wants_no_problem_information(scene: SetScene, terms: tuple[int, int], bad: bool) -> None:
    """No reason string and no user property in SUBACK [MQTT-3.1.2-29]; the wish is granted or refused all the same.

    Nor where the SUBACK would be larger than the client takes with them [MQTT-3.9.2-1] [MQTT-3.9.2-2].
    """
    stage = await scene()
    peer = await stage.join("chooser", props=[terms, *KEEP])
    suback = await ask(peer, wishes(queue="worst" if bad else "drop-oldest", depth="2"), ("load", 1))
    assert (suback.codes, suback.properties) == ((0x83,) if bad else (1,), [])
    assert await returning(stage, peer) == ([] if bad else [8, 9])


async def test_a_client_of_3_1_1_has_nothing_to_choose(scene: SetScene) -> None:
    """Its SUBACK has no properties, and its queue is as the administrator says."""
    stage = await scene(queue={"session_messages": 4})
    peer = await stage.join("old", ("load", 1), version=4, clean=False)
    await peer.disconnect()
    publisher = await stage.join("publisher")
    for number in range(10):
        await publisher.publish("load", b"%d" % number, qos=1)
    back = await stage.join("old", version=4, clean=False)
    assert [packet.payload for packet in await back.fence()] == [b"0", b"1", b"2", b"3"]


# --------------------------------------------------------------------------------------------------------- what is done


async def returning(stage: Scene, peer: Peer | None = None, count: int = 10) -> list[int]:
    """The chooser is away, misses some messages of QoS 1, comes back, and goes again: what had waited for it."""
    if peer is not None:
        await peer.disconnect()
    publisher = await stage.join("publisher")
    for number in range(count):
        await publisher.publish("load", b"%d" % number, qos=1)
    back = await stage.join("chooser", clean=False, props=KEEP)
    found = await back.fence()
    for packet in found:
        assert (packet.kind, packet.dup) == (wire.PUBLISH, False)
        assert packet.packet_id is not None
        await back.send(wire.ack(wire.PUBACK, packet.packet_id))
    assert await back.fence() == []
    await back.disconnect()
    return [int(packet.payload) for packet in found]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"depth": "3"}, [0, 1, 2]),
        ({"queue": "drop-newest", "depth": "3"}, [0, 1, 2]),
        ({"queue": "drop-oldest", "depth": "3"}, [7, 8, 9]),
        ({"queue": "disconnect", "depth": "3"}, [0, 1, 2]),
        ({"queue": "latest"}, [9]),
        ({"queue": "latest", "depth": "3"}, [9]),
        ({"depth": "0"}, list(range(10))),
    ],
    ids=str,
)
async def test_what_waits_follows_the_choice(scene: SetScene, wish: dict[str, str], expected: list[int]) -> None:
    """The queue of a client that is away holds what it chose; another client's is as the administrator says."""
    stage = await scene()
    peer = await stage.join("chooser", props=KEEP)
    other = await stage.join("other", ("load", 1), props=KEEP)
    await ask(peer, wishes(**wish), ("load", 1))
    session = stage.session("chooser")
    assert await returning(stage, peer) == expected
    lost = dropped_by_cause(session)
    assert sum(lost) == lost[REPLACED if wish.get("queue") == "latest" else FULL_MESSAGES] == 10 - len(expected)
    assert [int(packet.payload) for packet in await other.fence()] == list(range(10))


async def test_a_choice_lasts_as_long_as_the_subscription(scene: SetScene) -> None:
    """It outlives the connection with the session; the next SUBSCRIBE of the filter takes its place [MQTT-3.8.4-3]."""
    stage = await scene()
    peer = await stage.join("chooser", props=KEEP)
    await ask(peer, wishes(queue="drop-oldest", depth="2"), ("load", 1))
    assert await returning(stage, peer) == [8, 9]
    assert await returning(stage) == [8, 9]
    again = await stage.join("chooser", clean=False, props=KEEP)
    await ask(again, wishes(depth="4"), ("load", 1))
    assert await returning(stage, again) == [0, 1, 2, 3]


async def test_who_chose_to_be_disconnected(scene: SetScene) -> None:
    """The depth that it chose is reached: DISCONNECT 0x97, behind all that came before."""
    stage = await scene()
    far = await stage.join_far("frozen", "plug")
    await ask(far.peer, wishes(queue="disconnect", depth="5"))
    publisher = await stage.join("publisher")
    await stage.plug(far, "frozen", "plug", publisher)
    for number in range(6):
        assert not stage.session("frozen").ended
        await publisher.publish("load", stamped(number))
    far.thaw()
    plug, *found, last = await far.peer.closed()
    assert plug.topic == "plug"
    assert (last.kind, last.code) == (wire.DISCONNECT, 0x97)
    numbers = [number_of(packet.payload) for packet in found]
    assert numbers == list(range(len(numbers)))


async def test_a_choice_holds_for_its_own_subscription_only(scene: SetScene) -> None:
    """While its client does not read, of each topic of one filter only the newest waits; of the others all do."""
    stage = await scene()
    far = await stage.join_far("frozen", "load", "plug")
    await ask(far.peer, wishes(queue="latest"), ("state/+", 0))
    publisher = await stage.join("publisher")
    await stage.plug(far, "frozen", "plug", publisher)
    for number in range(10):
        for topic in ("load", "state/b", "state/a"):
            await publisher.publish(topic, stamped(number))
    far.thaw()
    found = [(packet.topic, number_of(packet.payload)) for packet in (await far.peer.fence())[1:]]
    assert [number for topic, number in found if topic == "load"] == list(range(10))
    assert [pair for pair in found if pair[0] != "load"] == [("state/b", 9), ("state/a", 9)]
    lost = dropped_by_cause(stage.session("frozen"))
    assert lost[REPLACED] == sum(lost) == 18
