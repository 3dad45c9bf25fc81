"""The subscriber chooses: `canopy-queue`, `canopy-max-age`, `canopy-depth` on SUBSCRIBE, and what SUBACK says to it."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import KEPT, PLUG, Scene, check_ledger, lost, number_of, stamped, told
from tests.e2e.wire import Packet, Peer

BAD_FILTER_WISH: Final = 0x83
"""Implementation specific error: the reason code for a wish that means nothing."""

POLICIES: Final = ("drop-newest", "drop-oldest", "disconnect", "latest")
NO_PROBLEMS: Final = [(wire.REQUEST_PROBLEM, 0)]

BAD: Final = [
    ("canopy-queue", ""),
    ("canopy-queue", "newest"),
    ("canopy-queue", "Latest"),
    ("canopy-queue", "latest "),
    ("canopy-queue", "3"),
    ("canopy-max-age", ""),
    ("canopy-max-age", "soon"),
    ("canopy-max-age", "-1"),
    ("canopy-max-age", "nan"),
    ("canopy-max-age", "inf"),
    ("canopy-max-age", "1e999"),
    ("canopy-max-age", "5 s"),
    ("canopy-max-age", "٥"),
    ("canopy-depth", ""),
    ("canopy-depth", "many"),
    ("canopy-depth", "-1"),
    ("canopy-depth", "1.5"),
    ("canopy-depth", "0x10"),
    ("canopy-depth", "1_000"),
    ("canopy-depth", "9" * 5000),
    ("canopy-", "latest"),
    ("canopy-policy", "latest"),
    ("canopy-lost", "1;age"),
    ("canopy-queue ", "latest"),
]


def wish(**values: object) -> list[wire.Property]:
    """User properties of a SUBSCRIBE: `wish(queue="latest", max_age=5)`."""
    return [(wire.USER_PROPERTY, (f"canopy-{name.replace('_', '-')}", str(value))) for name, value in values.items()]


async def ask(peer: Peer, props: wire.Properties, *filters: tuple[str, int]) -> Packet:
    """Subscribe, and the whole SUBACK."""
    packet_id = peer.next_id()
    await peer.send(wire.subscribe(packet_id, filters or [("load/#", 0)], props))
    answer = await peer.expect(wire.SUBACK)
    assert answer.packet_id == packet_id
    return answer


def granted(answer: Packet) -> dict[str, str]:
    """What a SUBACK grants, each name once."""
    found: dict[str, str] = {}
    for value in answer.all(wire.USER_PROPERTY):
        assert isinstance(value, tuple)
        name, text = value
        assert name.startswith("canopy-")
        assert name not in found
        found[name.removeprefix("canopy-")] = text
    return found


class TestWhatIsGranted:
    """The SUBACK says what holds, at least for what was asked."""

    @pytest.mark.parametrize("policy", POLICIES)
    async def test_each_policy(self, scene: SetScene, policy: str) -> None:
        stage = await scene()
        peer = await stage.join("chooser")
        answer = await ask(peer, wish(queue=policy))
        assert answer.codes == (0,)
        assert granted(answer)["queue"] == policy

    async def test_all_three_for_each_filter_of_the_packet(self, scene: SetScene) -> None:
        stage = await scene()
        peer = await stage.join("chooser")
        answer = await ask(peer, wish(queue="latest", max_age=0.5, depth=7), ("a", 0), ("b", 1), ("c", 2))
        assert answer.codes == (0, 1, 2)
        told_back = granted(answer)
        assert told_back.keys() == {"queue", "max-age", "depth"}
        assert told_back["queue"] == "latest"
        assert float(told_back["max-age"]) == 0.5
        assert told_back["depth"] == "7"

    @pytest.mark.parametrize(("asked", "given"), [(2, 2), (5, 5), (60, 5), (0, 5), (4_294_967_295, 5)])
    async def test_an_age_is_no_longer_than_the_administrator_s(
        self, scene: SetScene, asked: float, given: float
    ) -> None:
        stage = await scene(queue={"max_age": 5.0})
        answer = await ask(await stage.join("chooser"), wish(max_age=asked))
        assert answer.codes == (0,)
        assert float(granted(answer)["max-age"]) == given

    @pytest.mark.parametrize(("asked", "given"), [(2, 2), (10, 10), (1000, 10), (0, 10)])
    async def test_a_depth_is_no_larger_than_the_administrator_s(self, scene: SetScene, asked: int, given: int) -> None:
        stage = await scene(queue={"rules": [{"topic_filter": "load/#", "depth": 10}]})
        answer = await ask(await stage.join("chooser"), wish(depth=asked))
        assert answer.codes == (0,)
        assert granted(answer)["depth"] == str(given)

    @pytest.mark.parametrize("allowed", [[], ["drop-oldest"]])
    async def test_a_policy_that_is_not_on_the_list_is_not_given(self, scene: SetScene, allowed: list[str]) -> None:
        """The filter is subscribed to, on the administrator's terms, and the SUBACK says so."""
        stage = await scene(queue={"subscriber_policies": allowed})
        peer = await stage.join("chooser")
        answer = await ask(peer, wish(queue="latest"))
        assert answer.codes == (0,)
        assert granted(answer)["queue"] == "drop-newest"
        if allowed:
            assert granted(await ask(peer, wish(queue="drop-oldest")))["queue"] == "drop-oldest"

    async def test_who_asks_for_nothing_is_told_nothing(self, scene: SetScene) -> None:
        """Other user properties are the application's."""
        stage = await scene()
        peer = await stage.join("chooser")
        answer = await ask(
            peer, [(wire.USER_PROPERTY, ("queue", "latest")), (wire.USER_PROPERTY, ("Canopy-queue", "x"))]
        )
        assert answer.codes == (0,)
        assert answer.properties == []


class TestWhatMeansNothing:
    """0x83 for each filter, with a reason string; nothing is subscribed to."""

    @pytest.mark.parametrize(("name", "value"), BAD, ids=lambda text: text[:20] or "empty")
    async def test_each(self, scene: SetScene, name: str, value: str) -> None:
        stage = await scene()
        peer = await stage.join("chooser")
        answer = await ask(peer, [(wire.USER_PROPERTY, (name, value))], ("load/#", 0), ("other", 1))
        assert answer.codes == (BAD_FILTER_WISH, BAD_FILTER_WISH)
        reason = answer.get(wire.REASON_STRING)
        assert isinstance(reason, str)
        assert len(reason) > 10
        assert granted(answer) == {}
        # The client goes on, and has nothing but what it asks for now.
        await peer.publish("load/0", stamped(0))
        assert await peer.fence() == []
        assert (await ask(peer, wish(queue="latest"))).codes == (0,)
        await peer.publish("load/0", stamped(1))
        assert number_of((await peer.message()).payload) == 1

    async def test_a_good_one_beside_a_bad_one(self, scene: SetScene) -> None:
        stage = await scene()
        peer = await stage.join("chooser")
        assert (await ask(peer, wish(queue="latest", depth="x"))).codes == (BAD_FILTER_WISH,)
        assert list(stage.session("chooser").subscriptions) == []

    async def test_twice_the_same_name(self, scene: SetScene) -> None:
        """Which of the two would hold?"""
        stage = await scene()
        peer = await stage.join("chooser")
        assert (await ask(peer, wish(queue="latest") + wish(queue="drop-oldest"))).codes == (BAD_FILTER_WISH,)

    async def test_what_was_subscribed_stays(self, scene: SetScene) -> None:
        stage = await scene()
        peer = await stage.join("chooser", "load/#")
        assert (await ask(peer, wish(queue="worst"))).codes == (BAD_FILTER_WISH,)
        await peer.publish("load/0", stamped(0))
        assert number_of((await peer.message()).payload) == 0


class TestWithoutProblemInformation:
    """Request Problem Information 0: no properties on SUBACK, good or bad [MQTT-3.1.2-29]."""

    async def test_granted_and_refused(self, scene: SetScene) -> None:
        stage = await scene()
        far = await stage.join_far("chooser", "plug", props=NO_PROBLEMS)
        good = await ask(far.peer, wish(queue="latest", depth=5))
        assert (good.codes, good.properties) == ((0,), [])
        bad = await ask(far.peer, wish(queue="worst"), ("other", 0))
        assert (bad.codes, bad.properties) == ((BAD_FILTER_WISH,), [])
        # What it asked for holds all the same; a PUBLISH may tell.
        await self._holds(stage, far.peer)

    @staticmethod
    async def _holds(stage: Scene, peer: Peer) -> None:
        publisher = await stage.join("publisher")
        outbox = stage.outbox("chooser")
        stage.proxy.links[0].down.stall()
        await publisher.publish("plug", PLUG)
        await stage.until("the plug is on its way", lambda: outbox.messages == 0)
        for number in range(10):
            await publisher.publish("load/0", stamped(number))
        stage.proxy.links[0].heal()
        assert (await peer.message()).topic == "plug"
        last = await peer.message()
        assert number_of(last.payload) == 9
        assert told([last]) == {"replaced-by-latest": 9}
        assert await peer.fence() == []


class TestWhatItDoes:
    """The wish holds for these filters of this client, and for nobody and nothing else."""

    async def test_two_filters_of_one_client_and_another_client(self, scene: SetScene) -> None:
        count = 30
        stage = await scene()
        publisher = await stage.join("publisher")
        far = await stage.join_far("chooser", "plug")
        await ask(far.peer, wish(queue="latest"), ("a/#", 0))
        await ask(far.peer, wish(queue="drop-oldest", depth=5), ("b/#", 0))
        await ask(far.peer, wish(depth=5), ("c/#", 0))
        await ask(far.peer, [], ("d/#", 0))
        reader = await stage.join("reader", "#")
        await stage.plug(far, "chooser", "plug", publisher)
        assert (await reader.message()).topic == "plug"
        for number in range(count):
            for topic in ("a/x", "b/x", "c/x", "d/x"):
                await publisher.publish(topic, stamped(number))
        far.thaw()
        found: dict[str, list[int]] = {}
        for packet in await far.peer.fence():
            if packet.topic != "plug":
                found.setdefault(packet.topic, []).append(number_of(packet.payload))
        assert found == {
            "a/x": [count - 1],
            "b/x": list(range(count - 5, count)),
            "c/x": list(range(5)),
            "d/x": list(range(count)),
        }
        session = stage.session("chooser")
        assert lost(session) == {"replaced-by-latest": count - 1, "full-messages": 2 * (count - 5)}
        check_ledger(session, offered=4 * count + 1, received=sum(map(len, found.values())) + 1)
        assert len(await reader.fence()) == 4 * count
        assert lost(stage.session("reader")) == {}

    async def test_age(self, scene: SetScene) -> None:
        stage = await scene()
        publisher = await stage.join("publisher")
        far = await stage.join_far("chooser", "plug", ("b", 0))
        await ask(far.peer, wish(max_age=0.5), ("a", 0))
        await stage.plug(far, "chooser", "plug", publisher)
        for topic in ("a", "b"):
            await publisher.publish(topic, stamped(0))
        await asyncio.sleep(1.0)  # the age itself
        for topic in ("a", "b"):
            await publisher.publish(topic, stamped(1))
        far.thaw()
        found = [(packet.topic, number_of(packet.payload)) for packet in (await far.peer.fence())[1:]]
        assert sorted(found) == [("a", 1), ("b", 0), ("b", 1)]
        assert lost(stage.session("chooser")) == {"age": 1}

    async def test_disconnect(self, scene: SetScene) -> None:
        """A subscriber that would rather be gone than late."""
        stage = await scene()
        publisher = await stage.join("publisher")
        far = await stage.join_far("chooser", "plug")
        await ask(far.peer, wish(queue="disconnect", depth=5), ("a", 0))
        await stage.plug(far, "chooser", "plug", publisher)
        for number in range(6):
            await publisher.publish("a", stamped(number))
        far.thaw()
        last = (await far.peer.closed())[-1]
        assert (last.kind, last.code) == (wire.DISCONNECT, 0x97)

    @pytest.mark.parametrize("back", [False, True], ids=["connected", "after a return"])
    async def test_a_subscription_is_replaced_as_a_whole(self, scene: SetScene, back: bool) -> None:
        """[MQTT-3.8.4-3] What is not asked for again no longer holds; a return to the session keeps what was asked."""
        stage = await scene()
        publisher = await stage.join("publisher")
        props = [(wire.SESSION_EXPIRY, KEPT)]
        far = await stage.join_far("chooser", "plug", clean=False, props=props)
        await ask(far.peer, wish(queue="latest"), ("a", 0), ("b", 0))
        assert granted(await ask(far.peer, [], ("b", 0))) == {}
        if back:
            await far.peer.disconnect()
            far = await stage.join_far("chooser", clean=False, props=props)
            assert far.peer.connack.session_present
        await stage.plug(far, "chooser", "plug", publisher)
        for number in range(10):
            for topic in ("a", "b"):
                await publisher.publish(topic, stamped(number))
        far.thaw()
        found = [(packet.topic, number_of(packet.payload)) for packet in (await far.peer.fence())[1:]]
        assert [number for topic, number in found if topic == "a"] == [9]
        assert [number for topic, number in found if topic == "b"] == list(range(10))

    async def test_quality_waits_in_the_session_on_the_same_terms(self, scene: SetScene) -> None:
        """While the client is away, too."""
        stage = await scene()
        publisher = await stage.join("publisher")
        props = [(wire.SESSION_EXPIRY, KEPT)]
        peer = await stage.join("chooser", clean=False, props=props)
        await ask(peer, wish(queue="latest"), ("a/#", 1))
        await ask(peer, wish(queue="drop-oldest", depth=3), ("b/#", 1))
        await peer.disconnect()
        for number in range(12):
            for topic in (f"a/{number % 2}", "b/x"):
                await publisher.publish(topic, stamped(number), qos=1)
        back = await stage.join("chooser", clean=False, props=props)
        found: dict[str, list[int]] = {}
        for _ in range(5):
            packet = await back.message()
            found.setdefault(packet.topic, []).append(number_of(packet.payload))
        assert await back.fence() == []
        assert found == {"a/0": [10], "a/1": [11], "b/x": [9, 10, 11]}
        check_ledger(stage.session("chooser"), offered=24, received=5)

    async def test_a_shared_subscription(self, scene: SetScene) -> None:
        """The wish of a member holds for what the member gets."""
        stage = await scene()
        publisher = await stage.join("publisher")
        far = await stage.join_far("chooser", "plug")
        found = granted(await ask(far.peer, wish(queue="drop-oldest", depth=5), ("$share/g/a", 0)))
        assert (found["queue"], found["depth"]) == ("drop-oldest", "5")
        await stage.plug(far, "chooser", "plug", publisher)
        for number in range(20):
            await publisher.publish("a", stamped(number))
        far.thaw()
        assert [number_of(packet.payload) for packet in (await far.peer.fence())[1:]] == list(range(15, 20))
