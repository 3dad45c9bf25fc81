"""The session of a link in a store that commits when it is told: what leaves before, and what the next broker finds."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec.packets import PUBACK, V5, Ack, Publish
from tests.core.harness import Client
from tests.links.protocol.test_poison_messages import GOOD, Fussy, bad
from tests.links.scripted_link import LinkScene
from tests.store.grouped import GroupStore
from tests.store.observed import at_once
from tests.support.runs import for_each


def opened(before: LinkScene | None = None) -> GroupStore:
    """A new store, or what a broker that was killed now has left."""
    store = GroupStore(lambda: 0.0, None if before is None else before.store)
    at_once(store.open(lambda: 0.0))
    return store


def killed(scene: LinkScene) -> LinkScene:
    """The next broker."""
    return LinkScene(publish=("up/#",), store=opened(scene))


def publisher(scene: LinkScene) -> Client:
    return scene.network.client("publisher")


@pytest.fixture
def scene() -> LinkScene:
    return LinkScene(publish=("up/#",), store=opened())


def test_retained_messages_on_their_way_up_begin_again(scene: LinkScene) -> None:
    """The upstream has lost the session, and the broker is killed while they go."""
    for number in range(3):
        publisher(scene).publish(f"up/{number}", b"x", 1, retain=True)
    scene.terms.max_inflight = 1
    scene.connect()
    scene.commit()
    for _ in range(3):
        scene.commit()
        scene.say(Ack(PUBACK, scene.took(Publish)[0].packet_id))
    scene.lose()
    scene.connect()
    scene.commit()
    first = scene.took(Publish)[0]
    after = killed(scene)
    after.connect(present=True)
    assert first.retain
    assert {each.topic for each in after.took(Publish)} == {b"up/0", b"up/1", b"up/2"}


class Kept(Fussy):
    """An upstream that closes for some messages, and a link that a store keeps."""

    def __init__(self, qos: int) -> None:
        super().__init__(V5, bad)
        self.qos = qos
        self.use(LinkScene(publish=("up/#",), store=opened()))

    def use(self, scene: LinkScene) -> None:
        scene.terms.session_expiry = 1_000
        self.scene = scene
        self.client = scene.network.client("client")

    def kill(self) -> None:
        self.given_up.clear()
        self.use(killed(self.scene))

    def turn(self) -> bool:
        while True:
            self.scene.commit()
            before = self.read
            if not super().turn():
                return False
            self.scene.commit()
            if before == self.read and not self.scene.packets:
                return True


@for_each("after", range(1, 7))
@for_each("qos", [1, 2])
def test_a_message_that_it_closes_for_is_found_after_a_restart_too(qos: int, after: int) -> None:
    """The search begins anew, and what was given up does not come back."""
    upstream = Kept(qos)
    upstream.publish(*GOOD[:5], b"bad", *GOOD[5:], qos=qos)
    for _ in range(after):
        upstream.connect()
        if upstream.turn():
            break
    upstream.scene.commit()
    upstream.kill()
    upstream.run()
    upstream.scene.commit()
    assert set(upstream.came) == set(GOOD)
    upstream.kill()
    upstream.came.clear()
    upstream.run()
    assert upstream.came == []
    assert upstream.scene.session.queued() == 0
