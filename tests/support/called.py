"""The functions of the broker that a packet passes, in the order of their calls.

`python -P -m tests.support.called` walks the ways of docs/architecture.md through a broker that runs from the source (a
compiled one calls its functions unseen), and prints JSON. `ways`: for each way, without a store and with one, a list of
[file below `broker/canopy_mqtt/`, function] in the order of the first calls. `calls`: each call for a single packet of
a way, by the name of the way (`counted`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import canopy_mqtt
from canopy_mqtt import Broker, Settings
from tests.e2e import wire
from tests.support.waiting import until

ROOT = Path(canopy_mqtt.__file__).parent

Calls = list[tuple[str, str]]

TIMES = 5
"""Packets that are counted on each way; the one with the fewest calls had no timer in between."""


@contextmanager
def called() -> Iterator[Calls]:
    """Record each call of a function of the broker."""
    found: Calls = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            found.append((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def join(running: Broker, client_id: str, clean: bool = True) -> wire.Peer:
    """A client whose session, and whose will, go when its connection was lost for an hour."""
    will = wire.Will("will", properties=[(wire.WILL_DELAY, 3600)])
    props = [(wire.SESSION_EXPIRY, 3600)]
    return await wire.Peer.join(running.ports[0], client_id, clean=clean, props=props, will=will)


def is_away(running: Broker, client_id: str) -> bool:
    """Return whether a session has no client."""
    return running.router.sessions[client_id].send_buffer is None


async def connected(running: Broker) -> Calls:
    """A QoS 0 PUBLISH to connected subscribers: to one, of a new topic; to two, a burst, and with a property."""
    one, other, publisher = [await join(running, name) for name in ("one", "other", "publisher")]
    await one.subscribe("to/one", "to/two")
    await other.subscribe("to/two")
    with called() as calls:
        for _ in range(2):
            await publisher.send(wire.publish("to/one", b"x"))
            await one.message()
        await publisher.send(wire.publish("to/two", b"x") * 2)
        await publisher.send(wire.publish("to/two", b"x", props=[(wire.MESSAGE_EXPIRY, 60)]))
        for peer in (one, other):
            for _ in range(3):
                await peer.message()
    return calls


async def away(running: Broker) -> Calls:
    """A QoS 1 PUBLISH to a session whose client is away, and the client's return."""
    client, publisher = await join(running, "away"), await join(running, "publisher")
    await client.subscribe(("to/away", 1))
    client.abort()
    await until(lambda: is_away(running, "away"))
    with called() as calls:
        for number in (1, 2):
            await publisher.send(wire.publish("to/away", b"x", qos=1, packet_id=number))
            await publisher.expect(wire.PUBACK)
        client = await join(running, "away", clean=False)
        await client.message()
    return calls


async def subscribe(running: Broker) -> Calls:
    """A SUBSCRIBE that a retained message matches."""
    client, publisher = await join(running, "client"), await join(running, "publisher")
    await publisher.send(wire.publish("kept", b"x", retain=True))
    await publisher.fence()
    with called() as calls:
        await client.subscribe("kept")
        await client.message()
    return calls


async def lost(running: Broker) -> Calls:
    """A lost connection, and the session's end an hour later."""
    client = await join(running, "lost")
    await client.subscribe("t")
    with called() as calls:
        client.abort()
        await until(lambda: is_away(running, "lost"))
        running.router.tick(running.loop.time() + 4000.0)
        await until(lambda: "lost" not in running.router.sessions)
    return calls


async def fewest(act: Callable[[int], Awaitable[None]]) -> Calls:
    """Record the calls of an action, several times, each with its number; return those of the time with the fewest."""
    found = []
    for number in range(1, TIMES + 1):
        with called() as calls:
            await act(number)
        # The wheel turns by itself, whatever the clients do.
        found.append([call for call in calls if not call[1].startswith("TimerWheel._turn")])
    return min(found, key=len)


async def counted(running: Broker) -> dict[str, Calls]:
    """Record the calls for one packet of each way, to a topic that is known."""
    found = {}
    one, publisher = await join(running, "one"), await join(running, "publisher")

    async def qos0(number: int) -> None:
        await publisher.send(wire.publish("to/one", b"%d" % number))
        await one.message()

    await one.subscribe("to/one")
    found["QoS 0 PUBLISH to one subscriber"] = await fewest(qos0)

    async def qos1(number: int) -> None:
        await publisher.send(wire.publish("to/away", b"x", qos=1, packet_id=number))
        await publisher.expect(wire.PUBACK)

    gone = await join(running, "away")
    await gone.subscribe(("to/away", 1))
    gone.abort()
    await until(lambda: is_away(running, "away"))
    found["QoS 1 PUBLISH to an absent session"] = await fewest(qos1)

    for number in range(2 * TIMES + 2):
        await publisher.send(wire.publish(f"kept/{number // 2}/{number % 2}", b"x", retain=True))
    await publisher.fence()
    clients = [await join(running, f"client {number}") for number in range(TIMES)]

    async def kept(number: int) -> None:
        client = clients[number - 1]
        await client.subscribe(f"kept/{number}/#")
        for _ in range(2):
            await client.message()

    found["SUBSCRIBE that two retained messages match"] = await fewest(kept)

    will = wire.Will("to/one")
    losing = [await wire.Peer.join(running.ports[0], f"lost {number}", will=will) for number in range(TIMES)]
    for number, client in enumerate(losing):
        await client.subscribe(f"of/{number}")

    async def end(number: int) -> None:
        losing[number - 1].abort()
        await one.message()
        await until(lambda: f"lost {number - 1}" not in running.router.sessions)

    found["lost connection with a will"] = await fewest(end)
    return found


async def main() -> None:
    """Each way through two brokers of its own, without a store and with one."""
    found = []
    quiet: dict[str, Any] = {"listen": ["mqtt://127.0.0.1:0"], "shutdown": {"flush_timeout": 0.0}}
    async with Broker(Settings.model_validate({**quiet, "top": {"counters": 0}})) as running:
        calls = await counted(running)
    with tempfile.TemporaryDirectory() as folder:
        for way in (connected, away, subscribe, lost):
            for path in ("", folder):
                async with Broker(Settings.model_validate({**quiet, "store": {"path": path}})) as running:
                    found.append(list(dict.fromkeys(await way(running))))
    print(json.dumps({"ways": found, "calls": calls}))


if __name__ == "__main__":
    asyncio.run(main())
