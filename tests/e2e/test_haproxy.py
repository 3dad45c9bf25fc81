"""HAProxy in front: it says whose connection it passes on, by the PROXY protocol, below MQTT, TLS and WebSocket."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from broker import Broker, Settings
from loadtest.brokers.process import free_port
from tests.e2e import wire
from tests.net.websocket.framing import request
from tests.net.websocket.peer import Frames, WebPeer
from tests.support.certificates import Authority
from tests.support.waiting import until

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")

pytestmark = pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed")

PROXY: Final = "127.0.0.1"
CLIENT: Final = "127.0.0.2"
"""Another address of this machine: where the clients come from."""

CONFIG: Final = """
global
    maxconn 100
defaults
    timeout connect 5s
    timeout client 30s
    timeout server 30s
"""

PART: Final = """
listen {name}
    mode {mode}
    bind 127.0.0.1:{front}
    server canopy 127.0.0.1:{back} {send}
"""

KINDS: Final = {
    # name → URL of the listener, version of the protocol, HAProxy's mode, and what it sends
    "v1": ("mqtt", "v1", "tcp", "send-proxy"),
    "v2": ("mqtt", "v2", "tcp", "send-proxy-v2"),
    "tls": ("mqtts", "v2", "tcp", "send-proxy-v2"),
    "web": ("ws", "v2", "http", "send-proxy-v2"),
    "websecure": ("wss", "v2", "tcp", "send-proxy-v2"),
}


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the broker logs."""
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def fronts(tmp_path: Path, authority: Authority, lines: list[dict[str, Any]]) -> AsyncIterator[dict[str, int]]:
    """A broker behind HAProxy; the port of each kind of front."""
    del lines
    certificate, key = authority.issue("localhost")
    tables: list[dict[str, Any]] = []
    for name, (scheme, version, _, _) in KINDS.items():
        table = {"url": f"{scheme}://127.0.0.1:0", "name": name, "proxy_protocol": version}
        tables.append({**table, "proxy_from": [f"{PROXY}/32"]})
        if scheme in ("mqtts", "wss"):
            tables[-1]["tls"] = {"certificate": certificate, "key": key}
    settings = Settings.model_validate({"listener": tables, "shutdown": {"flush_timeout": 0.0}})
    async with Broker(settings) as broker:
        found: dict[str, int] = {}
        text = CONFIG
        for (name, (_, _, mode, send)), back in zip(KINDS.items(), broker.ports, strict=True):
            found[name] = free_port()
            text += PART.format(name=name, mode=mode, front=found[name], back=back, send=send)
        config = tmp_path / "haproxy.cfg"
        config.write_text(text)
        process = await asyncio.create_subprocess_exec(
            *(str(HAPROXY), "-q", "-db", "-f", str(config)), stderr=asyncio.subprocess.PIPE
        )
        try:
            for port in found.values():
                await _reachable(port, process)
            yield found
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def _reachable(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(PROXY, port)
            except OSError:
                assert process.returncode is None, "HAProxy has ended"
                await asyncio.sleep(0.02)
            else:
                writer.transport.abort()
                return


async def stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(wire.TIMEOUT):
        return await asyncio.open_connection(PROXY, port, local_addr=(CLIENT, 0))


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_the_client_behind_it_is_known(
    fronts: dict[str, int], authority: Authority, lines: list[dict[str, Any]], kind: str
) -> None:
    """By its own address and port; messages go through both ways."""
    reader, writer = await stream(fronts[kind])
    host, port = writer.get_extra_info("sockname")
    peer = wire.Peer(reader, writer, 5)
    if kind in ("tls", "websecure"):
        async with asyncio.timeout(wire.TIMEOUT):
            await writer.start_tls(authority.client(), server_hostname="localhost")
    if kind in ("web", "websecure"):
        frames = Frames(reader, writer)
        assert (await frames.upgrade(request())).startswith(b"HTTP/1.1 101 ")
        peer = WebPeer.of(frames, 5)
    await peer.send(wire.connect("c", keep_alive=0))
    assert (await peer.expect(wire.CONNACK)).code == 0
    await peer.subscribe("t")
    await peer.publish("t", bytes(100_000), qos=1)
    assert len((await peer.wait_for(wire.PUBLISH)).payload) == 100_000
    await peer.disconnect()
    connected = [line for line in lines if line["event"] == "client connected"]
    assert [line["address"] for line in connected] == [f"{host}:{port}"]
    assert host == CLIENT
    await until(lambda: any(line["event"] == "client disconnected" for line in lines))
