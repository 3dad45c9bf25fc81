"""Workers with a recorder: one record, in which each message is once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from broker.record.reading import Found, verify
from tests.e2e.wire import Peer
from tests.record.scenes import stored
from tests.support.daemon import Daemon
from tests.workers.live.test_joined import publisher
from tests.workers.live.test_serving import LONG, failing, pids

pytestmark = pytest.mark.long

CLIENTS: Final = 8


def serving(root: Path, *arguments: str) -> Daemon:
    return Daemon("--set", f"recorder.directory={root}", *arguments, patience=LONG)


async def checked(root: Path) -> Found:
    return await asyncio.to_thread(verify, root)


async def published(root: Path) -> dict[str, list[bytes]]:
    """The payloads of each topic, in the order of the record."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for row in await asyncio.to_thread(stored, root):
        if row["kind"] == "publish":
            found[row["topic"]].append(row["payload"])
    return found


async def publish(daemon: Daemon, numbers: range) -> dict[str, list[bytes]]:
    """Clients at all workers publish, each on its own topic, which clients of all workers want."""
    wanted = [await Peer.join(daemon.port, "", ("#", 1)) for _ in range(CLIENTS)]
    sources = [await publisher(daemon) for _ in range(CLIENTS)]
    for number in numbers:
        for at, source in enumerate(sources):
            await source.publish(f"t/{at}", b"%d" % number, qos=number % 3)
    for peer in (*sources, *wanted):
        await peer.fence()
        await peer.disconnect()
    return {f"t/{at}": [b"%d" % number for number in numbers] for at in range(CLIENTS)}


def end(daemon: Daemon) -> None:
    code, _ = daemon.end()
    assert code == 0


async def test_each_message_is_recorded_once_through_restarts_and_changes_of_the_number(tmp_path: Path) -> None:
    """By its publisher in its order; also where workers are replaced, and with another number of them."""
    expected: dict[str, list[bytes]] = defaultdict(list)

    def add(more: dict[str, list[bytes]]) -> None:
        for topic, payloads in more.items():
            expected[topic] += payloads

    daemon = await asyncio.to_thread(serving, tmp_path, "--workers", "3")
    with daemon:
        add(await publish(daemon, range(9)))
        daemon.process.send_signal(signal.SIGUSR2)
        await asyncio.to_thread(daemon.until, "rolling restart done")
        add(await publish(daemon, range(9, 18)))
        await asyncio.to_thread(end, daemon)
    for workers in ("2", "1"):
        daemon = await asyncio.to_thread(serving, tmp_path, "--workers", workers)
        with daemon:
            add(await publish(daemon, range(18, 24)))
            await asyncio.to_thread(end, daemon)
    assert await published(tmp_path) == expected
    found = await checked(tmp_path)
    assert (found.faults, found.gaps, found.unfinished) == ([], [], None)


async def test_a_killed_worker_is_a_gap_and_what_others_recorded_is_there(tmp_path: Path) -> None:
    daemon = await asyncio.to_thread(serving, tmp_path, "--workers", "2", "--set", "recorder.draft_seconds=0.1")
    with daemon:
        before = await publish(daemon, range(6))
        os.kill(pids(daemon)["w0"], signal.SIGKILL)
        await asyncio.to_thread(daemon.until, "worker serves again")
        after = await publish(daemon, range(6, 12))
        await asyncio.to_thread(end, daemon)
    found = await checked(tmp_path)
    assert found.faults == []
    ((_, _, missing, why),) = found.gaps
    assert why == "crash+state"
    recorded = await published(tmp_path)
    lost = 0
    for topic, payloads in before.items():
        assert recorded[topic][-len(after[topic]) :] == after[topic]
        lost += len(payloads) - len(recorded[topic][: -len(after[topic])])
    assert lost <= missing


async def test_when_all_are_killed_the_next_start_names_what_is_missing(tmp_path: Path) -> None:
    """What was acknowledged is in the record, or its number is in the gap."""
    daemon = await asyncio.to_thread(serving, tmp_path, "--workers", "2")
    with daemon:
        sent = await publish(daemon, range(6))
        source = await publisher(daemon)
        await source.publish("last", b"x", qos=1)
        source.abort()
        for pid in (daemon.process.pid, *pids(daemon).values()):
            os.kill(pid, signal.SIGKILL)
    daemon = await asyncio.to_thread(serving, tmp_path, "--workers", "1")
    with daemon:
        await asyncio.to_thread(end, daemon)
    found = await checked(tmp_path)
    assert found.faults == []
    recorded = await published(tmp_path)
    missing = sum(gap[2] for gap in found.gaps)
    assert {gap[3] for gap in found.gaps} <= {"crash"}
    wanted = sum(map(len, sent.values())) + 1
    assert wanted - missing <= sum(map(len, recorded.values())) <= wanted


def test_workers_that_must_record_do_not_start_without_a_record(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    sets = ("--set", f"recorder.directory={taken}", "--set", "recorder.required=true")
    code, lines = failing("--port", "0", *sets)
    assert code == 1
    assert lines[-1].startswith(f"canopy: recorder.required: {taken}: ")


def test_a_record_of_workers_is_a_delta_table_with_each_event_once(tmp_path: Path) -> None:
    deltalake: Any = pytest.importorskip("deltalake")

    async def some(daemon: Daemon) -> None:
        await publish(daemon, range(3))

    sets = ("--set", "recorder.table=delta", "--set", "recorder.segment_seconds=0.2")
    with serving(tmp_path, "--workers", "2", *sets) as daemon:
        asyncio.run(some(daemon))
        end(daemon)
    rows = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["seq"]).column("seq").to_pylist()
    assert sorted(rows) == [row["seq"] for row in stored(tmp_path)]
    assert verify(tmp_path).faults == []
