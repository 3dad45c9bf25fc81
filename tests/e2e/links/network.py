"""Brokers in a row, for the tests of upstream links: edges, what they are linked to, clients at each, and fences.

Owns: `Net`, which starts all of it and ends it in the reverse order; `Place`, one upstream broker of any kind.

Kinds of upstream: `canopy` (in this process; its tables can be looked at), `mosquitto` (a process for each test),
`aedes` (one process of node for a whole run, in which each test gets an instance of its own; MQTT 3.1.1).
`Net.process` starts one that can be killed.

Waiting is done by fences: a message of the test's own that goes the same way, behind everything that came before. So
"this came once and nothing else did" needs no time that passes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.settings import Settings
from tests.e2e import wire
from tests.e2e.faults import FaultProxy, ProxiedConnection
from tests.e2e.links.scripted_upstream import ScriptedUpstream
from tests.e2e.wire import Packet, Peer
from tests.support import waiting
from tests.support.tries import filters_of

KINDS: Final = ("canopy", "mosquitto", "aedes")
V5: Final = ("canopy", "mosquitto")
"""Those that speak MQTT 5.0."""

MOSQUITTO: Final = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
NODE: Final = shutil.which("node")
SCRIPTS: Final = Path(__file__).resolve().parent.parent / "js"

NOBODY: Final = 0x10
"""No matching subscribers."""

QUICK: Final[dict[str, Any]] = {"retry_min": 0.02, "retry_max": 0.1}
"""The settings of every link in the tests: no test waits a second until it is connected again."""

BRIEF: Final[dict[str, Any]] = {"sys": {"interval": 0}, "shutdown": {"flush_timeout": 0.5}}
"""The settings of every broker in the tests, unless a test sets others."""

OFTEN: Final = 0.05
"""Seconds between two looks of an edge at what it publishes under `$SYS`, where a test reads that."""

S = TypeVar("S", bound=ScriptedUpstream)


class Place:
    """An upstream broker: where it listens, and the highest version it speaks."""

    def __init__(self, kind: str, port: int, broker: Broker | None = None, process: Process | None = None) -> None:
        self.kind = kind
        self.port = port
        self.version = 4 if kind == "aedes" else 5
        self.broker = broker
        self.process = process

    @property
    def filters(self) -> list[str]:
        """The topic filters in the table of a Canopy, without its own."""
        assert self.broker is not None
        return sorted(filters_of(self.broker.router.trie))


class Process:
    """A broker in a process of its own, which can be killed and started again on the same port."""

    TERM: Final = signal.SIGTERM

    def __init__(self, command: list[str], ready: str) -> None:
        self.command = command
        self._ready = ready
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start it, and return the line by which it says that it listens."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CANOPY_")}
        self._process = process = await asyncio.create_subprocess_exec(
            *self.command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environ
        )
        assert process.stdout is not None
        told: list[str] = []
        async with asyncio.timeout(60):
            while line := (await process.stdout.readline()).decode():
                told.append(line)
                if self._ready in line:
                    break
            else:
                raise AssertionError(f"{self.command[0]} ended: {told}")
        self._reader = asyncio.create_task(self._drain(process.stdout))
        return line.strip()

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while await stream.read(65_536):
            pass

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill it, and wait until it is gone."""
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        async with asyncio.timeout(wire.TIMEOUT):
            await process.wait()
            if self._reader is not None:
                await self._reader
        process._transport.close()  # type: ignore[attr-defined]
        self._process = None


AEDES: Final = """\
import { createServer } from 'node:net'
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
const entry = createRequire(FOLDER).resolve('aedes')
const { Aedes } = await import(pathToFileURL(entry))
// Each line of the standard input asks for one more broker on the port that it names (0: a free one).
const begin = async (port) => {
  const broker = await Aedes.createBroker({ concurrency: 1000 })
  const server = createServer({ noDelay: true }, broker.handle)
  server.listen(port, '127.0.0.1', 1024, () => console.log(`listening on :${server.address().port}`))
}
if (process.argv[2]) await begin(Number(process.argv[2]))
else {
  console.log('ready')
  for await (const line of createInterface({ input: process.stdin })) await begin(Number(line))
}
"""


def aedes_command(folder: Path, *arguments: str) -> list[str]:
    """Return the command that starts aedes. Skips if it is not installed."""
    if NODE is None:
        pytest.skip("node is not installed")
    if not (SCRIPTS / "node_modules" / "aedes").is_dir():
        pytest.skip("aedes is not installed: npm ci in tests/e2e/js")
    script = folder / "aedes.mjs"
    script.write_text(AEDES.replace("FOLDER", json.dumps(str(SCRIPTS) + "/")), encoding="utf-8")
    return [NODE, str(script), *arguments]


def mosquitto_command(folder: Path, port: int) -> list[str]:
    """Return the command that starts mosquitto. Skips if it is not installed."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    config = folder / f"mosquitto-{port}.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest stderr\nlog_type information\n"
        "connection_messages false\nset_tcp_nodelay true\nmax_queued_messages 100000\n",
        encoding="utf-8",
    )
    return [MOSQUITTO, "-c", str(config)]


class Net:
    """Everything that a test starts."""

    def __init__(self, stack: AsyncExitStack, folder: Path, aedes: Callable[[], int]) -> None:
        self._stack = stack
        self._folder = folder
        self._aedes = aedes
        self._fences = 0

    # -- brokers -------------------------------------------------------------------------------------------------------

    async def canopy(self, port: int = 0, **sections: Any) -> Broker:
        """A Canopy in this process."""
        # Whoever is a link in these tests may be one.
        federation = {"link_client_ids": ["*"], **sections.pop("federation", {})}
        settings = Settings(**{"listen": (f"mqtt://127.0.0.1:{port}",), **BRIEF, "federation": federation, **sections})
        return await self._stack.enter_async_context(Broker(settings))

    async def edge(self, *links: dict[str, Any], **sections: Any) -> Broker:
        """A Canopy with these links (see `link`)."""
        return await self.canopy(upstream=links, **sections)

    async def upstream(self, kind: str) -> Place:
        """A broker to be linked to."""
        if kind == "canopy":
            broker = await self.canopy()
            return Place(kind, broker.ports[0], broker)
        if kind == "aedes":
            return Place(kind, self._aedes())
        return await self.process(kind)

    async def process(self, kind: str) -> Place:
        """The same as a process that can be killed; `place.process.end()`, `place.process.start()`."""
        port = free_port()
        if kind == "mosquitto":
            process = Process(mosquitto_command(self._folder, port), " running")
        elif kind == "aedes":
            process = Process(aedes_command(self._folder, str(port)), "listening on ")
        else:
            serve = [sys.executable, "-P", "-m", "canopy_mqtt", "serve", "--listen", f"mqtt://127.0.0.1:{port}"]
            serve += ["--set", 'federation.link_client_ids=["*"]']
            process = Process([*serve, "--log-level", "error"], '"started"')
        self._stack.push_async_callback(process.end)
        await process.start()
        return Place(kind, port, None, process)

    async def scripted(self, script: S) -> S:
        """An upstream broker that the test plays."""
        await self._stack.enter_async_context(script)
        return script

    async def proxy(self, port: int, greet: Callable[[ProxiedConnection], None] | None = None) -> FaultProxy:
        """A bad network in front of a port."""
        return await self._stack.enter_async_context(FaultProxy(port, greet))

    def cleanup(self, end: Callable[[], Awaitable[None]]) -> None:
        """End something after the test, before all that was started earlier."""
        self._stack.push_async_callback(end)

    def later(self, seconds: float) -> None:
        """Let so much time pass at once, for everything in this process: what falls due by then is due now."""
        loop = asyncio.get_running_loop()
        before = loop.time

        def time() -> float:
            return before() + seconds

        loop.time = time  # type: ignore[method-assign]
        self._stack.callback(setattr, loop, "time", before)

    # -- clients -------------------------------------------------------------------------------------------------------

    async def join(
        self,
        at: Broker | Place | int,
        client_id: str,
        *filters: str | tuple[str, int],
        version: int = 0,
        **options: Any,
    ) -> Peer:
        """A connected client with these subscriptions; a filter alone asks for QoS 1."""
        if isinstance(at, Place):
            port, level = at.port, version or at.version
        else:
            port, level = at if isinstance(at, int) else at.ports[0], version or 5
        peer = await Peer.open("127.0.0.1", port, level)
        self._stack.callback(peer.abort)
        await peer.send(wire.connect(client_id, version=level, **options))
        peer.connack = await peer.expect(wire.CONNACK)
        assert peer.connack.code == 0, peer.connack
        if filters:
            wanted = [item if isinstance(item, tuple) else (item, 1) for item in filters]
            assert all(code < 0x80 for code in await peer.subscribe(*wanted))
        return peer

    # -- fences --------------------------------------------------------------------------------------------------------

    async def down(
        self, above: Peer, *below: Peer, least: Sequence[int] = (), qos: int = 1, remote: str = "", local: str = ""
    ) -> list[list[Packet]]:
        """Everything that each of `below`, clients of an edge, got until now of what `above` caused upstream.

        The fence is a retained message above that they subscribe to below: a filter that is asked for after all that
        were asked for before, and a message that comes after all others.

        But for retained ones of aedes, which sends those of two subscriptions side by side: `least` is how many have to
        come for each of `below`, before the fence or after it."""
        self._fences += 1
        topic = f"fence/{self._fences}"
        await above.publish(remote + topic, b"fence", qos=qos, retain=True)
        for peer in below:
            assert await peer.subscribe((local + topic, qos)) == (qos,)
        found = [await before(peer, local + topic) for peer in below]
        for peer, messages, count in zip(below, found, least or [0] * len(below), strict=True):
            while len(messages) < count:
                message = await peer.message()
                # Aedes may send the fence twice: as it comes, and as the retained one.
                if message.topic != local + topic:
                    messages.append(message)
        return found

    async def up(
        self, below: Peer, *above: Peer, qos: int = 1, remote: str = "", local: str = ""
    ) -> list[list[Packet]]:
        """Everything that each of `above`, clients upstream, got until now of what `below` caused at an edge.

        The link must have `fence/#` among what it publishes."""
        self._fences += 1
        topic = f"fence/{self._fences}"
        for peer in above:
            assert await peer.subscribe((remote + topic, qos)) == (qos,)
        await below.publish(local + topic, b"fence", qos=qos)
        return [await before(peer, remote + topic) for peer in above]


def link(to: Broker | Place | FaultProxy | ScriptedUpstream | int, name: str = "up", **keys: Any) -> dict[str, Any]:
    """An `[[upstream]]` table."""
    port = to.ports[0] if isinstance(to, Broker) else to if isinstance(to, int) else to.port
    return {"name": name, "url": f"mqtt://127.0.0.1:{port}", **QUICK, **keys}


async def before(peer: Peer, topic: str) -> list[Packet]:
    """The messages up to the first with this topic, which is not among them; nor are earlier fences that come again."""
    found = []
    while (message := await peer.message()).topic != topic:
        if "fence/" not in message.topic:
            found.append(message)
    return found


def pairs(messages: list[Packet]) -> list[tuple[str, bytes]]:
    """Topic and payload of each message."""
    return [(message.topic, message.payload) for message in messages]


async def codes(peer: Peer, wanted: int, topic: str, qos: int = 1) -> None:
    """Publish to a topic upstream until the acknowledgement has this reason code: for what a link takes back, of which
    no message tells. Each attempt is one more message."""
    async with asyncio.timeout(wire.TIMEOUT):
        answer = -1
        while answer != wanted:
            answer = await peer.publish(topic, b"probe", qos=qos)


async def told(peer: Peer, topic: str, condition: Callable[[str], object]) -> str:
    """The first value of a `$SYS` topic that is as it should be. The peer has to be there for nothing else."""
    await peer.subscribe((topic, 0))
    seen = []
    try:
        while True:
            message = await peer.message()
            if message.topic == topic:
                seen.append(message.payload.decode())
                if condition(seen[-1]):
                    return seen[-1]
    except TimeoutError:
        raise AssertionError(f"{topic} never became what it should: {seen}") from None


async def until(what: str, condition: Callable[[], object]) -> None:
    """Wait for something in a broker of this process, for which there is no event."""
    await waiting.until(condition, what)


async def still(*brokers: Broker) -> None:
    """Wait until no message moves any more between brokers of this process. In vain where one goes round for ever."""
    calm = 0
    last: list[int] = []
    try:
        async with asyncio.timeout(wire.TIMEOUT):
            while calm < 10:
                now = [broker.router.counters.messages_received for broker in brokers]
                now += [broker.router.counters.messages_sent for broker in brokers]
                calm = calm + 1 if now == last else 0
                last = now
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"messages still move between the brokers: {last}") from None
