"""Workers as one broker: each client at its own worker, and messages, retained messages and sessions for all."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from canopy_mqtt.workers.worker import KILLED, supervisor_gone
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, connect
from tests.support.daemon import Daemon, canopy
from tests.support.waiting import until
from tests.workers.crew import HOUR, PATIENT, Crew, accepted, runs


@pytest.fixture
async def own(stack: AsyncExitStack) -> Crew:
    """Three workers for a test that ends them."""
    return await Crew.started(stack, 3)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_reach_the_clients_of_all_workers(crew: Crew, qos: int) -> None:
    ids = [next(crew.names(worker)) for worker in range(3)]
    peers = [await crew.join(client_id, ("a/+", qos)) for client_id in ids]
    for number, sender in enumerate(peers):
        await sender.publish("a/b", b"%d" % number, qos=qos)
    for peer in peers:
        found = sorted([(await peer.message()).payload for _ in peers])
        assert found == [b"0", b"1", b"2"]
        assert await peer.fence() == []


async def test_a_killed_worker_gets_what_its_clients_had_retained_from_the_others(crew: Crew) -> None:
    name = next(crew.names(1))
    sender = await crew.join(name)
    for topic in ("kept/1", "kept/2"):
        await sender.publish(topic, topic.encode(), qos=1, retain=True)
    await sender.publish("kept/1", b"", qos=1, retain=True)
    # The others have it by then.
    for other in (0, 2):
        looker = await crew.join(next(crew.names(other)), ("kept/#", 1))
        assert (await looker.message()).topic == "kept/2"
    await crew.kill(1)
    looker = await crew.join(name, ("kept/#", 1))
    found = await looker.message()
    assert (found.topic, found.payload) == ("kept/2", b"kept/2")
    assert await looker.fence() == []


async def test_who_is_connected_at_any_worker_is_said_at_all(stack: AsyncExitStack) -> None:
    """What a killed worker has said of clients that do not come back is cleared by the next one."""
    crew = await Crew.started(stack, 3, "--set", "presence.topic=here")
    names = [next(crew.names(worker)) for worker in range(3)]
    watcher = await crew.join(names[0], ("here/#", 1))

    async def heard() -> tuple[str, bytes]:
        found = await watcher.message()
        return found.topic, found.payload

    assert await heard() == (f"here/{names[0]}", b"online")
    for name in names[1:]:
        peer = await crew.join(name)
        assert await heard() == (f"here/{name}", b"online")
        if name == names[1]:
            await peer.disconnect()
        else:
            await crew.kill(2)
        assert await heard() == (f"here/{name}", b"")
    assert await watcher.fence() == []
    looker = await crew.join(names[1], ("here/#", 1))
    assert {(await looker.message()).topic for _ in range(2)} == {f"here/{names[0]}", f"here/{names[1]}"}


async def test_an_identifier_that_the_broker_gives_belongs_to_its_worker(crew: Crew) -> None:
    """[MQTT-3.1.3-6] A client that comes back with it finds its session, at whichever worker it was."""
    for _ in range(6):
        peer = await crew.join("", clean=False, props=((SESSION_EXPIRY, HOUR),))
        name = peer.client_id
        await peer.disconnect()
        await crew.stay(name, present=True)


async def test_a_connect_in_pieces_and_what_follows_it_at_once(crew: Crew) -> None:
    name = next(crew.names(1))
    packet = connect(name) + wire.subscribe(1, [("p", 0)]) + wire.publish("p", b"x" * 20_000)
    peer = await wire.Peer.open("127.0.0.1", crew.daemon.port)
    crew.stack.callback(peer.abort)
    for at in range(len(connect(name)) - 1):
        await peer.send(packet[at : at + 1])
        await asyncio.sleep(0)
    await peer.send(packet[len(connect(name)) - 1 :])
    await accepted(peer)
    await peer.wait_for(wire.SUBACK)
    assert (await peer.message()).payload == b"x" * 20_000


async def test_what_is_no_mqtt_is_answered_by_a_worker(crew: Crew) -> None:
    peer = await wire.Peer.open("127.0.0.1", crew.daemon.port)
    crew.stack.callback(peer.abort)
    await peer.send(b"GET / HTTP/1.1\r\n\r\n")
    assert await peer.closed() == []


async def test_clients_of_a_killed_worker_wait_and_are_served(crew: Crew) -> None:
    there = await crew.join(next(crew.names(0)), ("t", 1))
    await crew.kill(1)
    waiting = [await crew.knock(name) for name in islice(crew.names(1), 100)]
    for peer in waiting:
        await accepted(peer)
    await waiting[7].publish("t", b"again", qos=1)
    # The connections of the others stay, and what is published at the new process arrives.
    assert (await there.message()).payload == b"again"


async def test_a_worker_serves_again_though_somebody_has_removed_the_sockets(crew: Crew) -> None:
    there = await crew.join(next(crew.names(0)), ("to/0", 1))
    shutil.rmtree(folder_of(crew.pids["w1"]))
    await crew.kill(1)
    back = await crew.join(next(crew.names(1)), ("to/1", 1))
    await back.publish("to/0", b"from 1", qos=1)
    await there.publish("to/1", b"from 0", qos=1)
    assert [(await peer.message()).payload for peer in (there, back)] == [b"from 1", b"from 0"]


def folder_of(pid: int) -> Path:
    """The folder of the sockets of a worker."""
    own = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    with open("/proc/net/unix", encoding="ascii") as file:
        paths = [words[7] for words in map(str.split, file) if len(words) > 7 and f"socket:[{words[6]}]" in own]
    return Path(next(path for path in paths if path.endswith(".sock"))).parent


@pytest.mark.parametrize("others", [0, 1])
def test_a_worker_that_is_cut_off_removes_no_socket_but_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: int
) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    rest = [folder / f"w{number}.sock" for number in range(1, 1 + others)]
    for path in (folder / "w0.sock", folder / "w0.ask", folder / "supervisor.ask", *rest):
        path.touch()
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    supervisor_gone(folder / "w0.sock")
    assert codes == [KILLED]
    assert [*tmp_path.rglob("*.sock")] == rest
    assert not (folder / "w0.ask").exists()
    assert (folder / "supervisor.ask").exists() is bool(others)
    assert folder.exists() is bool(others)


async def test_all_end_in_order(own: Crew) -> None:
    peers = [await own.join(next(own.names(worker))) for worker in range(3)]
    assert await own.stop() == 0
    for peer in peers:
        (told,) = await peer.closed()
        assert told.code == 0x8B
    assert not any(map(runs, own.pids.values()))


async def test_no_worker_outlives_a_killed_supervisor(own: Crew) -> None:
    os.kill(own.daemon.process.pid, signal.SIGKILL)
    await until(lambda: not any(map(runs, own.pids.values())), "the workers have ended")


async def test_a_worker_can_have_as_many_descriptors_as_the_system_allows(crew: Crew) -> None:
    """Whatever the process that forks it may have, which is older than the supervisor's own look at the limit."""
    (forks,) = crew.children
    _, hard = resource.prlimit(forks, resource.RLIMIT_NOFILE)
    resource.prlimit(forks, resource.RLIMIT_NOFILE, (hard - 1, hard))
    await crew.restarted(0)
    assert resource.prlimit(crew.pids["w0"], resource.RLIMIT_NOFILE) == (hard, hard)


async def test_what_forks_workers_has_one_thread(crew: Crew) -> None:
    """What another one holds at a fork, such as a lock, the new process would wait for in vain."""
    (forks,) = crew.children
    assert len(os.listdir(f"/proc/{forks}/task")) == 1


async def test_without_what_starts_workers_the_broker_ends(own: Crew) -> None:
    (forks,) = own.children
    os.kill(forks, signal.SIGKILL)
    code = await asyncio.to_thread(own.daemon.process.wait, 60)
    assert code == 1
    assert not any(map(runs, own.pids.values()))


async def test_signals_that_systemd_sends_to_all_end_no_worker(crew: Crew) -> None:
    for pid in crew.pids.values():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    # Each has looked at its signals when it has served a client.
    for worker in range(3):
        peer = await crew.join(next(crew.names(worker)), ("a", 1))
        await peer.publish("a", b"1", qos=1)
        assert (await peer.message()).payload == b"1"
        await peer.disconnect()
    assert all(map(runs, crew.pids.values()))


@pytest.mark.parametrize("flags", ["--listen mqtt://{}", "--port 0 --set http.listen=http://{}"])
def test_a_port_in_use_is_told_in_one_line(flags: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        result = canopy("serve", "--workers", "2", *flags.format(f"{host}:{port}").split())
    assert result.returncode == 1
    assert f"{port}: the port is in use" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("count", ["0", "65", "-1"])
def test_numbers_that_are_none(count: str) -> None:
    result = canopy("serve", "--workers", count)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert (
        line == f"canopy: --set workers.count={count}: workers.count: found {count}; allowed: an integer from 1 to 64"
    )


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("store.url=postgresql://localhost/x", "store.url"),
        ("recorder.directory=/tmp/x;recorder.table=delta", "recorder.table"),
    ],
)
def test_what_several_workers_cannot_do_yet(setting: str, named: str) -> None:
    flags = [flag for each in setting.split(";") for flag in ("--set", each)]
    result = canopy("serve", "--workers", "2", *flags)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"canopy: workers.count = 2 and {named}: ")


async def test_a_worker_that_cannot_start_ends_all_in_one_line() -> None:
    result = await asyncio.to_thread(
        canopy, "serve", "--workers", "2", "--port", "0", "--set", "access.acl_file=/no/such"
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("canopy: missing: /no/such")


async def test_clients_that_leave_before_their_worker_is_back_hurt_nobody(crew: Crew) -> None:
    await crew.kill(2)
    names = crew.names(2)
    for name in islice(names, 20):
        (await crew.knock(name)).abort()
    await crew.join(next(names))


async def test_a_flood_that_takes_all_file_descriptors_floods_no_log(stack: AsyncExitStack) -> None:
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
    daemon = await asyncio.to_thread(lambda: Daemon("--workers", "2", *PATIENT, prepare=few, patience=60.0))
    crew = Crew(stack, 2, daemon)
    stack.push_async_callback(crew.gone)
    answers = await asyncio.to_thread(all_connect, daemon.port, [f"c-{number}" for number in range(300)])
    lines = crew.told("connection is lost")
    assert lines
    assert len(lines) < answers[b""] / 4
    await crew.join("later")


@pytest.mark.long
async def test_a_worker_that_hangs_is_killed_and_its_clients_are_served(stack: AsyncExitStack) -> None:
    crew = await Crew.started(stack, 2)
    os.kill(crew.pids["w1"], signal.SIGSTOP)
    waiting = await crew.knock(next(crew.names(1)))
    line = await crew.line("worker does not answer", worker="w1")
    await crew.line("worker ended", pid=line["pid"], reason="ended by signal 9")
    await accepted(waiting)


@pytest.mark.crowd
async def test_five_thousand_clients_of_a_killed_worker_are_served(stack: AsyncExitStack) -> None:
    crew = await Crew.started(stack, 2)
    names = list(islice(crew.names(1), 5_000))
    await crew.kill(1)
    refused = await asyncio.to_thread(all_connect, crew.daemon.port, names)
    assert refused == {}


def all_connect(port: int, names: list[str]) -> dict[bytes, int]:
    """Connect with all of these client identifiers at a time; how often there was which answer other than success."""
    sockets: list[socket.socket] = []
    try:
        for name in names:
            sockets.append(socket.create_connection(("127.0.0.1", port), 60))
            sockets[-1].sendall(connect(name, version=4))
        answers = Counter(each.recv(4, socket.MSG_WAITALL) for each in sockets)
    finally:
        for each in sockets:
            each.close()
    del answers[b"\x20\x02\x00\x00"]
    return answers
