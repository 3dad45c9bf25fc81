"""Machines with workers are one broker (`mesh.name` with `workers.count`): real processes, clients at every worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.store.test_live import GONE
from tests.e2e.wire import DISCONNECT, PUBLISH, Peer
from tests.support import postgresql
from tests.support.certificates import Authority
from tests.support.daemon import COMMAND, Daemon, environment
from tests.workers.live.machines import KEPT, NODES, Machines
from tests.workers.live.test_serving import LONG, pids

ALL: Final = [node for nodes in NODES.values() for node in nodes]

WILLS: Final = "$SYS/broker/mesh/wills/kept"
"""How many of other nodes a node has been told of."""

LAST: Final = b"last"

DEAD_SOON: Final = ("--set", "mesh.dead_after=1", "--set", "workers.drain_timeout=1")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running() -> Iterator[Machines]:
    with Machines() as machines:
        yield machines


@pytest.fixture
async def machines(running: Machines) -> AsyncIterator[Machines]:
    yield running
    running.let_go()


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Machines]:
    """Their workers have stores."""
    with await asyncio.to_thread(lambda: Machines(*DEAD_SOON, store=in_files(tmp_path))) as running:
        yield running


def in_files(folder: Path) -> Callable[[str], Sequence[str]]:
    """A store for each machine."""
    return lambda name: ("--store", str(folder / name))


def ctl(daemon: Daemon, *arguments: str) -> list[list[str]]:
    """The words of the lines that `canopy ctl` prints."""
    command = [*COMMAND, "ctl", "--url", daemon.started["http"][0], *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG, env=environment())
    assert ended.returncode == 0, ended.stderr
    return [line.split() for line in ended.stdout.splitlines()]


async def retained(machines: Machines, node: str, topic: str) -> list[bytes]:
    """What a worker has of a topic."""
    reader = await machines.join(node, "", (topic, 0))
    found = [each.payload for each in await reader.fence()]
    await reader.disconnect()
    return found


async def until_retained(machines: Machines, node: str, topic: str, payloads: list[bytes]) -> None:
    """The others hear of it after its PUBACK."""
    async with asyncio.timeout(wire.TIMEOUT):
        while await retained(machines, node, topic) != payloads:
            pass


# -- nothing ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_at_any_worker_comes_once_to_the_clients_of_each(machines: Machines, qos: int) -> None:
    peers = {node: await machines.join(node, f"{node}-{qos}", (f"t/{qos}", qos)) for node in ALL}
    for number in range(3):
        for node, source in peers.items():
            await source.publish(f"t/{qos}", f"{node} {number}".encode(), qos=qos)
    for peer in peers.values():
        found = [(await peer.message()).payload.decode().split() for _ in range(3 * len(ALL))]
        # In the order of each publisher [MQTT-4.6.0-6].
        assert {node: [number for by, number in found if by == node] for node in ALL} == {
            node: list("012") for node in ALL
        }
        assert await peer.fence() == []


def test_each_machine_tells_of_all_nodes(running: Machines) -> None:
    for daemon in running.running.values():
        lines = ctl(daemon, "mesh")
        assert [(line[0], line[1]) for line in lines[-4:]] == [(node, "connected") for node in ALL]


async def test_a_retained_message_is_every_workers(machines: Machines) -> None:
    source = await machines.join("a-w1")
    await source.publish("kept", b"x", qos=1, retain=True)
    for node in ALL:
        await until_retained(machines, node, "kept", [b"x"])
    other = await machines.join("b")
    await other.publish("kept", b"", qos=1, retain=True)
    for node in ALL:
        await until_retained(machines, node, "kept", [])


async def test_a_session_is_found_at_whichever_worker_its_client_comes_to(machines: Machines) -> None:
    """[MQTT-3.1.2-5] With what came meanwhile; the earlier connection ends with 0x8E [MQTT-3.1.4-3]."""
    source = await machines.join("b-w1")
    here = await machines.join("a", "wanders", ("w", 1), props=KEPT)
    for number, node in enumerate(("b", "a-w1", "b-w1", "a")):
        there = await machines.join(node, "wanders", clean=False, props=KEPT)
        assert there.connack.session_present
        assert (await here.expect(DISCONNECT)).code == 0x8E
        here.abort()
        await there.disconnect(props=KEPT)
        await source.publish("w", b"%d" % number, qos=1)
        here = await machines.join(ALL[-1 - number], "wanders", clean=False, props=KEPT)
        assert (await here.message()).payload == b"%d" % number


async def test_a_share_group_has_members_at_all_workers(machines: Machines) -> None:
    """Each message goes to one of them, and each machine has its part."""
    members = {node: await machines.join(node, f"member-{node}", ("$share/g/s", 1)) for node in ALL}
    sources = [await machines.join(node) for node in ("a", "b-w1")]
    for number in range(40):
        for at, source in enumerate(sources):
            await source.publish("s", b"%d/%d" % (at, number), qos=1)
    found = {node: [each.payload for each in await member.fence()] for node, member in members.items()}
    everything = sorted(payload for each in found.values() for payload in each)
    assert everything == sorted(b"%d/%d" % (at, number) for at in range(2) for number in range(40))
    for nodes in NODES.values():
        assert any(found[node] for node in nodes)


# -- something ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["the supervisor is killed", "the machine is gone"])
async def test_the_will_of_a_client_whose_machine_ends(how: str) -> None:
    """[MQTT-3.1.2-8] The workers end in order without a supervisor; the will of a machine that is gone another one
    publishes, when it is dead."""
    with await asyncio.to_thread(lambda: Machines(*DEAD_SOON)) as machines:
        watchers = [await machines.join(node, "", ("wills/#", 1)) for node in NODES["b"]]
        clients = [await machines.anywhere("a", will=wire.Will(f"wills/{at}")) for at in range(4)]
        for watcher in watchers:
            await watcher.subscribe(WILLS)
            while (await watcher.message()).payload != b"4":
                pass
            await watcher.unsubscribe(WILLS)
        if how == "the machine is gone":
            await machines.kill("a")
        else:
            machines.running["a"].process.send_signal(signal.SIGKILL)
        for watcher in watchers:
            found = {(await watcher.message()).topic for _ in clients}
            assert found == {f"wills/{at}" for at in range(4)}
            assert await watcher.fence() == []


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "with stores"])
async def test_a_worker_that_was_killed_is_the_same_node_when_it_is_back(kept: bool, tmp_path: Path) -> None:
    with await asyncio.to_thread(
        lambda: Machines(*DEAD_SOON, store=in_files(tmp_path) if kept else lambda _: ())
    ) as machines:
        watchers = {node: await machines.join(node, f"watches-{node}", ("k", 1)) for node in ("a", "b", "b-w1")}
        away = await machines.join("a-w1", "away", ("k", 1), props=KEPT)
        await away.disconnect(props=KEPT)
        os.kill(pids(machines.running["a"])["w1"], signal.SIGKILL)
        await watchers["b"].publish("k", b"meanwhile", qos=1)
        await asyncio.to_thread(machines.running["a"].until, "worker serves again")
        again = await machines.join("a-w1")
        await again.publish("k", b"after", qos=1)
        for watcher in watchers.values():
            assert [(await watcher.message()).payload for _ in range(2)] == [b"meanwhile", b"after"]
            assert await watcher.fence() == []
        back = await machines.anywhere("b", "away", ("k", 1), clean=False, props=KEPT)
        assert back.connack.session_present == kept
        if kept:
            assert [(await back.message()).payload for _ in range(2)] == [b"meanwhile", b"after"]
        await again.publish("k", b"last", qos=1)
        assert (await back.message()).payload == b"last"


@pytest.mark.parametrize("source", NODES)
async def test_nothing_is_lost_in_a_rolling_restart_of_one_machine(stored: Machines, source: str) -> None:
    """With a publisher at this machine and a subscriber at the other one; who is told to go comes again at once."""
    (other,) = NODES.keys() - {source}
    ends = await stored.anywhere(other, "r", ("t", 1), props=KEPT)
    await ends.disconnect(props=KEPT)
    restarting = asyncio.ensure_future(asyncio.to_thread(restart, stored.running["a"]))
    receiving = asyncio.ensure_future(receive(stored, other))
    published = 0
    peer = await stored.anywhere(source)
    while not (restarting.done() and published > 200):
        try:
            await peer.publish("t", b"%d" % published, qos=1)
            published += 1
        except GONE:
            peer = await stored.anywhere(source)
    await peer.publish("t", LAST, qos=1)
    await restarting
    # What was not acknowledged may have come twice; each is there, in order [MQTT-4.6.0-6].
    assert list(dict.fromkeys(await receiving)) == [*(b"%d" % number for number in range(published)), LAST]


async def receive(machines: Machines, name: str) -> list[bytes]:
    """What comes to the session `r`, whose client connects again whenever it is told to go."""
    found: list[bytes] = []
    while LAST not in found:
        peer = await machines.anywhere(name, "r", clean=False, props=KEPT)
        assert peer.connack.session_present
        with suppress(*GONE):
            while LAST not in found:
                packet = await peer.recv()
                if packet.kind == PUBLISH:
                    assert packet.packet_id is not None
                    found.append(packet.payload)
                    await peer.send(wire.ack(wire.PUBACK, packet.packet_id))
    return found


def restart(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGUSR2)
    daemon.until("rolling restart done")


async def test_the_sessions_of_a_machine_that_is_drained_go_to_the_other(stored: Machines) -> None:
    for at in range(8):
        peer = await stored.anywhere("a", f"c{at}", ("d", 1), props=KEPT)
        await peer.disconnect(props=KEPT)
    source = await stored.join("b")
    await source.publish("d", b"waits", qos=1)
    await asyncio.to_thread(ctl, stored.running["a"], "drain")
    for _ in NODES["a"]:
        await asyncio.to_thread(stored.running["a"].until, "drained")
    await stored.stop("a")
    for at in range(8):
        back = await stored.anywhere("b", f"c{at}", clean=False, props=KEPT)
        assert back.connack.session_present
        assert (await back.message()).payload == b"waits"


async def test_sessions_outlive_each_number_of_workers_of_a_machine(stored: Machines) -> None:
    """With what the other machine has for them: the first worker is the node that there is without workers."""
    clients = [f"c{at}" for at in range(8)]
    source = await stored.join("b-w1")
    for round_, workers in enumerate((2, 1, 1, 2)):
        if round_ > 0:
            await stored.stop("a")
            await source.publish("n", b"%d" % round_, qos=1)
            await stored.start("a", workers)
        for client_id in clients:
            peer = await stored.anywhere("a", client_id, clean=False, props=KEPT)
            if round_ == 0:
                await peer.subscribe(("n", 1))
            else:
                assert peer.connack.session_present
                assert (await peer.message()).payload == b"%d" % round_
            await peer.disconnect(props=KEPT)
        if round_ == 1:
            await asyncio.to_thread(stored.running["a"].until, "store emptied and removed")


async def test_the_sessions_of_a_machine_that_is_dead_are_taken_over() -> None:
    """Those of all its workers, each of which has a schema of its own."""
    url, mesh = postgresql.shared().url, postgresql.new_name()
    schemas = {name: postgresql.new_name() for name in NODES}
    sets = ("mesh.adopt_sessions=true", "store.lease_timeout=2", f"mesh.name={mesh}")
    flags = [each for one in sets for each in ("--set", one)]

    async def sessions(worker: str) -> int:
        statement = f"SELECT count(*) FROM {schemas['a']}{worker}.session WHERE NOT client_id LIKE '$node/%'"
        ((number,),) = await postgresql.ask(url, statement)
        assert isinstance(number, int)
        return number

    def store(name: str) -> tuple[str, ...]:
        return ("--store", url, "--set", f"store.name={schemas[name]}")

    with await asyncio.to_thread(lambda: Machines(*DEAD_SOON, *flags, store=store)) as machines:
        nodes = ["a", "a-w1"] * 4
        for at, node in enumerate(nodes):
            peer = await machines.join(node, f"c{at}", ("d", 1), props=KEPT)
            await peer.disconnect(props=KEPT)
        source = await machines.anywhere("b")
        await source.publish("d", b"waits", qos=1)
        assert [await sessions(worker) for worker in ("", "_w1")] == [4, 4]
        await machines.kill("a")
        async with asyncio.timeout(LONG):
            while [await sessions(worker) for worker in ("", "_w1")] != [0, 0]:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.05)
        await machines.start("a")
        for at in range(len(nodes)):
            back = await machines.anywhere("ab"[at % 2], f"c{at}", clean=False, props=KEPT)
            assert back.connack.session_present
            assert (await back.message()).payload == b"waits"


# -- between machines --------------------------------------------------------------------------------------------------


async def test_machines_prove_to_each_other_who_they_are(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    sets = tls(authority, *authority.issue("machine.example"))
    with await asyncio.to_thread(lambda: Machines(*sets, scheme="tls")) as machines:
        reader = await machines.join("b-w1", "", ("t", 1))
        source = await machines.join("a-w1")
        await source.publish("t", b"secret", qos=1)
        assert (await reader.message()).payload == b"secret"
        # One that has no certificate of the authority is another broker.
        place = machines.places["a"]
        mesh = (*mesh_of("c"), "--set", f'mesh.connect=["{place}"]', "--set", "mesh.node_timeout=1")
        wrong = tls(authority, *other.issue("c.example"))
        with await asyncio.to_thread(lambda: Daemon("--workers", "2", *mesh, *wrong, patience=LONG)) as alone:
            stranger = await Peer.join(alone.port, "", ("t", 1))
            await source.publish("t", b"more", qos=1)
            assert (await reader.message()).payload == b"more"
            assert await stranger.fence() == []
            stranger.abort()
            assert not any("joined" in line and '"a"' in line for line in alone.lines)


def tls(authority: Authority, certificate: str, key: str) -> tuple[str, ...]:
    files = {"ca_file": authority.file, "cert_file": certificate, "key_file": key}
    return tuple(each for name, file in files.items() for each in ("--set", f'mesh.{name}="{file}"'))


def mesh_of(node: str) -> tuple[str, ...]:
    return ("--set", 'mesh.name="site"', "--set", f'mesh.node="{node}"')
