"""A client writes user properties with the names of those that nodes add to messages: they are the client's."""

from __future__ import annotations

import pytest

from tests.e2e import wire
from tests.e2e.wire import Properties
from tests.mesh.brokers import Start
from tests.support.waiting import until

WRITTEN = {
    "move": (("canopy-late", "1-0123456789abcdef"),),
    "mark": (("canopy-late", "1-0123456789abcdef!"),),
    "share": (("canopy-share", "$share/g/x"),),
    "number": (("canopy-publish", "5"),),
    "all": (("canopy-publish", "5"), ("canopy-share", "$share/g/x"), ("canopy-late", "move")),
}
KEPT = ((wire.SESSION_EXPIRY, 1_000),)


def properties(name: str) -> Properties:
    return tuple((wire.USER_PROPERTY, pair) for pair in WRITTEN[name])


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", WRITTEN)
async def test_all_who_subscribe_at_another_node_get_the_message_as_it_was_published(
    start: Start, name: str, qos: int
) -> None:
    """Twice: it is no number that comes again, either [MQTT-3.3.2-17]."""
    nodes = await start("a", "b")
    hears = [await nodes.join("b", f"hears {number}", ("x", 2)) for number in range(2)]
    hears.append(await nodes.join("b", "member", ("$share/g/x", 2)))
    says = await nodes.join("a", "says")
    for _ in range(2):
        await says.publish("x", b"1", qos=qos, props=properties(name))
        for peer in hears:
            message = await peer.message()
            assert message.all(wire.USER_PROPERTY) == list(WRITTEN[name])
    for peer in hears:
        assert await peer.fence() == []


@pytest.mark.parametrize("name", WRITTEN)
async def test_they_stand_also_in_what_waits_for_a_session_that_moves_without_a_third_node(
    start: Start, name: str
) -> None:
    """c publishes, and reaches neither b, where the session was, nor a, where it is."""
    nodes = await start("a", "b", "c", mesh={"confirm_timeout": 2.0})
    (await nodes.join("b", "hears", ("x", 2), clean=False, props=KEPT)).abort()
    await nodes.mesh.settle()
    for node in "ab":
        nodes.mesh.cut(node, "c")
    links = [nodes.meshes[one].links[other] for one, other in ("ac", "bc", "ca", "cb")]
    await until(lambda: not any(link.connected for link in links))
    says = await nodes.join("c", "says")
    for qos in (1, 2):
        await says.publish("x", b"%d" % qos, qos=qos, props=properties(name))
    hears = await nodes.join("a", "hears", clean=False, props=KEPT)
    for node in "ab":
        nodes.mesh.join(node, "c")
    for qos in (1, 2):
        message = await hears.message()
        assert (message.payload, message.all(wire.USER_PROPERTY)) == (b"%d" % qos, list(WRITTEN[name]))
    assert await hears.fence() == []


async def test_topics_of_nodes_are_ordinary_ones(start: Start) -> None:
    """The messages that nodes send each other there are for no client."""
    nodes = await start("a", "b", "c", mesh={"confirm_timeout": 2.0})
    hears = await nodes.join("a", "hears marks", ("$node/#", 2))
    (await nodes.join("b", "hears", ("x", 2), clean=False, props=KEPT)).abort()
    await nodes.mesh.settle()
    nodes.mesh.cut("b", "c")
    await until(lambda: not nodes.meshes["b"].links["c"].connected)
    nodes.mesh.cut("a", "c")
    await until(lambda: not nodes.meshes["a"].links["c"].connected)
    await nodes.join("a", "hears", clean=False, props=KEPT)
    gates = nodes.meshes["a"].ownership.gates
    await until(lambda: len(gates))
    for node in "ab":
        nodes.mesh.join(node, "c")
    await until(lambda: not len(gates))
    says = await nodes.join("b", "says")
    await says.publish("$node/late", b"1", qos=1, props=properties("mark"))
    message = await hears.message()
    assert (message.topic, message.payload) == ("$node/late", b"1")
    assert await hears.fence() == []
