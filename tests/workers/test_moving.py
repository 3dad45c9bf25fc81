"""Another number of workers at a restart: each session is found again, with all that waits in it."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import Division, division, note, part
from canopy_mqtt.store.tools.exporting import rows_of
from canopy_mqtt.store.tools.importing import filling
from canopy_mqtt.store.tools.read_only import open_read_only
from canopy_mqtt.workers import moving
from canopy_mqtt.workers.placing import worker_of
from tests.workers.crew import Crew

NAMES = [f"client-{number}" for number in range(12)]
ONE_QOS = NAMES[::2]
"""Those whose subscriptions are of QoS 1, so that all messages are."""


async def waiting(crew: Crew, expected: list[bytes]) -> None:
    """Each client finds its session and these messages, each once, and the retained one. Order holds for one QoS."""
    for name in NAMES:
        peer = await crew.stay(name, present=True)
        found = [(await peer.message()).payload for _ in expected]
        assert (found if name in ONE_QOS else sorted(found)) == expected
        assert await peer.fence() == []
        await peer.disconnect()
    looker = await crew.join("looker", ("kept", 0))
    assert (await looker.message()).payload == expected[-1]
    await looker.disconnect()


async def test_one_three_two_one(stack: AsyncExitStack, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    crew = Crew(stack, 1)
    await crew.start("--store", store)
    for number, name in enumerate(NAMES):
        await (await crew.stay(name, ("q/#", 1 + number % 2))).disconnect()
    for step, workers in enumerate((3, 2, 1)):
        sender = await crew.join("sender")
        payloads = [b"%d-%d" % (step, number) for number in range(4)]
        for number, payload in enumerate(payloads):
            await sender.publish("q/1", payload, qos=1 + number % 2)
            await sender.publish("kept", payload, qos=1, retain=True)
        if step == 1:
            # What waits for other workers is passed on at the next start.
            crew.daemon.process.kill()
            await crew.gone()
        else:
            assert await crew.stop() == 0
        crew = Crew(stack, workers)
        await crew.start("--store", store)
        assert {line["after"] for line in crew.told("sessions are moved")} == {workers}
        await waiting(crew, payloads)
    assert await crew.stop() == 0
    assert sorted(each.name for each in (tmp_path / "store").iterdir()) == ["canopy.db", "canopy.lock"]


class Killed(BaseException):
    """As a process that is killed: nothing is put in order."""


def fill(folder: Path, sessions: list[str]) -> None:
    """A store with these sessions, each with a subscription and a message of its own, and one that all share."""
    principal = '{"user_name": "u"}'
    with filling(folder) as importer:
        for name in sessions:
            session = {"client_id": name, "principal": principal, "expiry_interval": 3_600, "disconnected_at": 1.0}
            importer.row("session", session)
        for name in sessions:
            row = {"client_id": name, "filter": "a", "qos": 1, "no_local": 0, "retain_as_published": 0}
            importer.row("subscription", row | {"retain_handling": 0, "identifier": 0, "streaming": 0})
        if sessions:
            importer.row("message", {"id": 1, "topic": "all", "payload": b"x", "qos": 1, "retain": 0})
        for name in sessions:
            row = {"client_id": name, "state": 0, "packet_id": 0, "attempts": 0, "qos": 1, "retain": 0}
            importer.row("delivery", row | {"message": 1})
            own = {"topic": f"of/{name}", "payload": name.encode(), "publish_qos": 1, "publish_retain": 0}
            importer.row("delivery", row | own)
        importer.row("retained", {"topic": "r", "payload": b"kept", "qos": 0})


def content(folder: Path) -> dict[str, Counter[Any]]:
    """What all stores of a folder have, by their clients."""
    workers = division(folder).workers
    found: dict[str, Counter[Any]] = {}
    for worker in range(workers):
        with open_read_only(part(folder, worker) if workers > 1 else folder) as store:
            clients = {row["id"]: row["client_id"] for row in rows_of(store, "session")}
            messages = {row["id"]: row["topic"] for row in rows_of(store, "message")}
            for name in clients.values():
                assert workers == 1 or worker_of(name.encode(), workers) == worker
                assert name not in found
                found[name] = Counter()
            for row in rows_of(store, "delivery"):
                found[clients[row["session"]]][row["topic"] or messages[row["message"]]] += 1
            for row in rows_of(store, "subscription"):
                found[clients[row["session"]]][row["filter"], row["qos"]] += 1
            assert [(row["topic"], row["payload"]) for row in rows_of(store, "retained")] == [("r", b"kept")]
    return found


def made(folder: Path, workers: int) -> None:
    """A folder with the stores of so many workers."""
    folder.mkdir()
    if workers == 1:
        fill(folder, NAMES)
        return
    for worker in range(workers):
        fill(part(folder, worker), [name for name in NAMES if worker_of(name.encode(), workers) == worker])
    note(folder, Division(workers))


EXPECTED = {name: Counter({"all": 1, f"of/{name}": 1, ("a", 1): 1}) for name in NAMES}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (4, 2)])
def test_whatever_interrupts_it_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    steps = 0
    complete = False
    while not complete:
        folder = tmp_path / f"store-{steps}"
        made(folder, before)
        assert content(folder) == EXPECTED
        left = steps

        def killed(left: list[int] = [left]) -> None:  # noqa: B006 (its own counter)
            if not left[0]:
                raise Killed
            left[0] -= 1

        with monkeypatch.context() as patch:
            for owner, name in ((Path, "rename"), (Path, "unlink"), (shutil, "rmtree"), (moving, "filling")):
                patch.setattr(owner, name, _counted(getattr(owner, name), killed))
            try:
                moving.rebuild(folder, before, after)
                complete = True
            except Killed:
                pass
        there = moving._finish(folder)
        if there != after:
            assert there == before
            assert content(folder) == EXPECTED
            moving.rebuild(folder, before, after)
        assert division(folder) == Division(after)
        assert content(folder) == EXPECTED
        assert not (folder / "next").exists()
        steps += 1
    assert steps > 5


def _counted(function: Any, count: Any) -> Any:
    def counted(*arguments: Any, **more: Any) -> Any:
        count()
        return function(*arguments, **more)

    return counted


def test_shared_subscriptions_stay_with_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with filling(folder) as importer:
        importer.row("session", {"client_id": "a", "principal": '{"user_name": "u"}', "expiry_interval": 9})
        row = {"client_id": "a", "filter": "$share/g/a", "qos": 1, "no_local": 0, "retain_as_published": 0}
        importer.row("subscription", row | {"retain_handling": 0, "identifier": 0, "streaming": 0})
    with pytest.raises(StoreError, match="has shared subscriptions, whose groups are moved to one process only"):
        moving.rebuild(folder, 1, 2)
    assert division(folder) == Division(1)


def test_messages_for_another_worker_are_not_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    fill(part(folder, 0), ["$node/w1"])
    fill(part(folder, 1), [])
    note(folder, Division(2))
    with pytest.raises(StoreError, match="has messages for another worker"):
        moving.rebuild(folder, 2, 3)
    assert division(folder) == Division(2)
