"""The stores of workers beside the first one's: they are found, and go only when they are empty."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.app import Broker, StartupError
from broker.core.principal import Principal
from broker.settings import Settings
from broker.store import MemoryStore, Store, StoreError
from broker.store.sqlite import SqliteStore
from tests.store.sqlite.place import delivery
from tests.support import postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """Those of a broker's first worker and of its third one, w2."""
    if request.param == "sqlite":
        yield [SqliteStore(tmp_path), SqliteStore(tmp_path / "w2")]
        return
    if postgresql.binaries() is None:
        pytest.skip("no PostgreSQL here")
    from tests.store.postgresql.place import make

    name = postgresql.new_name()
    yield [make(name), make(f"{name}_w2")]


async def filled(store: Store, *client_ids: str) -> None:
    """Make a store with sessions, as a broker leaves it."""
    await store.open(asyncio.get_running_loop().time)
    for client_id in client_ids:
        store.journal.session_kept(client_id, Principal("u"), 300, 0.0)
        store.journal.queued(client_id, delivery(b"1"))
    await store.close()


async def test_the_store_of_a_worker_is_found_beside_the_first_ones(stores: list[Store]) -> None:
    first, third = stores
    assert await first.parts() == []
    await filled(first, "c")
    assert await first.parts() == []
    await filled(third)
    assert [part.worker for part in await first.parts()] == [2]
    assert await third.parts() == []


async def test_one_with_a_session_stays(stores: list[Store]) -> None:
    first, third = stores
    await filled(first)
    await filled(third, "c", "$node/from/w0")
    with pytest.raises(StoreError, match="is not removed: 1 sessions are in it"):
        await third.remove()
    await third.open(asyncio.get_running_loop().time)
    assert {each.client_id for each in (await third.load()).sessions} == {"c", "$node/from/w0"}
    await third.close()
    assert len(await first.parts()) == 1


async def test_one_with_messages_for_another_worker_stays(stores: list[Store]) -> None:
    first, third = stores
    await filled(first)
    await filled(third, "$node/to/w0")
    with pytest.raises(StoreError, match="is not removed: 1 messages for other workers are in it"):
        await third.remove()
    assert len(await first.parts()) == 1


async def test_one_without_goes_and_can_be_made_anew(stores: list[Store]) -> None:
    """What is kept of other nodes is nobody's."""
    first, third = stores
    await filled(first, "c")
    await filled(third, "$node/from/w0")
    await third.remove()
    assert await first.parts() == []
    await filled(third)
    assert len(await first.parts()) == 1


async def test_a_broker_on_its_own_does_not_start_beside_sessions_of_workers(tmp_path: Path) -> None:
    await filled(SqliteStore(tmp_path / "w1"), "c")
    settings = Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "store": {"path": str(tmp_path)}})
    with pytest.raises(StartupError, match=r"sessions of workers are kept in .*/w1: start `canopy serve` once"):
        await Broker(settings).start()


async def test_other_folders_beside_a_store_are_no_stores(tmp_path: Path) -> None:
    for name in ("w1", "w", "w0", "w100", "backup"):
        (tmp_path / name).mkdir()
    for name in ("w0", "w100", "backup"):
        (tmp_path / name / "canopy.db").touch()
    assert await SqliteStore(tmp_path).parts() == []


async def test_a_store_in_memory_has_none_and_is_not_removed() -> None:
    assert await MemoryStore().parts() == []
    with pytest.raises(StoreError):
        await MemoryStore().remove()


async def test_the_next_process_of_the_same_owner_does_not_wait_for_the_lease(stores: list[Store]) -> None:
    """Its lease is an hour, and it was killed."""
    from broker.store.postgresql import PostgresStore
    from tests.store.postgresql.place import kill, make

    if not isinstance(stores[0], PostgresStore):
        return
    name = postgresql.new_name()
    first, second, other = (make(name, lease_timeout=3_600.0) for _ in range(3))
    for store in (first, second):
        store.owned_by("w1 of x")
    other.owned_by("w1 of y")
    await first.open(asyncio.get_running_loop().time)
    await kill(first)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await other.open(asyncio.get_running_loop().time)
    async with asyncio.timeout(60):
        await second.open(asyncio.get_running_loop().time)
    await second.close()
