"""Where clients come in: Unix sockets, the PROXY protocol, several listeners, and the store's folder."""

from __future__ import annotations

import asyncio
import stat
from contextlib import AsyncExitStack
from pathlib import Path

from canopy_mqtt import Broker, Settings
from canopy_mqtt.store.division import Division, note
from tests.e2e import wire
from tests.e2e.wire import Peer, connect
from tests.support.daemon import canopy
from tests.workers.crew import Crew, accepted
from tests.workers.stores import made


async def test_unix_sockets_and_proxies(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Each client is found at its worker, by whichever listener it comes."""
    path = tmp_path / "mqtt.sock"
    crew = Crew(stack, 2)
    listeners = (
        f'[{{url = "mqtt+unix://{path}", mode = "0600"}}, '
        '{url = "mqtt://127.0.0.1:0", name = "proxied", proxy_protocol = "v1", proxy_from = ["127.0.0.1/32"]}]'
    )
    await crew.start("--set", f"listener={listeners}", "--set", "log.level=info")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for worker in range(2):
        name = next(crew.names(worker))
        first = await crew.stay(name)
        await first.disconnect()
        peer = Peer(*await asyncio.open_unix_connection(path), version=5)
        stack.callback(peer.abort)
        await peer.send(connect(name, clean=False))
        assert (await accepted(peer)).session_present
        await peer.disconnect()
        peer = await Peer.open("127.0.0.1", crew.daemon.ports[2])
        stack.callback(peer.abort)
        await peer.send(b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 1883\r\n" + connect(name + "-b") + wire.PING)
        await accepted(peer)
        await peer.expect(wire.PINGRESP)
        line = await crew.line("client connected", client_id=name + "-b")
        assert line["address"] == "192.0.2.7:4000"
        assert line["listener"] == "proxied"
    assert await crew.stop() == 0
    assert not path.exists()


async def test_a_worker_refuses_clients_that_are_not_its_own(stack: AsyncExitStack) -> None:
    """However they came to it: served here, they would have two sessions, and two connections."""
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        broker.router.keeps = lambda client_id: client_id.startswith("own")
        for version, code in ((5, 0x88), (4, 3), (3, 3)):
            name = "MQIsdp" if version == 3 else "MQTT"
            peer = await Peer.open("127.0.0.1", broker.ports[0], version)
            stack.callback(peer.abort)
            await peer.send(connect("other", version=version, name=name))
            assert (await peer.expect(wire.CONNACK)).code == code
            assert await peer.closed() == []
            peer = await Peer.join(broker.ports[0], "own", version=version, name=name)
            peer.abort()


async def test_sessions_are_kept(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Over a stop, and over kill -9 of a worker and of all processes."""
    crew = Crew(stack, 2)
    store = str(tmp_path / "store")
    await crew.start("--store", store)
    names = [next(crew.names(worker)) for worker in range(2)]
    for name in names:
        await (await crew.stay(name, ("q/#", 2))).disconnect()
    sender = await crew.join("sender")
    await sender.publish("q/1", b"1", qos=1)
    assert await crew.stop() == 0

    await crew.start("--store", store)
    sender = await crew.join("sender")
    await crew.kill(1)
    # The worker that is away has it later.
    await sender.publish("q/1", b"2", qos=2)
    for name in names:
        peer = await crew.stay(name, present=True)
        assert [(await peer.message()).payload for _ in range(2)] == [b"1", b"2"]
        await peer.disconnect()
    crew.daemon.process.kill()
    await crew.gone()

    await crew.start("--store", store)
    for name in names:
        peer = await crew.stay(name, present=True)
        assert await peer.fence() == []


async def test_a_store_has_one_supervisor(stack: AsyncExitStack, tmp_path: Path) -> None:
    await Crew.started(stack, 2, "--store", str(tmp_path / "store"))
    result = await asyncio.to_thread(
        canopy, "serve", "--port", "0", "--store", str(tmp_path / "store"), "--workers", "2"
    )
    assert result.returncode == 1
    assert "is in use by process" in result.stderr.splitlines()[-1]


def test_one_process_does_not_begin_anew_beside_the_stores_of_workers(tmp_path: Path) -> None:
    """The file with their number is lost."""
    made(tmp_path / "store", 2)
    (tmp_path / "store" / "workers").unlink()
    result = canopy("serve", "--port", "0", "--store", str(tmp_path / "store"))
    assert result.returncode == 1
    assert "w0/canopy.db is there, and" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "store" / "canopy.db").exists()


def test_a_store_of_another_number_is_no_fault_of_the_settings(tmp_path: Path) -> None:
    """The start moves its sessions; only a file that cannot be read keeps it from that."""
    config = tmp_path / "canopy.toml"
    config.write_text(f'[store]\npath = "{tmp_path}"\n')
    note(tmp_path, Division(3))
    assert stat.S_IMODE((tmp_path / "workers").stat().st_mode) == 0o600
    assert canopy("check-config", str(config)).stdout.startswith(f"{config}: OK\n")
    (tmp_path / "workers").write_text("many")
    result = canopy("check-config", str(config))
    assert result.returncode == 2
    assert "should have the number of workers" in result.stdout


def test_what_several_workers_cannot_do_is_found_before_the_start(tmp_path: Path) -> None:
    config = tmp_path / "canopy.toml"
    config.write_text('[workers]\ncount = 2\n[cluster]\nname = "c"\nnode = "a"\nlisten = "mqtt://127.0.0.1:0"\n')
    result = canopy("check-config", str(config))
    assert result.returncode == 2
    assert "cannot be used: workers.count = 2 and cluster.name: " in result.stdout
