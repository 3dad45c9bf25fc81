"""A broker that starts on a store that holds much."""

from __future__ import annotations

import gc
from collections.abc import Callable

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.persistence.journal import MessageRecord, Saved
from canopy_mqtt.settings import Settings
from canopy_mqtt.store import MemoryStore

MANY = 50_000


class Much(MemoryStore):
    """Has very many retained messages."""

    async def load(self) -> Saved:
        saved = await super().load()
        saved.retained += [MessageRecord(b"t/%d" % at, b"1", 1, True, b"", None, "") for at in range(MANY)]
        return saved


async def test_no_garbage_is_looked_for_among_what_is_restored() -> None:
    """It would take most of the time of a large start, and find none."""
    objects: list[int] = []

    def found(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            objects.append(len(broker.router.retained))

    broker = Broker(Settings(listen=("mqtt://127.0.0.1:0",)), store=Much())
    callback: Callable[[str, dict[str, int]], None] = found
    gc.callbacks.append(callback)
    try:
        await broker.start()
    finally:
        gc.callbacks.remove(callback)
    assert gc.isenabled()
    assert [number for number in objects if 0 < number < MANY] == []
    assert len(broker.router.retained) >= MANY
    await broker.stop()
