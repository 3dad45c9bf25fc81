"""What nodes that share their sessions tell each other: how it is written, who gets it, and who cannot say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.cluster.pieces import MAX_KEYS, decode, encode
from canopy_mqtt.store.shared.calls import DeliveryKey, General, Hello, Hints, Members, Piece, Taken
from tests.cluster.nodes import Nodes
from tests.support.waiting import until

NUMBERS = st.integers(0, (1 << 63) - 1)
KEYS = st.lists(st.builds(DeliveryKey, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=20)
PIECES = (
    st.just(Hello())
    | st.just(General())
    | st.builds(Members, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS)))
    | st.builds(Taken, st.text(st.characters(exclude_categories=["Cs"])), NUMBERS)
    | st.builds(Hints, KEYS | KEYS.map(lambda keys: keys * (MAX_KEYS // 10)))
)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return what several PUBLISHes say together."""
    hints = [each.deliveries for each in pieces if isinstance(each, Hints)]
    if not hints:
        [piece] = pieces
        return piece
    assert len(hints) == len(pieces)
    return Hints([key for some in hints for key in some])


@given(PIECES)
def test_a_piece_is_read_as_it_was_told(piece: Piece) -> None:
    told = list(encode(piece))
    assert str(joined([decode(*each) for each in told])) == str(piece)
    assert all(len(payload) <= 24 * MAX_KEYS for _, payload in told if isinstance(piece, Hints))


@pytest.mark.parametrize("topic", ["$node/hints", "$node/taken", "$node/members", "$node/of a newer node"])
def test_what_cannot_be_read_may_have_been_anything(topic: str) -> None:
    """So all is read that sessions have."""
    assert isinstance(decode(topic.encode(), b"\xff" * 7), General)


def texts(*pieces: Piece) -> list[str]:
    """Return pieces so that those of two types are not equal."""
    return [str(piece) for piece in pieces]


class Ears:
    """What each node hears."""

    def __init__(self, nodes: Nodes) -> None:
        self._heard: defaultdict[str, list[Piece]] = defaultdict(list)
        nodes.prepare = self._prepare

    def heard(self, name: str) -> list[str]:
        return texts(*self._heard[name])

    def _prepare(self, name: str, broker: Broker) -> None:
        make = broker.make_cluster

        def made() -> object:
            cluster = make()
            cluster.hear(self._heard[name].append)
            return cluster

        broker.make_cluster = made  # type: ignore[assignment]


def tell(nodes: Nodes, name: str, piece: Piece) -> None:
    cluster = nodes.brokers[name].cluster
    assert cluster is not None
    cluster.telling.tell(piece)


async def test_a_piece_comes_to_each_other_node(nodes: Nodes) -> None:
    """Behind Hello, which each link begins with: what was told before may be missing."""
    ears = Ears(nodes)
    await nodes.start("a", "b", "c")
    for name in "abc":
        assert ears.heard(name) == texts(Hello(), Hello())
    told: list[Piece] = [Hints([DeliveryKey(1, 2, 3)]), Taken("ü", 4), General()]
    for piece in told:
        tell(nodes, "a", piece)
    for name in "bc":
        await until(lambda name=name: ears.heard(name)[2:] == texts(*told))  # type: ignore[misc]
    assert ears.heard("a") == texts(Hello(), Hello())


async def test_a_link_that_comes_up_again_begins_with_hello(nodes: Nodes) -> None:
    ears = Ears(nodes)
    await nodes.start("a", "b")
    nodes.link("a", "b").reset()
    await until(lambda: ears.heard("a") == texts(Hello(), Hello()))


async def test_what_has_no_room_is_made_up_for(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that got no hints reads all, as soon as there is room to say so."""
    monkeypatch.setattr("canopy_mqtt.cluster.telling.AGAIN", 0.01)
    ears = Ears(nodes)
    await nodes.start("a", "b")
    session = nodes.session("a", "b")
    buffer = session.send_buffer
    assert buffer is not None
    buffer.limit(session.policy, 0, 24)
    some = [DeliveryKey(1, 0, 3)] * MAX_KEYS
    tell(nodes, "a", Hints(some * 3))  # the first part has room: nothing else is there
    await until(lambda: len(ears.heard("b")) > 2)
    assert ears.heard("b") == texts(Hello(), Hints(some), General())


async def test_no_client_tells_a_node_anything(nodes: Nodes) -> None:
    """Nor does one hear it."""
    ears = Ears(nodes)
    await nodes.start("a", "b")
    ear = await nodes.join("b", "ear", "$node/#", "#")
    client = await nodes.join("a", "c")
    for topic, payload in (each for piece in (Taken("x", 9), General(), Hello()) for each in encode(piece)):
        await client.publish(topic.decode(), payload, qos=0)
    tell(nodes, "a", Taken("y", 1))
    await client.publish("last", b"last", qos=0)
    assert (await ear.message()).topic == "last"
    assert ears.heard("b") == texts(Hello(), Taken("y", 1))
