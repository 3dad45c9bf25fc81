"""A message from upstream is acknowledged there when it is committed here, if a store keeps it."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Publish
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from tests.links.scripted_link import LinkScene
from tests.store.grouped import GroupStore
from tests.store.observed import at_once


@pytest.fixture
def scene() -> LinkScene:
    return LinkScene()


@pytest.fixture
def store(scene: LinkScene) -> GroupStore:
    """A client that is away has everything kept."""
    network = scene.network
    store = GroupStore(lambda: network.now)
    at_once(store.open(lambda: network.now))
    network.router.journal = store.journal
    client = network.idle("sub")
    client.connect(clean=False, expiry=100)
    client.send(p.Subscribe(1, [Request("#", 1)]))
    network.settle()
    client.cut()
    store.commit_all()
    scene.connect()
    store.commit_all()
    return store


def test_acknowledgements_wait_in_their_order(scene: LinkScene, store: GroupStore) -> None:
    scene.say(Publish(b"t", b"1", 1, packet_id=1))
    scene.say(Publish(b"t", b"2", 2, packet_id=2))
    assert scene.took(Ack) == []
    store.commit_all()
    scene.network.settle()
    assert [(each.kind, each.packet_id) for each in scene.took(Ack)] == [(PUBACK, 1), (PUBREC, 2)]
    scene.say(Ack(PUBREL, 2))
    assert [(each.kind, each.packet_id) for each in scene.took(Ack)] == [(PUBCOMP, 2)]


def test_a_connection_that_ends_leaves_nobody_waiting(scene: LinkScene, store: GroupStore) -> None:
    scene.say(Publish(b"t", b"1", 1, packet_id=1))
    assert store.gate.waiting == 1
    scene.lose()
    assert store.gate.waiting == 0
