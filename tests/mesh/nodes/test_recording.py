"""What is recorded in a mesh: each message once, at the node where it was published."""

from __future__ import annotations

import pytest

from tests.core.taps import Listening
from tests.mesh.brokers import Start


@pytest.mark.parametrize("deliveries", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_is_recorded_by_the_node_where_it_was_published(
    start: Start, qos: int, deliveries: bool
) -> None:
    """Also one of a burst, and whether a node has one subscriber or several; so are deliveries."""
    nodes = await start("a", "b")
    alone, one, two = [await nodes.join("b", name, (f"{name}/#", qos), ("all", qos)) for name in ("s", "t", "u")]
    says = await nodes.join("a", "says")
    taps = {}
    for name, broker in nodes.brokers.items():
        taps[name] = Listening(deliveries)
        broker.router.record(taps[name].tap, ["#"])
    for number in range(3):
        await says.publish("s/x", b"%d" % number, qos=qos)
    await says.publish("all", b"3", qos=qos)
    assert [(await alone.message()).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert [(await peer.message()).payload for peer in (one, two)] == [b"3", b"3"]
    assert [row["topic"] for row in taps["a"].rows("publish")] == ["s/x", "s/x", "s/x", "all"]
    assert taps["b"].rows("publish", "deliver") == []
    # Its own clients' messages it records.
    await one.publish("s/y", b"4", qos=qos)
    await alone.message()
    assert [row["topic"] for row in taps["b"].rows("publish")] == ["s/y"]
