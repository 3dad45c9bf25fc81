"""Limits that hold for all workers together, in a broker with workers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path

import pytest

from canopy_mqtt.security.passwords.hashes import make
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Peer
from tests.support.waiting import until
from tests.workers.crew import Crew

BUSY, QUOTA = 0x89, 0x97


async def come(crew: Crew, count: int, prefix: str) -> tuple[list[Peer], list[int]]:
    """Clients that come at once: those that got in, and the codes of the others."""
    peers = [await crew.knock(f"{prefix}-{number}") for number in range(count)]
    answers = await asyncio.gather(*(peer.expect(wire.CONNACK) for peer in peers))
    inside = [peer for peer, answer in zip(peers, answers, strict=True) if not answer.code]
    return inside, [answer.code for answer in answers if answer.code]


async def leave(crew: Crew, peers: list[Peer], prefix: str) -> None:
    for peer in peers:
        await peer.disconnect()
    await until(
        lambda: sum(line["client_id"].startswith(prefix) for line in crew.told("client disconnected")) >= len(peers)
    )


async def test_as_many_clients_get_in_as_may(stack: AsyncExitStack) -> None:
    """And as many others when they have left; what a killed worker had is free."""
    crew = await Crew.started(stack, 3, "--set", "limits.max_connections=30", "--set", "log.level=info")
    for prefix in ("a", "b"):
        inside, refused = await come(crew, 50, prefix)
        assert len(inside) == 30
        assert refused == [BUSY] * 20
        await leave(crew, inside, prefix)
    inside, _ = await come(crew, 30, "c")
    await crew.restarted(1)
    others, _ = await come(crew, 50, "d")
    lost = [peer for peer in inside if peer.reader.at_eof()]
    assert lost
    assert len(others) == len(lost)


async def test_an_address_has_its_limit_at_all_workers(stack: AsyncExitStack) -> None:
    """A client that replaces its own connection is let in."""
    crew = await Crew.started(stack, 3, "--set", "limits.max_connections_per_address=4", "--set", "log.level=info")
    inside, refused = await come(crew, 6, "a")
    assert len(inside) == 4
    assert refused == [QUOTA] * 2
    again = await crew.join("a-0")
    _, refused = await come(crew, 2, "b")
    assert refused == [QUOTA] * 2
    await again.disconnect()
    await crew.line("client disconnected", client_id="a-0", cause="client-disconnect")
    inside, refused = await come(crew, 2, "c")
    assert len(inside) == 1


async def test_all_workers_keep_as_many_sessions_as_may_be(stack: AsyncExitStack) -> None:
    """One worker may have them all, since the others need none; then none of them begins another one."""
    crew = await Crew.started(stack, 3, "--set", "session.max_sessions=6")

    async def begin(client_id: str) -> int:
        peer = await crew.knock(client_id, clean=False, props=((SESSION_EXPIRY, 100),))
        code = (await peer.expect(wire.CONNACK)).code
        if not code:
            # Else it would make room for others.
            await peer.subscribe("a/b")
            await peer.disconnect()
        peer.abort()
        return code

    for name in islice(crew.names(1), 6):
        while await begin(name):
            pass
    for worker in range(3):
        assert await begin(next(crew.names(worker, "other"))) == QUOTA


async def test_a_user_keeps_as_much_at_all_workers_as_at_one_process(stack: AsyncExitStack) -> None:
    """Nearly all of it at one worker, and nothing more at the others then."""
    limit = ("--set", "limits.max_user_bytes=100_000")
    alone = await Crew.started(stack, 1, *limit)
    peer = await alone.join("client")
    most = 0
    while await peer.subscribe(f"filter/{most}") == (0,):
        most += 1
    crew = await Crew.started(stack, 3, *limit)
    others = [await crew.join(next(crew.names(worker))) for worker in (0, 2)]
    peer = await crew.join(next(crew.names(1)))
    kept = 0
    while kept < most * 0.95:
        kept += await peer.subscribe(f"filter/{kept}") == (0,)
    refused = [0, 0]
    while min(refused) < 3:
        for number, other in enumerate(others):
            if await other.subscribe(f"other/{kept}") == (0,):
                kept += 1
            else:
                refused[number] += 1
    assert kept <= most


@pytest.fixture
def users(tmp_path: Path) -> str:
    """The setting that lets four users in, u0 to u3."""
    path = tmp_path / "users"
    path.write_text("".join(f"u{user}:{make(b'right', 'pbkdf2-sha512', 1)}\n" for user in range(4)))
    return f'authenticator=[{{type = "password-file", path = "{path}"}}]'


async def join(crew: Crew, name: str, user: int, *filters: tuple[str, int]) -> Peer:
    return await crew.join(name, *filters, user=f"u{user}", password=b"right")


async def kept(crew: Crew, worker: int) -> set[str]:
    """The topics of what a worker has retained."""
    peer = await join(crew, next(crew.names(worker, "looks")), 3, ("kept/#", 1))
    return {each.topic for each in (await peer.message(), *(await peer.fence()))}


@pytest.mark.parametrize("limit", ["limits.max_user_bytes=40_000", "retained.max_messages=60"])
async def test_all_workers_have_what_the_clients_of_one_may_retain(
    stack: AsyncExitStack, users: str, limit: str
) -> None:
    """What that one has charged to three users, another one does not charge to an account of its own."""
    crew = await Crew.started(stack, 2, "--set", users, "--set", limit)
    hears = await join(crew, next(crew.names(0)), 3, ("kept/#", 1))
    names = crew.names(1)
    peers = [await join(crew, next(names), user) for user in range(3)]
    for number in range(40):
        for user, peer in enumerate(peers):
            await peer.publish(f"kept/{number}/{user}", b"x", qos=1, retain=True)
            await hears.message()
    assert await kept(crew, 0) == await kept(crew, 1)
    assert len(await kept(crew, 0)) > 55


async def test_what_makes_room_at_one_worker_does_at_all(stack: AsyncExitStack, users: str) -> None:
    """A message with QoS 1 for which one with QoS 0 of another user went is kept wherever that one was."""
    crew = await Crew.started(stack, 2, "--set", users, "--set", "retained.max_messages=60")
    hears = await join(crew, next(crew.names(0)), 3, ("kept/#", 1))
    names = crew.names(1)
    many, few = await join(crew, next(names), 0), await join(crew, next(names), 1)
    for number in range(80):
        await many.publish(f"kept/many/{number}", b"x", retain=True)
        await hears.message()
    for number in range(20):
        await few.publish(f"kept/few/{number}", b"x", qos=1, retain=True)
        await hears.message()
    for worker in range(2):
        assert {f"kept/few/{number}" for number in range(20)} < await kept(crew, worker)


async def test_clients_that_are_not_accepted_keep_none_out(stack: AsyncExitStack, users: str) -> None:
    """They wait for the answer to a wrong password, and have all places, at another worker than the client's."""
    crew = Crew(stack, 3)
    await crew.start("--set", users, "--set", "limits.max_connections=6", "--set", "security.failure_delay=50")
    guessers = [await crew.knock(name, user="u0", password=b"wrong") for name in islice(crew.names(0), 6)]
    name = next(crew.names(1))
    codes = []
    while 0 not in codes:
        peer = await crew.knock(name, user="u0", password=b"right")
        codes.append((await peer.expect(wire.CONNACK)).code)
        if codes[-1] != 0:
            # Of those that are refused, 128 may stay until they are gone.
            peer.abort()
    assert set(codes) <= {0, BUSY}
    assert await guessers[0].closed() == []
