"""mqtt.js on a web page in headless Chromium, over WebSocket: the page tells what it saw by MQTT."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from tests.e2e import wire
from tests.e2e.clients.python.drivers import within
from tests.support.certificates import Authority

MQTT_JS = Path(__file__).resolve().parents[2] / "js" / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
    pytest.mark.skipif(not MQTT_JS.is_file(), reason="mqtt.js is not installed: npm ci in tests/e2e/js"),
]

STARTED = 60.0
"""Seconds that the browser may take to start and run the page."""

PAGE = """<!DOCTYPE html><title>mqtt.js</title><script>%(library)s</script><script>
const told = { errors: [] };
// What the browser itself makes of the upgrade, and of the end that a text frame brings.
const bare = new WebSocket("%(url)s", ["chat", "mqtt"]);
bare.onopen = () => { told.protocol = bare.protocol; told.extensions = bare.extensions; bare.send("text"); };
bare.onclose = (event) => { told.code = event.code; told.clean = event.wasClean; begin(); };
function begin() {
  const client = mqtt.connect("%(url)s", { protocolVersion: 5, clientId: "page", reconnectPeriod: 0 });
  client.on("error", (error) => told.errors.push(String(error)));
  client.on("message", (topic, payload, packet) => {
    told.messages = (told.messages || []).concat([[payload.length, packet.qos]]);
    if (told.messages.length === 103)
      client.publish("result", JSON.stringify(told), { qos: 1 }, () => client.end());
  });
  client.on("connect", async () => {
    await client.subscribeAsync("echo/#", { qos: 2 });
    for (let number = 0; number < 100; number++) client.publish("echo/many", "x".repeat(number));
    for (const qos of [0, 1, 2]) await client.publishAsync(`echo/${qos}`, "y".repeat(100000 * qos + 1), { qos });
  });
}
</script>"""

Open = Callable[[str], Awaitable[None]]


@pytest.fixture
async def browse(tmp_path: Path) -> AsyncIterator[Open]:
    """Open a page that uses a broker; the browser ends with the test."""
    async with AsyncExitStack() as stack:

        async def open_page(url: str) -> None:
            page = tmp_path / "page.html"
            page.write_text(PAGE % {"library": MQTT_JS.read_text(encoding="utf-8"), "url": url}, encoding="utf-8")
            process = await asyncio.create_subprocess_exec(
                str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-extensions", "--disable-background-networking", "--disable-component-update",
                "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--ignore-certificate-errors", f"--user-data-dir={tmp_path / 'profile'}", page.as_uri(),
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            stack.push_async_callback(_end, process)

        yield open_page


async def _end(process: asyncio.subprocess.Process) -> None:
    """With all processes that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def told_by(page: str, watcher: wire.Peer) -> Any:
    """Return the result that the page publishes in the end."""
    message = await within(f"a word of {page}", watcher.expect(wire.PUBLISH), STARTED)
    return json.loads(message.payload)


async def watch(broker: Broker) -> wire.Peer:
    peer = await wire.Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(wire.connect("watcher", keep_alive=0))
    await peer.expect(wire.CONNACK)
    await peer.subscribe(("result", 0))
    return peer


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_page_connects_publishes_and_subscribes(
    browse: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    """[MQTT-6.0.0-4]: without the sub-protocol in the answer, Chromium would end the connection."""
    monkeypatch.setattr(wire, "TIMEOUT", STARTED)
    web: dict[str, Any] = {"url": f"{scheme}://127.0.0.1:0"}
    if scheme == "wss":
        certificate, key = Authority(tmp_path).issue("127.0.0.1")
        web["tls"] = {"certificate": certificate, "key": key}
    settings = Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "listener": [web]})
    async with Broker(settings) as broker:
        watcher = await watch(broker)
        await browse(broker.listening[1])
        told = await told_by("the page", watcher)
        watcher.abort()
    sizes = told.pop("messages")
    assert sizes == [[number, 0] for number in range(100)] + [[1, 0], [100_001, 1], [200_001, 2]]
    assert told == {"errors": [], "protocol": "mqtt", "extensions": "", "code": 1003, "clean": True}


async def test_a_page_of_another_origin_does_not(browse: Open, caplog: pytest.LogCaptureFixture) -> None:
    """A page from a file has the origin null."""
    web = {"url": "ws://127.0.0.1:0", "origins": ["https://example.org"]}
    async with Broker(Settings.model_validate({"listener": [web]})) as broker:
        await browse(broker.listening[0])
        async with asyncio.timeout(STARTED):
            while "Origin" not in caplog.text:  # noqa: ASYNC110 (a line of the log tells it)
                await asyncio.sleep(0.01)
    assert "an Origin that this listener does not take (HTTP 403)" in caplog.text
