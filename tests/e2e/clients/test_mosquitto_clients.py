"""mosquitto_pub and mosquitto_sub, the clients that most people try a broker with first, in both versions."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.clients.conftest import Served, Unique
from tests.e2e.clients.python.drivers import PATIENCE, within

PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")

# Into a pipe, mosquitto_sub keeps back what it prints until it has a block of it.
BY_LINES = ("stdbuf", "-oL", str(SUB))

pytestmark = pytest.mark.skipif(not PUB or not SUB, reason="mosquitto_pub and mosquitto_sub are not installed")

VERSIONS = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"], ids=["3.1.1", "5.0"])


async def run(program: str | None, daemon: Served, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run a client to its end, which must be a success; what it printed."""
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        *("-h", "127.0.0.1", "-p", str(daemon.port)),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await within(f"the end of {arguments}", process.communicate(stdin))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (arguments, out[-300:], err)
    assert err == b""
    return out


async def publish(daemon: Served, *arguments: str, stdin: bytes = b"") -> None:
    """mosquitto_pub."""
    await run(PUB, daemon, *arguments, stdin=stdin)


class Subscriber:
    """A mosquitto_sub that has its SUBACK, and prints what it gets as it gets it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """The next line that it prints, except what its debugging tells."""
        assert self.process.stdout is not None
        while True:
            line = (await within("a line of mosquitto_sub", self.process.stdout.readline())).decode()
            assert line, f"mosquitto_sub has ended: {self.process.returncode}"
            if not line.startswith(("Client ", "Subscribed ")):
                return line.rstrip("\n")

    async def subscribed(self) -> None:
        """Wait for its SUBACK."""
        assert self.process.stdout is not None
        while not (line := await within("SUBACK", self.process.stdout.readline())).startswith(b"Subscribed"):
            assert line, "mosquitto_sub has ended"

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Stop it: with SIGTERM it says DISCONNECT, with SIGKILL it is cut off.

        It says DISCONNECT inside its signal handler and takes mutexes there, so a SIGTERM that comes while it works
        can lock it up for good: it gets one only while it waits for something to come.
        """
        if number == signal.SIGTERM:
            await asyncio.to_thread(_wait_until_it_sleeps, self.process.pid)
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.ended()

    async def ended(self) -> None:
        """Wait until it has ended, by itself or not."""
        await within("the end of mosquitto_sub", self.process.wait())


def _wait_until_it_sleeps(process_id: int) -> None:
    """The kernel has no event for it. It has one thread, and its output is always read."""
    status = Path(f"/proc/{process_id}/stat")
    deadline = time.monotonic() + PATIENCE
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] not in "SZ":
        assert time.monotonic() < deadline, "mosquitto_sub is busy"
        time.sleep(0.001)


@asynccontextmanager
async def subscriber(daemon: Served, *arguments: str) -> AsyncIterator[Subscriber]:
    """Start mosquitto_sub and wait for its SUBACK."""
    process = await asyncio.create_subprocess_exec(
        *BY_LINES,
        *("-d", "-h", "127.0.0.1", "-p", str(daemon.port)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 22,
    )
    found = Subscriber(process)
    try:
        await found.subscribed()
        yield found
    finally:
        await found.end()
        assert process.stdout is not None
        await process.stdout.read()


@VERSIONS
@pytest.mark.parametrize("qos", ["0", "1", "2"])
async def test_what_is_published_is_printed(daemon: Served, unique: Unique, version: str, qos: str) -> None:
    topic = unique("news")
    async with subscriber(daemon, "-V", version, "-q", qos, "-t", f"{topic}/#", "-F", "%t|%q|%r|%p") as reader:
        await publish(daemon, "-V", version, "-q", qos, "-t", f"{topic}/grüße/世界", "-m", "hello ¡hola! 🌍")
        assert await reader.line() == f"{topic}/grüße/世界|{qos}|0|hello ¡hola! 🌍"


@VERSIONS
async def test_a_thousand_lines(daemon: Served, unique: Unique, version: str) -> None:
    """`mosquitto_pub -l` publishes each line of its input, here with QoS 2."""
    topic, count = unique("lines"), 1000
    reading = asyncio.create_task(_count(daemon, topic, version, count))
    stdin = b"".join(b"%d\n" % number for number in range(count))
    reader = await reading
    try:
        await publish(daemon, "-V", version, "-q", "2", "-t", topic, "-l", stdin=stdin)
        found = [await reader.line() for _ in range(count)]
        await reader.ended()
    finally:
        await reader.end()
    assert found == [str(number) for number in range(count)]


async def _count(daemon: Served, topic: str, version: str, count: int) -> Subscriber:
    process = await asyncio.create_subprocess_exec(
        *BY_LINES,
        *("-d", "-h", "127.0.0.1", "-p", str(daemon.port), "-V", version, "-q", "2", "-t", topic, "-C", str(count)),
        stdout=asyncio.subprocess.PIPE,
    )
    found = Subscriber(process)
    await found.subscribed()
    return found


@VERSIONS
async def test_retained_messages(daemon: Served, unique: Unique, version: str) -> None:
    """Set, replaced, read by `-C 1`, cleared by `-n -r`."""
    topic, fence = unique("kept"), unique("fence")
    for payload in ("old", "new"):
        await publish(daemon, "-V", version, "-r", "-q", "1", "-t", topic, "-m", payload)
    arguments = ("-V", version, "-t", topic, "-t", fence, "-C", "1", "-F", "%r %p")
    assert await run(SUB, daemon, *arguments) == b"1 new\n"
    await publish(daemon, "-V", version, "-r", "-q", "1", "-t", topic, "-n")
    await publish(daemon, "-V", version, "-r", "-q", "1", "-t", fence, "-m", "nothing else")
    assert await run(SUB, daemon, *arguments) == b"1 nothing else\n"
    await publish(daemon, "-V", version, "-r", "-q", "1", "-t", fence, "-n")


@VERSIONS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_the_will(daemon: Served, unique: Unique, version: str, number: signal.Signals) -> None:
    """Published when the client is killed, and when 5.0 asks for it: mosquitto_sub leaves with DISCONNECT 0x04 there.

    Not when a 3.1.1 client leaves in order.
    """
    topic, fence = unique("will"), unique("fence")
    will = ("--will-topic", topic, "--will-payload", "lost", "--will-qos", "1")
    async with subscriber(daemon, "-V", version, "-q", "1", "-t", topic, "-t", fence) as watcher:
        async with subscriber(daemon, "-V", version, "-t", unique("other"), *will) as mortal:
            await mortal.end(number)
        if number == signal.SIGKILL or version == "mqttv5":
            assert await watcher.line() == "lost"
        await publish(daemon, "-q", "1", "-t", fence, "-m", "the end")
        assert await watcher.line() == "the end"


@VERSIONS
async def test_a_kept_session(daemon: Served, unique: Unique, version: str) -> None:
    """`-c` and a client identifier: what came meanwhile is printed after the return."""
    topic, client_id = unique("missed"), unique("keeper")
    keep: tuple[str, ...] = ("-V", version, "-c", "-i", client_id, "-q", "1", "-t", topic)
    if version == "mqttv5":
        keep = (*keep, "-x", "3600")
    async with subscriber(daemon, *keep) as first:
        await publish(daemon, "-q", "1", "-t", topic, "-m", "live")
        assert await first.line() == "live"
        await first.end(signal.SIGTERM)
    for payload in ("one", "two", "three"):
        await publish(daemon, "-q", "1", "-t", topic, "-m", payload)
    assert await run(SUB, daemon, *keep, "-C", "3") == b"one\ntwo\nthree\n"


async def test_properties(daemon: Served, unique: Unique) -> None:
    """5.0: what a publisher attaches is printed by the subscriber's JSON output."""
    topic = unique("props")
    async with subscriber(daemon, "-V", "mqttv5", "-q", "1", "-t", topic, "-F", "%A|%C|%D|%P|%R|%p") as reader:
        properties = {
            "content-type": ["text/plain"],
            "correlation-data": ["42"],
            "response-topic": ["answers/here"],
            "user-property": ["first", "1"],
        }
        arguments = [part for name, values in properties.items() for part in ("-D", "publish", name, *values)]
        more = ("-D", "publish", "user-property", "second", "ñ")
        await publish(daemon, "-V", "mqttv5", "-q", "1", "-t", topic, "-m", "body", *arguments, *more)
        assert await reader.line() == "|text/plain|42|first:1 second:ñ|answers/here|body"


async def test_the_broker_tells_of_itself(daemon: Served) -> None:
    """$SYS, as people look at it."""
    out = await run(SUB, daemon, "-t", "$SYS/broker/version", "-C", "1")
    assert out.startswith(b"canopy ")
    out = await run(SUB, daemon, "-v", "-t", "$SYS/broker/clients/#", "-C", "2")
    assert out.count(b"$SYS/broker/clients/") == 2
