"""Which functions of the broker a packet passes, in the order in which they are first called.

`python -P -m tests.support.called` walks the ways of docs/architecture.md through a broker that runs from the source (a
compiled one calls its functions unseen), and prints them as JSON: for each way, without a store and with one, a
list of [file below `broker/`, function].
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import broker
from canopy import Broker, Settings
from tests.e2e import wire
from tests.support.waiting import until

ROOT = Path(broker.__file__).parent

Calls = dict[tuple[str, str], None]


@contextmanager
def called() -> Iterator[Calls]:
    """The functions that are called meanwhile."""
    found: Calls = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            found.setdefault((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

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
    """Whether a session has no client."""
    return running.router.sessions[client_id].outbox is None


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


async def main() -> None:
    """Each way through two brokers of its own, without a store and with one."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for way in (connected, away, subscribe, lost):
            for path in ("", folder):
                settings = {
                    "listen": ["mqtt://127.0.0.1:0"],
                    "shutdown": {"flush_timeout": 0.0},
                    "store": {"path": path},
                }
                async with Broker(Settings.model_validate(settings)) as running:
                    found.append(list(await way(running)))
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
