"""The record of a broker with workers: a folder for each below one directory, and one record."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from canopy_mqtt.command.record_verify import check
from canopy_mqtt.record.reader import events
from canopy_mqtt.record.statistics import statistics
from canopy_mqtt.workers.placing import worker_of
from tests.workers.crew import Crew


def recording(root: Path) -> tuple[str, ...]:
    return ("--set", f"recorder.directory={root}", "--set", "recorder.deliveries=true")


async def recorded(root: Path) -> list[dict[str, Any]]:
    return await asyncio.to_thread(lambda: list(events(root)))


async def test_a_message_for_all_workers_is_one_publish_and_a_delivery_for_each(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    crew = await Crew.started(stack, 2, *recording(tmp_path))
    subscribers = [await crew.join(next(crew.names(worker)), ("a", 1)) for worker in range(2)]
    sender = await crew.join(next(crew.names(0, "sender")))
    for qos in range(3):
        await sender.publish("a", b"%d" % qos, qos=qos)
    for peer in subscribers:
        for _ in range(3):
            await peer.message()
    assert await crew.stop() == 0
    kinds = Counter(event["kind"] for event in await recorded(tmp_path))
    assert {kind: kinds[kind] for kind in ("publish", "forward", "arrive", "deliver")} == {
        "publish": 3, "forward": 3, "arrive": 3, "deliver": 6,
    }  # fmt: skip
    found = await asyncio.to_thread(check, tmp_path)
    assert [*found] == ["w0", "w1"]
    assert all(not part.faults and not part.gaps for part in found.values())
    assert (await asyncio.to_thread(statistics, tmp_path)).messages == 3


async def test_a_message_that_the_home_of_a_group_passes_on_is_delivered_at_its_member(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    crew = await Crew.started(stack, 2, *recording(tmp_path))
    home = next(name for name in (f"$share/g{number}/t" for number in count()) if worker_of(name.encode(), 2) == 0)
    member_id, sender_id = next(crew.names(1)), next(crew.names(0, "sender"))
    member, sender = await crew.join(member_id, (home, 1)), await crew.join(sender_id)
    await sender.publish("t", b"x", qos=1)
    await member.message()
    assert await crew.stop() == 0
    told = [
        (event["kind"], event["client_id"], event.get("topic_filter"))
        for event in await recorded(tmp_path)
        if event["kind"] in ("publish", "forward", "arrive", "deliver")
    ]
    assert told == [
        ("publish", sender_id, None),
        ("forward", "$node/w1", home),
        ("arrive", "$node/w0", home),
        ("deliver", member_id, home),
    ]


async def test_the_gap_of_a_killed_worker_is_its_own(stack: AsyncExitStack, tmp_path: Path) -> None:
    crew = Crew(stack, 2)
    # Drafts would save what it had.
    await crew.start(*recording(tmp_path), "--set", "recorder.draft_seconds=0")
    sender = await crew.join(next(crew.names(1)))
    await sender.publish("a", b"x", qos=1)
    await crew.restarted(1)
    assert await crew.stop() == 0
    found = await asyncio.to_thread(check, tmp_path)
    assert [part.faults for part in found.values()] == [[], []]
    assert [[gap[3] for gap in part.gaps] for part in found.values()] == [[], ["crash"]]


async def test_another_number_of_workers_goes_on_with_the_record(stack: AsyncExitStack, tmp_path: Path) -> None:
    for number, workers in enumerate((1, 3, 2, 1)):
        crew = await Crew.started(stack, workers, *recording(tmp_path))
        sender = await crew.join("c")
        await sender.publish("a", b"%d" % number, qos=1)
        # Killed: what is left of it is put in order by the next one, whatever workers that has.
        await crew.line("recording")
        crew.daemon.process.kill()
        await crew.gone()
    crew = await Crew.started(stack, 2, *recording(tmp_path))
    assert await crew.stop() == 0
    found = await asyncio.to_thread(check, tmp_path)
    assert all(part.faults == [] for part in found.values()), found
