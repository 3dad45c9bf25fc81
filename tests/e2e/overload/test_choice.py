"""The subscriber chooses: `canopy-queue`, `canopy-max-age`, `canopy-depth` on SUBSCRIBE, and what SUBACK says to it."""

from __future__ import annotations

from typing import Final

from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import PLUG, Scene, check_ledger, lost, number_of, stamped, told
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
