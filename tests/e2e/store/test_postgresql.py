"""The daemon with a store in PostgreSQL: the database is killed and started again, one broker takes another's place.

That the daemon itself is killed is `test_store_live`, with each kind of store.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e import wire
from tests.e2e.store.test_live import House, Publisher, Receiver, seen_through
from tests.e2e.stores import InDatabase
from tests.e2e.wire import publish
from tests.support import postgresql
from tests.support.daemon import PATIENCE, canopy
from tests.support.runs import CRASH, seeds, times
from tests.support.waiting import until


@pytest.fixture(scope="module")
def own() -> Iterator[postgresql.Server]:
    """A database that is killed; what it has committed is on the disk."""
    yield from postgresql.server("fsync=on")


@pytest.fixture
async def house(tmp_path: Path, own: postgresql.Server) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        made = House(tmp_path / "store", stack, InDatabase(own))
        # One that stood still is not refused to clients for that.
        made.environ["CANOPY_LIMITS__MAX_LOOP_LAG"] = "0"
        await made.start()
        yield made


async def _run(publisher: Publisher, house: House, chance: random.Random) -> None:
    """Publish until some more are acknowledged; whether the session was there is known from before."""
    await publisher.run(await house.peer("p", present=None), chance.randrange(50, 400), 1 << 30)


async def _heard(publisher: Publisher, wanted: int, running: asyncio.Future[None]) -> None:
    await until(lambda: running.done() or len(publisher.acknowledged) >= wanted)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("qos", [1, 2] if CRASH else [2])
async def test_the_database_is_killed_again_and_again(
    house: House, own: postgresql.Server, qos: int, seed: int
) -> None:
    """With SIGKILL, or stopped in order, under load; now and then the broker too: nothing acknowledged is lost, QoS 2
    comes once, and no order is broken."""
    chance = random.Random(seed)
    publisher, here = Publisher(qos), Receiver()
    await house.away("away", ("t", qos))
    first = await house.peer("here")
    await first.subscribe(("t", qos))
    first.abort()
    for round_ in range(times(6, 3)):
        taking = asyncio.ensure_future(here.run(await house.peer("here", present=True)))
        running = asyncio.ensure_future(_run(publisher, house, chance))
        wanted = len(publisher.acknowledged) + chance.randrange(1, 50)
        await _heard(publisher, wanted, running)
        await asyncio.to_thread(own.kill if round_ % 3 else own.stop)
        await asyncio.to_thread(house.daemon.until, "store cannot be written")
        if round_ % 3 == 2:
            # Both are gone: the broker comes back to a database that recovers.
            house.kill()
            await asyncio.wait((running, taking))
            await asyncio.to_thread(own.start)
            await house.again()
            continue
        await asyncio.to_thread(own.start)
        await asyncio.to_thread(house.daemon.until, "store is written again")
        await running
        house.kill()
        await taking
        await house.again()
    await publisher.hold_against_retained(await house.peer("watcher", clean=True))
    await seen_through(house, publisher, here)


@pytest.mark.long
async def test_clients_are_held_while_the_database_is_away(house: House, own: postgresql.Server) -> None:
    """No acknowledgement meanwhile, QoS 0 goes on, and everything comes when it is back."""
    await house.away("s", ("t", 1))
    listener, publisher = await house.peer("l", clean=True), await house.peer("p", clean=True)
    await listener.subscribe(("zero", 0))
    await asyncio.to_thread(own.kill)
    await publisher.send(publish("t", b"1", qos=1, packet_id=1))
    await asyncio.to_thread(house.daemon.until, "store cannot be written")
    await publisher.send(publish("zero", b"0"))
    assert (await listener.message()).payload == b"0"
    assert await publisher.fence() == []
    await asyncio.to_thread(own.start)
    assert (await publisher.expect(wire.PUBACK)).code == 0
    await asyncio.to_thread(house.daemon.until, "store is written again")
    assert (await (await house.peer("s", present=True)).message()).payload == b"1"


@pytest.mark.long
async def test_a_broker_that_stood_still_is_replaced(house: House, tmp_path: Path) -> None:
    """As one that the system does not run for a while: another one takes its place. It acknowledges nothing more, and
    ends, so that a supervisor starts it anew."""
    await house.away("s", ("t", 1))
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t", b"1", qos=1)
    house.daemon.process.send_signal(signal.SIGSTOP)
    async with AsyncExitStack() as stack:
        other = House(tmp_path / "other", stack, house.kept)
        await other.start()
        second = await other.peer("p2", clean=True)
        await second.publish("t", b"2", qos=1)
        house.daemon.process.send_signal(signal.SIGCONT)
        await publisher.send(publish("t", b"lost", qos=1, packet_id=7))
        lines = await asyncio.to_thread(house.daemon.until, "the broker stops")
        assert "was taken over by" in lines[-1]["reason"]
        found = [(one.kind, one.code) for one in await publisher.closed()]
        assert found in ([(wire.DISCONNECT, 0x8B)], [(wire.PUBACK, 0x97), (wire.DISCONNECT, 0x8B)])
        assert await asyncio.to_thread(house.daemon.process.wait, PATIENCE) == 1
        subscriber = await other.peer("s", present=True)
        assert [(await subscriber.message()).payload for _ in range(2)] == [b"1", b"2"]
        assert await subscriber.fence() == []


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """And no password in it, nor in what `check-config` says."""
    if why := postgresql.missing():
        pytest.skip(why)
    url = "postgresql://canopy:very-secret@127.0.0.1:1/canopy"
    done = canopy("serve", "--listen", "mqtt://127.0.0.1:0", "--store", url)
    told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, len(told)) == (1, 1)
    assert "postgresql://127.0.0.1:1/canopy, schema canopy: it cannot be reached" in told[0]
    settings = tmp_path / "canopy.toml"
    settings.write_text(f'[store]\nurl = "{url}"\n')
    checked = canopy("check-config", str(settings))
    assert checked.returncode == 0
    for each in (done.stdout, done.stderr, checked.stdout, checked.stderr):
        assert "very-secret" not in each


async def test_a_broker_that_was_killed_is_back_at_once(house: House) -> None:
    """Its lease would last for an hour; on the same machine it is known to be dead."""
    house.environ["CANOPY_STORE__LEASE_TIMEOUT"] = "3600"
    for _ in range(2):
        async with asyncio.timeout(PATIENCE):
            await house.again()
        await house.peer("c", clean=True, present=False)
