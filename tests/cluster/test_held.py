"""What a node is told of the filters that its session holds at another one, and how long such a session lasts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from tests.cluster.nodes import Nodes, payloads
from tests.support.waiting import until

DURABLE = [(0x11, 3600)]
KEPT = ["kept", "kept\nnot/kept", 'a "quoted" one', "back\\slash", "\x7f", "snow/\u2603"]
"""Filters as MQTT allows them, where `mqtt.control_characters` does."""

GONE = [f"gone\n{name}" for name in KEPT]


async def killed(nodes: Nodes, name: str, other: str) -> None:
    """Stop a node; the other one does not hear of the end of its clients, as if it were killed."""
    nodes.darken(other, name)
    await until(lambda: not nodes.link(name, other).connected, "the link is down")
    await nodes.stop(name)
    nodes.light()


async def test_filters_with_any_text_end_and_stay(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab", mqtt={"control_characters": True})
    durable = await nodes.join("b", "durable", *[(each, 1) for each in KEPT], clean=False, props=DURABLE)
    await nodes.join("b", "clean", *[(each, 1) for each in GONE])
    await nodes.linked()
    await durable.disconnect()
    await killed(nodes, "b", "a")
    assert sorted(nodes.session("a", "b").subscriptions) == sorted(KEPT + GONE)
    await nodes.restart("b")
    await nodes.linked()
    await until(lambda: sorted(nodes.session("a", "b").subscriptions) == sorted(KEPT), "the others have ended")


async def test_no_queue_drops_what_is_told(stack: AsyncExitStack, tmp_path: Path) -> None:
    """However little may wait for a node, and however much waits."""
    nodes = Nodes(stack, tmp_path, link_bytes=1)
    await nodes.start("a", "b", stores="ab")
    await nodes.join("b", "clean", *[(f"{number}/{'long' * 25}", 1) for number in range(2_000)])
    durable = await nodes.join("b", "durable", ("kept", 1), clean=False, props=DURABLE)
    await durable.disconnect()
    await nodes.linked()
    await killed(nodes, "b", "a")
    publisher = await nodes.join("a", "publisher")
    await publisher.publish("kept", b"waits", qos=1)
    await nodes.restart("b")
    await nodes.linked()
    await until(lambda: list(nodes.session("a", "b").subscriptions) == ["kept"], "the others have ended")


async def test_a_node_is_told_again_until_it_has_heard_all(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    await nodes.join("b", "clean", ("gone", 1))
    durable = await nodes.join("b", "durable", ("kept", 1), clean=False, props=DURABLE)
    await durable.disconnect()
    await nodes.linked()
    await killed(nodes, "b", "a")
    wire = nodes.wires["b", "a"]
    came = len(wire.came)
    # Node a tells, and nothing of that arrives: the next connection has to.
    wire.darken(up=False)
    await nodes.restart("b")
    await until(lambda: nodes.session("a", "b").send_buffer is not None, "node a has let b in")
    first = wire.came[came]
    first.cut()
    nodes.light()
    await nodes.linked()
    await until(lambda: list(nodes.session("a", "b").subscriptions) == ["kept"], "the other one has ended")


async def test_a_filter_of_an_earlier_run_that_is_wanted_again_ends_with_its_client(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    await nodes.join("b", "clean", ("again", 1))
    await nodes.linked()
    await killed(nodes, "b", "a")
    await nodes.restart("b")
    again = await nodes.join("b", "again", ("again", 1))
    await nodes.linked()
    await (await nodes.join("a", "publisher")).publish("again", b"x", qos=1)
    assert await payloads(again, b"x") == [b"x"]
    await again.unsubscribe("again")
    await until(lambda: not nodes.session("a", "b").subscriptions, "no filter is left")


async def test_a_node_s_session_outlives_the_sessions_of_clients(nodes: Nodes) -> None:
    """`session.max_expiry` is about clients: a node is waited for for a day."""
    await nodes.start("a", "b", stores="ab", session={"max_expiry": 60})
    durable = await nodes.join("b", "durable", ("t", 1), clean=False, props=[(0x11, 60)])
    await durable.disconnect()
    await nodes.linked()
    await killed(nodes, "b", "a")
    a = nodes.brokers["a"]
    await until(lambda: nodes.session("a", "b").send_buffer is None, "node a knows that b is down")
    await (await nodes.join("a", "publisher")).publish("t", b"missed", qos=1)
    a.router.tick(a.loop.time() + 3_600)
    await nodes.restart("b")
    await nodes.linked()
    again = await nodes.join("b", "durable", clean=False, props=[(0x11, 60)])
    assert await payloads(again, b"missed") == [b"missed"]


async def test_a_long_answer_is_waited_for_as_long_as_parts_of_it_come(nodes: Nodes) -> None:
    """It is a CONNACK, with each filter that the session holds: of very many it takes longer than another one may."""
    await nodes.start("a", "b")
    connection = nodes.link("a", "b").connection
    assert connection is not None
    now = connection.loop.time()
    # As if it had begun long ago, and the last part had just come.
    connection.was_open = False
    connection._opened_at = now - 100.0
    connection.uplink.last_received = now
    assert connection.check(now) == now + connection.timeout
    assert connection.uplink.close_text == ""
    assert connection.check(now + connection.timeout) == 0.0
    assert "CONNACK" in connection.uplink.close_text
