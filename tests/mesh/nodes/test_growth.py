"""What nodes keep after many moves, claims, and nodes that come and go: no more than after the first of them."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from typing import Any, Final

from broker.mesh.mesh import Mesh
from tests.e2e import wire
from tests.mesh.brokers import Nodes, Start
from tests.support.waiting import until

ROUNDS: Final = 4
VISITORS: Final = tuple(f"n{number}" for number in range(4 * ROUNDS))
"""Nodes that come once and never again, as workers without a store are that are started again."""

ROOMS: Final = ("broker.mesh.", "broker.core.")
OBSERVES: Final = "broker.core.sampling."
"""Whose objects are looked at, and whose are not: what only observes has bounds of its own, and looks at times."""

BOUNDED: Final = frozenset(
    {
        # `FORGET` and `GONE`.
        *("Claims.times", "Claims.clean", "PublishNumbers._gone", "PublishNumbers._heard"),
    }
)
"""Tables that have a bound of their own, which is not reached here."""

KEPT: Final = ((wire.SESSION_EXPIRY, 1_000),)


def sizes(root: object) -> Counter[str]:
    """How many things there are in each table that is reached from an object of mesh or core, by the table's name."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    line: deque[tuple[str, Any]] = deque([(type(root).__name__, root)])
    while line:
        name, thing = line.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            found[name] += len(thing)
            line.extend((name, value) for value in thing.values())
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            found[name] += len(thing)
            line.extend((name, value) for value in thing)
        elif type(thing).__module__.startswith(ROOMS) and not type(thing).__module__.startswith(OBSERVES):
            kind = type(thing)
            slots = [slot for each in kind.__mro__ for slot in getattr(each, "__slots__", ())]
            names = [*getattr(thing, "__dict__", ()), *slots]
            line.extend((f"{kind.__name__}.{each}", getattr(thing, each, None)) for each in names)
    return +found


async def moves(nodes: Nodes, turn: int) -> None:
    """Sessions move to and fro, with all that may go along; other clients come once."""
    for number in range(4):
        for node in ("a", "b"):
            will = wire.Will("w", b"gone", properties=((wire.WILL_DELAY, 1_000),))
            roams = await nodes.join(node, f"roams-{number % 2}", clean=False, props=KEPT, will=will)
            await roams.subscribe((f"x/{number % 2}/{node}", 2), ("$share/g/y", 1))
            await roams.publish(f"x/{number % 2}/a", b"1", qos=2, retain=True)
            await roams.unsubscribe(f"x/{number % 2}/{node}")
            roams.abort()
            once = await nodes.join(node, f"once-{turn}-{number}-{node}", ("once", 1))
            await once.publish("once", b"1", qos=1)
            await once.disconnect()
    for number in range(2):
        # The sessions and their wills end.
        ends = await nodes.join("a", f"roams-{number}")
        await ends.disconnect()


async def restarts(nodes: Nodes, visitors: tuple[str, ...]) -> None:
    """One of the two is lost and is back; others come, and are never seen again."""
    a, b = nodes.meshes["a"], nodes.meshes["b"]
    for _ in range(4):
        nodes.mesh.lose("a", "b")
        await until(lambda: not a.links["b"].connected)
        await until(lambda: a.links["b"].connected and b.links["a"].connected)
    for visitor in visitors:
        nodes.mesh.join(visitor, "a")
        nodes.mesh.join(visitor, "b")
        await nodes.mesh.settle()
        nodes.mesh.stop(visitor)
    await nodes.mesh.settle()
    await until(lambda: len(a.links) == len(b.links) == 1, "the others are given up")


def idle(mesh: Mesh) -> bool:
    """Whether nothing is under way."""
    room = mesh.ownership
    under_way = (
        room.claims.pending,
        room.claims._line,
        room.giver.givings,
        room.taker.coming,
        mesh.interest._forgotten,
    )
    return not any(under_way) and not mesh.wills.replicator.busy and not mesh.server.router.peers.touched


async def test_names_of_nodes_that_are_given_up_are_forgotten(start: Start) -> None:
    """Also of what others may have for them."""
    nodes = await start("a", "b", others=VISITORS[:1], mesh={"node_expiry": 1.0, "dead_after": 0.1})
    for node in ("a", "b"):
        nodes.mesh.join(VISITORS[0], node)
    known = [mesh.ownership.gates._knows for mesh in nodes.meshes.values()]
    await until(lambda: all(VISITORS[0] in each.get(node, ()) for each, node in zip(known, "ba", strict=True)))
    nodes.mesh.stop(VISITORS[0])
    await until(lambda: (known[0]["b"], known[1]["a"]) == ({"a"}, {"b"}))


async def test_nothing_grows_with_moves_and_nodes_that_come_and_go(start: Start) -> None:
    """No table that is reached from the mesh of a node has more in it than after the first round, whoever adds one."""
    terms = {"node_expiry": 1.0, "dead_after": 0.1, "confirm_timeout": 0.5}
    nodes = await start("a", "b", others=VISITORS, mesh=terms, sys={"interval": 0.0})
    before: Counter[str] = Counter()

    def grown() -> dict[str, tuple[int, int]]:
        now = sizes(nodes.meshes["a"])
        return {name: (before[name], now[name]) for name in now if now[name] > before[name] and name not in BOUNDED}

    for number in range(ROUNDS):
        await moves(nodes, number)
        await restarts(nodes, VISITORS[4 * number : 4 * number + 4])
        await until(lambda: all(map(idle, nodes.meshes.values())))
        before = before or sizes(nodes.meshes["a"])
    with suppress(AssertionError):
        await until(lambda: not grown())
    assert grown() == {}
