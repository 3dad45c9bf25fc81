"""A broker of two nodes: what goes wrong with it, and what it is like afterwards. The nodes are two brokers that a link
joins, which is no cluster, but passes messages from each to each."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from canopy_load.brokers.process import HOST, BrokerFailed
from canopy_load.engine.job import Target
from canopy_load.prove.brokers import keeper
from canopy_load.prove.brokers import started as module
from canopy_load.prove.brokers.driver import Driver, find
from canopy_load.prove.brokers.network import namespaces_missing
from canopy_load.prove.brokers.started import Started, started, unmade
from canopy_load.prove.faults import DISK_FAULTS, PARTITIONS, BrokerFault, Fault
from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec.packets import Publish, SubscriptionRequest
from tests.support import postgresql

JOINED = """
command = [
  "{python}", "-P", "-m", "canopy_mqtt", "serve", "--set", "log.level=error", "--set", "store.path={store}/canopy",
  "--set", 'listen=["mqtt://127.0.0.1:{port}", "mqtt://{address}:{cluster_port}"]',
  "--set", 'federation.broker_id="node-{node}"', "--set", "upstream=[{peers}]",
]
store = true
max_nodes = 2
peers = '{name = "n{peer}", url = "mqtt://{host}:{port}", publish = ["#"], clean_start = false}'
says = "nothing"
"""
"""Each broker hands all messages on to the other one, once."""


NO_MATCHING_SUBSCRIBERS = 0x10


def address(target: Target) -> BrokerAddress:
    return BrokerAddress(HOST, target.port)


@asynccontextmanager
async def subscriber(target: Target) -> AsyncIterator[asyncio.Queue[bytes]]:
    """A client that has asked for everything; its messages come to the queue."""
    came: asyncio.Queue[bytes] = asyncio.Queue()

    def on_message(message: Publish) -> None:
        came.put_nowait(bytes(message.payload))

    machine = ClientMachine(connect_packet("subscriber", clean_start=True))
    async with AsyncClient(address(target), machine, on_message=on_message) as client:
        await client.subscribe(SubscriptionRequest("t", 1))
        yield came


async def publish(target: Target, payload: bytes) -> None:
    async with AsyncClient(address(target), ClientMachine(connect_packet("publisher", clean_start=True))) as client:
        assert await client.publish("t", payload, qos=1) in (0, NO_MATCHING_SUBSCRIBERS)


async def accepts(target: Target) -> bool:
    """Return whether the port accepts connections, whether the broker behind it answers or not."""
    try:
        _, writer = await asyncio.open_connection(HOST, target.port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def test_what_cannot_go_wrong_here_has_a_reason() -> None:
    lacking = unmade(find("canopy-postgresql"), 1)
    assert lacking[Fault.ISOLATE] == "it needs 2 nodes (--nodes 2)"
    assert lacking[Fault.STORE_FULL] == "its store is a database server"
    assert Fault.STORE_PAUSED not in lacking
    assert unmade(find("amqtt"), 1)[Fault.STORE_PAUSED] == "it has no store"
    assert (
        unmade(find("canopy"), 1)[Fault.WORKERS] == unmade(find("canopy"), 1)[Fault.KILL_WORKER] == "it has no workers"
    )
    assert unmade(find("canopy"), 1)[Fault.VERSION] == "its file names no versions"
    assert unmade(find("canopy"), 1)[Fault.STORE_RESTART] == "its store is no database server"


async def test_a_node_that_is_killed_is_refused_and_keeps_its_folder() -> None:
    fault = BrokerFault(0.0, Fault.KILL, 0.0)
    async with started(find("canopy")) as broker:
        await publish(broker.targets[0], b"kept")
        await broker.inflict(fault)
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection(HOST, broker.targets[0].port)
        await broker.heal(fault)
        await publish(broker.targets[0], b"again")


async def test_nodes_that_are_killed_have_not_ended_by_themselves(joined: Driver) -> None:
    """Another fault begins in the same moment and looks whether all nodes are there."""
    fault = BrokerFault(0.0, Fault.KILL_ALL, 0.0)
    async with started(joined, 2) as broker:
        killing = asyncio.create_task(broker.inflict(fault))
        while not killing.done():
            broker.check()
            await asyncio.sleep(0)
        await killing


async def test_a_worker_is_killed_and_their_number_is_another_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, workers = BrokerFault(0.0, Fault.KILL_WORKER, 0.0, amount=0.9), BrokerFault(0.0, Fault.WORKERS, 0.0)
    monkeypatch.setattr(module, "MAX_START", 0.0)
    async with started(replace(find("canopy-workers"), workers=(2, 1))) as broker:
        first = broker.processes
        await broker.inflict(killed)
        while set(broker.processes) >= set(first):
            pass
        await broker.heal(killed)
        assert broker.processes[:2] == first[:2]
        await publish(broker.targets[0], b"another one serves")
        await broker.inflict(workers)
        assert not broker.processes
        await broker.heal(workers)
        assert len(broker.processes) == 1
        await broker.inflict(killed)
        assert not broker.processes
        await broker.heal(killed)
        await publish(broker.targets[0], b"of one process, that one is killed")


async def test_a_node_is_another_version_after_the_fault_of_that_name() -> None:
    fault = BrokerFault(0.0, Fault.VERSION, 0.0)
    driver = replace(find("canopy-memory"), command=("--set", "federation.broker_id=v{version}"), versions=("1", "2"))
    async with started(driver) as broker:
        for version in ("1", "2", "1"):
            assert f"federation.broker_id=v{version}" in psutil.Process(broker.processes[0]).cmdline()
            await broker.inflict(fault)
            await broker.heal(fault)


async def test_a_cut_off_entrance_and_a_latency_leave_the_broker_as_it_is() -> None:
    async with started(find("canopy")) as broker:
        for each in (Fault.SEVER, Fault.LATENCY):
            fault = BrokerFault(0.0, each, 0.0, amount=0.01)
            await broker.inflict(fault)
            await broker.heal(fault)
            await publish(broker.targets[0], b"as before")


async def test_clients_are_cut_off_from_a_node_that_is_starting_and_find_it_afterwards() -> None:
    kill, sever = BrokerFault(0.0, Fault.KILL, 0.0), BrokerFault(0.0, Fault.SEVER, 0.0)
    async with started(find("canopy")) as broker:
        await broker.inflict(kill)
        starting = asyncio.create_task(broker.heal(kill))
        while not await accepts(broker.targets[0]):
            pass
        await broker.inflict(sever)
        # A process that is being started has the port, too, until it is another program.
        while await accepts(broker.targets[0]):
            pass
        await broker.heal(sever)
        await starting
        await publish(broker.targets[0], b"again")


@pytest.mark.parametrize("fault", [*DISK_FAULTS, Fault.CLOCK])
async def test_a_disk_and_a_clock_go_wrong_and_are_well_again(fault: Fault) -> None:
    driver = find("canopy")
    if why := unmade(driver, 1).get(fault):
        pytest.skip(why)
    happens = BrokerFault(0.0, fault, 0.0, amount=5.0)
    async with started(driver, 1, [fault]) as broker:
        await broker.inflict(happens)
        await broker.heal(happens)
        await publish(broker.targets[0], b"well")


async def test_nothing_is_left_in_shared_memory_of_nodes_that_were_killed() -> None:
    driver = find("canopy")
    if why := unmade(driver, 1).get(Fault.CLOCK):
        pytest.skip(why)
    kill = BrokerFault(0.0, Fault.KILL, 0.0)
    async with started(driver, 1, [Fault.CLOCK, Fault.KILL]) as broker:
        first = running(broker)
        assert clocks(first)
        await broker.inflict(kill)
        assert not clocks(first)
        await broker.heal(kill)
        second = running(broker)
        assert clocks(second)
        await broker.inflict(BrokerFault(0.0, Fault.STOP, 0.0))
    assert not clocks(first + second)


def clocks(processes: list[int]) -> list[Path]:
    """What libfaketime has in shared memory for these processes."""
    files = [keeper.SHARED / each.format(pid) for pid in processes for each in keeper.CLOCKS]
    return [each for each in files if each.exists()]


@pytest.mark.parametrize("fault", [Fault.STORE_PAUSED, Fault.STORE_RESTART])
async def test_a_database_stands_still_or_starts_again_and_the_message_is_kept(fault: Fault) -> None:
    """It comes to a session that is away meanwhile, so that it has to be in the database."""
    if why := postgresql.missing():
        pytest.skip(why)
    happens = BrokerFault(0.0, fault, 0.0)
    async with started(find("canopy-postgresql")) as broker:
        away = ClientMachine(connect_packet("away", clean_start=False, session_expiry=600))
        came = asyncio.Event()
        async with AsyncClient(address(broker.targets[0]), away, on_message=lambda _: came.set()) as client:
            await client.subscribe(SubscriptionRequest("t", 1))
        await broker.inflict(happens)
        publishing = asyncio.create_task(publish(broker.targets[0], b"kept"))
        await broker.heal(happens)
        await publishing
        await client.connect()
        await came.wait()
        await client.disconnect()


async def test_a_broker_that_ends_by_itself_is_no_fault_of_the_plan() -> None:
    async with started(find("canopy")) as broker:
        (pid,) = running(broker)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BrokerFailed, match="the broker ended with code -9"):
            broker.check()
        with pytest.raises(BrokerFailed, match="the broker ended with code -9"):
            await broker.inflict(BrokerFault(0.0, Fault.KILL, 0.0))


async def test_nothing_is_left_when_the_block_is_left_with_everything_wrong() -> None:
    """Also where a node is stopped, and does not hear SIGTERM."""
    async with started(find("canopy")) as broker:
        folder = broker.folder
        await broker.inflict(BrokerFault(0.0, Fault.STOP, 0.0))
        assert running(broker)
    assert not folder.exists()
    assert keeper.processes(str(folder)) == []


async def test_a_command_that_fails_first_is_told() -> None:
    driver = Driver("false", command=("{python}",), prepare=(("sh", "-c", "echo no room >&2; exit 3"),))
    with pytest.raises(BrokerFailed, match="sh failed: no room"):
        async with started(driver):
            pass


async def test_files_that_cannot_be_written_are_told() -> None:
    with pytest.raises(BrokerFailed, match=r"the files of odd cannot be written: .*store"):
        async with started(Driver("odd", command=("{python}",), files={"store": "a folder is there"})):
            pass


@pytest.mark.parametrize("fault", [Fault.ISOLATE, Fault.ONE_WAY])
@pytest.mark.parametrize("apart", [True, False])
async def test_what_is_published_in_a_partition_comes_after_it(
    fault: Fault, apart: bool, joined: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With namespaces, where there can be any, and with proxies."""
    why = namespaces_missing()
    if apart and why:
        pytest.skip(why)
    if not apart:
        monkeypatch.setattr(module, "namespaces_missing", lambda: "not here")
    happens = BrokerFault(0.0, fault, 0.0, (0, 1)[: 1 + (fault is Fault.ONE_WAY)])
    async with started(joined, 2, PARTITIONS) as broker:
        one, other = broker.targets
        async with subscriber(other) as came:
            await broker.inflict(happens)
            await publish(one, b"across")
            await publish(other, b"here")
            assert await came.get() == b"here"
            await broker.heal(happens)
            assert await came.get() == b"across"


async def test_nodes_that_do_not_meet_are_no_cluster(joined: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = replace(joined, peers="")
    monkeypatch.setattr(module, "MEETING_PATIENCE", 0.5)
    with pytest.raises(BrokerFailed, match="the nodes do not form a cluster: no message comes from each to each"):
        async with started(lonely, 2):
            pass


def running(broker: Started) -> list[int]:
    """The processes of the nodes."""
    return [pid for pid in keeper.processes(str(broker.folder)) if pid != os.getpid()]


@pytest.fixture
def joined(tmp_path: Path) -> Driver:
    """Two brokers; the first one has a link to the second."""
    file = tmp_path / "joined.toml"
    file.write_text(JOINED)
    return find(str(file))
