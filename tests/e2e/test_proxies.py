"""HAProxy and nginx in front: they say whose connection they pass on, by the PROXY protocol, below all else.

nginx passes WebSockets on by HTTP too, as docs/listeners.md has it, and ends TLS itself.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker, Settings
from tests.e2e import wire
from tests.net.websocket.framing import request
from tests.net.websocket.peer import Frames, WebPeer
from tests.support.certificates import Authority
from tests.support.reverse_proxy import NGINX, SEARCHED, nginx, running, web
from tests.support.waiting import until

PROXY: Final = "127.0.0.1"
CLIENT: Final = "127.0.0.2"
"""Another address of this machine: where the clients come from."""

HAPROXY: Final = shutil.which("haproxy", path=SEARCHED) or ""
STREAM: Final = Path(NGINX).resolve().parents[1] / "lib/nginx/modules/ngx_stream_module.so" if NGINX else Path()

HAPROXY_CONFIG: Final = """
global
    maxconn 100
defaults
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen front
    mode {mode}
    bind 127.0.0.1:{front}
    server canopy 127.0.0.1:{back} {send}
"""

NGINX_STREAM: Final = """
stream {{
    server {{
        listen 127.0.0.1:{front} {listen};
        {ends}
        proxy_pass 127.0.0.1:{back};
        proxy_protocol on;
        proxy_timeout 1h;
    }}
}}
"""

NGINX_SERVER: Final = """
server {{
    listen 127.0.0.1:{front} {listen};
    {ends}
    location /mqtt {{
        proxy_pass http://127.0.0.1:{back};
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection "upgrade";
        proxy_read_timeout 3600s;
    }}
}}
"""

HTTP: Final = "none"


@dataclass(frozen=True)
class Kind:
    """A proxy in front of a listener of that scheme: what it sends, and whether TLS ends there."""

    scheme: str
    version: str
    mode: str = "tcp"
    ends_tls: bool = False

    @property
    def web(self) -> bool:
        """True if clients speak WebSocket."""
        return self.scheme in ("ws", "wss")

    @property
    def secure(self) -> bool:
        """True if clients speak TLS."""
        return self.ends_tls or self.scheme in ("mqtts", "wss")


KINDS: Final = {
    "haproxy-v1": Kind("mqtt", "v1"),
    "haproxy-v2": Kind("mqtt", "v2"),
    "haproxy-tls": Kind("mqtts", "v2"),
    "haproxy-web": Kind("ws", "v2", "http"),
    "haproxy-websecure": Kind("wss", "v2"),
    "nginx-stream": Kind("mqtt", "v1"),
    "nginx-stream-tls": Kind("mqtts", "v1"),
    "nginx-stream-websecure": Kind("wss", "v1"),
    "nginx-stream-that-ends-tls": Kind("mqtt", "v1", ends_tls=True),
    "nginx-http": Kind("ws", HTTP, "http"),
    "nginx-http-that-ends-tls": Kind("ws", HTTP, "http", ends_tls=True),
}


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Collect the broker's log lines."""
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=sorted(KINDS))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if found.startswith("haproxy") and not HAPROXY:
        pytest.skip("haproxy is not installed")
    if found.startswith("nginx") and not NGINX:
        pytest.skip("nginx is not installed")
    if found.startswith("nginx") and not STREAM.is_file():
        pytest.skip("nginx's stream module is not installed (Debian: libnginx-mod-stream)")
    return found


def command(name: str, kind: Kind, folder: Path, front: int, back: int, certificate: tuple[str, str]) -> list[str]:
    """Return the command that starts the proxy, configured in a file of the folder."""
    if name.startswith("haproxy"):
        config = folder / "haproxy.conf"
        send = "send-proxy" if kind.version == "v1" else "send-proxy-v2"
        config.write_text(HAPROXY_CONFIG.format(mode=kind.mode, front=front, back=back, send=send))
        return [HAPROXY, "-q", "-db", "-f", str(config)]
    ends = "ssl_certificate {}; ssl_certificate_key {};".format(*certificate) if kind.ends_tls else ""
    terms = {"front": front, "back": back, "listen": "ssl" if kind.ends_tls else "", "ends": ends}
    if kind.mode == "http":
        return nginx(folder, web(NGINX_SERVER.format(**terms)))
    return nginx(folder, NGINX_STREAM.format(**terms), STREAM)


@pytest.fixture
async def front(
    name: str, tmp_path: Path, authority: Authority, lines: list[dict[str, Any]]
) -> AsyncIterator[tuple[Kind, int]]:
    """A broker behind a proxy, and the proxy's port."""
    del lines
    kind = KINDS[name]
    certificate, key = authority.issue("localhost")
    table: dict[str, Any] = {"url": f"{kind.scheme}://127.0.0.1:0", "name": name, "proxy_protocol": kind.version}
    if kind.version != HTTP:
        table["proxy_from"] = [f"{PROXY}/32"]
    if kind.scheme in ("mqtts", "wss"):
        table["tls"] = {"certificate": certificate, "key": key}
    settings = Settings.model_validate({"listener": [table], "shutdown": {"flush_timeout": 0.0}})
    async with Broker(settings) as broker:
        port = free_port()
        (back,) = broker.ports
        async with running(command(name, kind, tmp_path, port, back, (certificate, key)), port):
            yield kind, port


async def test_clients_behind_a_proxy(
    front: tuple[Kind, int], authority: Authority, lines: list[dict[str, Any]]
) -> None:
    """Known by their own addresses and ports where the proxy says them; messages go through both ways."""
    kind, port = front
    async with asyncio.timeout(wire.TIMEOUT):
        reader, writer = await asyncio.open_connection(PROXY, port, local_addr=(CLIENT, 0))
    ours = "{}:{}".format(*writer.get_extra_info("sockname"))
    if kind.secure:
        async with asyncio.timeout(wire.TIMEOUT):
            await writer.start_tls(authority.client(), server_hostname="localhost")
    peer = wire.Peer(reader, writer, 5)
    if kind.web:
        frames = Frames(reader, writer)
        answer = await frames.upgrade(request())
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-protocol: mqtt" in answer.lower()
        peer = WebPeer.of(frames, 5)
    await peer.send(wire.connect("c", keep_alive=0))
    assert (await peer.expect(wire.CONNACK)).code == 0
    await peer.subscribe("t")
    await peer.publish("t", bytes(100_000), qos=1)
    assert len((await peer.wait_for(wire.PUBLISH)).payload) == 100_000
    await peer.disconnect()
    (connected,) = [line for line in lines if line["event"] == "client connected"]
    if kind.version == HTTP:
        assert connected["address"].startswith(f"{PROXY}:")
    else:
        assert connected["address"] == ours
    assert ours.startswith(f"{CLIENT}:")
    await until(lambda: any(line["event"] == "client disconnected" for line in lines))
