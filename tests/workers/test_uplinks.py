"""Links to other brokers: one worker has them for the clients of all."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.core.codec import reason_codes
from tests.e2e import wire
from tests.workers.crew import Crew


def link(to: int, **more: Any) -> str:
    """A table of settings for a link to the broker at a port."""
    lines = [f"{name} = {value}" for name, value in {"name": '"up"', "url": f'"mqtt://127.0.0.1:{to}"', **more}.items()]
    return "\n".join(["[[upstream]]", *lines, ""])


class Linked:
    """A broker of one process above, and one of workers below."""

    def __init__(self, stack: AsyncExitStack, folder: Path, workers: int = 3) -> None:
        self.above = Crew(stack, 1)
        self.below = Crew(stack, workers)
        self.config = folder / "below.toml"

    async def start(self, *arguments: str, **terms: Any) -> None:
        await self.above.start()
        self.config.write_text(link(self.above.daemon.port, **terms))
        await self.below.start("--config", str(self.config), *arguments)
        await self.below.line("upstream connected")


@pytest.fixture
def linked(stack: AsyncExitStack, tmp_path: Path) -> Linked:
    return Linked(stack, tmp_path)


async def heard(peer: wire.Peer) -> list[bytes]:
    """What has come to a client by now."""
    return sorted(each.payload for each in await peer.fence() if each.kind == wire.PUBLISH)


async def test_what_clients_of_any_worker_publish_goes_up_once(linked: Linked) -> None:
    await linked.start(publish='["a/#"]')
    above = await linked.above.join("above", ("a/#", 2))
    for worker in range(3):
        peer = await linked.below.join(next(linked.below.names(worker)))
        for qos in range(3):
            await peer.publish(f"a/{worker}", b"%d %d" % (worker, qos), qos=qos)
        await peer.publish("b", b"stays", qos=1)
    found = [(await above.message()).payload for _ in range(9)]
    assert sorted(found) == [b"%d %d" % (worker, qos) for worker in range(3) for qos in range(3)]
    assert await heard(above) == []
    # One link, of one client.
    assert len(linked.below.told("upstream connected")) == 1


async def test_who_is_connected_at_any_worker_goes_up(linked: Linked) -> None:
    await linked.start("--set", "presence.topic=here", publish='["here/#"]')
    above = await linked.above.join("above", ("here/#", 1))
    names = [next(linked.below.names(worker)) for worker in range(3)]
    for name in names:
        await linked.below.join(name)
    assert {(await above.message()).topic for _ in names} == {f"here/{name}" for name in names}


async def test_what_comes_down_reaches_the_clients_of_all_workers_once(linked: Linked) -> None:
    await linked.start()
    peers = [await linked.below.join(next(linked.below.names(worker)), ("a/+", 1)) for worker in range(3)]
    above = await linked.above.join("above")
    # Until the link has asked for it, and is told of it.
    while await above.publish("a/x", b"early", qos=1) == reason_codes.NO_MATCHING_SUBSCRIBERS:
        pass
    await above.publish("a/x", b"down", qos=1)
    for peer in peers:
        assert [(await peer.message()).payload for _ in range(2)] == [b"early", b"down"]
        assert await heard(peer) == []


async def test_brokers_of_workers_that_are_linked_with_each_other_pass_nothing_on_twice(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    crews, configs = [Crew(stack, 2), Crew(stack, 2)], [tmp_path / "0.toml", tmp_path / "1.toml"]
    for crew, config in zip(crews, configs, strict=True):
        config.write_text("")
        await crew.start("--config", str(config))
    # A reload makes the links; each sends all up, and asks for nothing.
    for number, (crew, config) in enumerate(zip(crews, configs, strict=True)):
        other = crews[1 - number].daemon.port
        config.write_text(link(other, publish='["a/#"]', subscribe="[]"))
        crew.daemon.process.send_signal(signal.SIGHUP)
        await crew.line("upstream connected")
    ends = [[await crew.join(next(crew.names(worker)), ("a/#", 1)) for worker in range(2)] for crew in crews]
    for number, peers in enumerate(ends):
        for worker, peer in enumerate(peers):
            await peer.publish("a/x", b"%d %d" % (number, worker), qos=1)
    expected = [b"%d %d" % (number, worker) for number in range(2) for worker in range(2)]
    for peer in (peer for peers in ends for peer in peers):
        assert sorted([(await peer.message()).payload for _ in expected]) == expected
    # What was to go round once more would be before these.
    for number, peers in enumerate(ends):
        await peers[1].publish("a/end", b"end %d" % number, qos=1)
    for peer in (peer for peers in ends for peer in peers):
        assert sorted([(await peer.message()).payload for _ in range(2)]) == [b"end 0", b"end 1"]
        assert await heard(peer) == []


@pytest.mark.parametrize("stored", [True, False])
async def test_what_waits_for_an_upstream_survives_the_kill_of_the_worker_that_has_the_link(
    linked: Linked, tmp_path: Path, stored: bool
) -> None:
    """Without a store, what other workers have for it."""
    store = ("--set", f"store.path={tmp_path / 'store'}") if stored else ()
    await linked.start(*store, publish='["a/#"]', clean_start="false")
    above = await linked.above.stay("above", ("a/#", 2))
    sender = await linked.below.join(next(linked.below.names(1)))
    expected = [b"1", b"2", b"3"]
    if stored:
        expected.append(b"0")
        await sender.publish("a/0", b"0", qos=2)
    await linked.below.kill(0)
    for number in range(1, 4):
        await sender.publish(f"a/{number}", b"%d" % number, qos=1 + number % 2)
    await linked.below.line("worker serves again", worker="w0")
    assert sorted([(await above.message()).payload for _ in expected]) == sorted(expected)
    assert await heard(above) == []


async def test_what_waits_for_an_upstream_goes_along_to_another_number_of_workers(
    stack: AsyncExitStack, linked: Linked, tmp_path: Path
) -> None:
    store = ("--set", f"store.path={tmp_path / 'store'}", "--set", "federation.broker_id=below")
    await linked.start(*store, publish='["a/#"]', clean_start="false")
    port = linked.above.daemon.port
    await linked.above.gone()
    sent: list[bytes] = []
    for workers in (3, 2, 1, 3):
        if workers != linked.below.workers or sent:
            linked.below = await Crew.started(stack, workers, "--config", str(linked.config), *store)
        for name in ("x", "y", "z"):
            peer = await linked.below.join(name)
            sent.append(f"{workers} {name}".encode())
            await peer.publish("a", sent[-1], qos=1)
            await peer.disconnect()
        assert await linked.below.stop() == 0
    above = linked.above = Crew(stack, 1)
    await above.start("--port", str(port))
    watcher = await above.join("above", ("a", 1))
    linked.below = await Crew.started(stack, 2, "--config", str(linked.config), *store)
    assert sorted([(await watcher.message()).payload for _ in sent]) == sorted(sent)
    assert await heard(watcher) == []
