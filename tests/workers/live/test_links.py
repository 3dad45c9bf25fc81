"""Links to upstream brokers of a broker with workers: one worker has them for all."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import aiohttp
import pytest

from tests.e2e import wire
from tests.e2e.wire import PUBACK, Closed, Peer
from tests.support.daemon import Daemon
from tests.support.waiting import until
from tests.workers.live.test_serving import LONG

CLIENTS: Final = 8
"""So many that each worker has some."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def upstream() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(upstream: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("links")
    config = folder / "canopy.toml"
    config.write_text(
        f"""
        [http]
        listen = ["http+unix://{folder}/http"]
        [workers]
        drain_timeout = 1
        [[upstream]]
        name = "up"
        url = "{upstream.url}"
        publish = ["up/#"]
        """
    )
    with Daemon("--config", str(config), "--workers", "3", patience=LONG) as running:
        yield running


async def test_what_clients_of_any_worker_publish_goes_up_once(daemon: Daemon, upstream: Daemon) -> None:
    there = await Peer.join(upstream.port, "there", ("up/#", 2))
    for at in range(CLIENTS):
        here = await Peer.join(daemon.port, f"here-{at}")
        await here.publish("up/x", b"%d" % at, qos=at % 3)
        await here.publish("elsewhere", b"stays", qos=1)
        assert (await there.message()).payload == b"%d" % at
        await here.disconnect()
    assert await there.fence() == []
    there.abort()


async def test_what_clients_of_any_worker_ask_for_comes_down_once(daemon: Daemon, upstream: Daemon) -> None:
    here = [await Peer.join(daemon.port, f"here-{at}", ("down/all", 1), (f"down/{at}", 1)) for at in range(CLIENTS)]
    there = await Peer.join(upstream.port, "there")
    for at, peer in enumerate(here):
        # Nobody tells when the link has asked for it.
        while await there.publish(f"down/{at}", b"own", qos=1) != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await peer.message()).payload == b"own"
    await there.publish("down/all", b"all", qos=1)
    for peer in here:
        assert (await peer.message()).payload == b"all"
        assert await peer.fence() == []
        peer.abort()
    there.abort()


async def test_the_link_is_shown_whichever_worker_has_it(daemon: Daemon) -> None:
    (url,) = daemon.started["http"]
    connector = aiohttp.UnixConnector(url.removeprefix("http+unix://"))
    async with aiohttp.ClientSession(connector=connector) as session:
        for _ in range(4):
            async with session.get("http://canopy/api/v5/upstreams") as answer:
                (link,) = json.loads(await answer.text())["data"]
                assert (link["name"], link["state"]) == ("up", "connected")


async def acknowledged(daemon: Daemon, name: str, over: asyncio.Event, found: list[bytes]) -> None:
    """Publish with QoS 1 until it is over, whatever happens to the connection, and find what was acknowledged."""
    number = 0
    while not over.is_set():
        peer = await Peer.join(daemon.port, name)
        try:
            while not over.is_set():
                payload = f"{name}/{number}".encode()
                number += 1
                await peer.send(wire.publish("up/busy", payload, qos=1, packet_id=1))
                code = (await peer.wait_for(PUBACK)).code
                assert code == 0, "nobody took it"
                found.append(payload)
                await asyncio.sleep(0.002)
        except (Closed, ConnectionError):
            pass
        finally:
            peer.abort()


async def test_nothing_acknowledged_is_lost_while_the_worker_with_the_links_is_restarted(
    daemon: Daemon, upstream: Daemon
) -> None:
    """At the others it waits until the worker is back."""
    there = await Peer.join(upstream.port, "there", ("up/busy", 1))
    over = asyncio.Event()
    sent: list[bytes] = []
    tasks = [asyncio.create_task(acknowledged(daemon, f"p{at}", over, sent)) for at in range(6)]
    got: list[bytes] = []

    async def hear() -> None:
        while True:
            got.append((await there.message()).payload)

    hearing = asyncio.create_task(hear())
    await until(lambda: len(sent) > 300)
    daemon.process.send_signal(signal.SIGUSR2)
    await asyncio.to_thread(daemon.until, "rolling restart done")
    after = len(sent)
    await until(lambda: len(sent) > after + 300)
    over.set()
    await asyncio.gather(*tasks)
    await until(lambda: len(got) >= len(sent))
    await until(lambda: not set(sent) - set(got))
    hearing.cancel()
    there.abort()


def test_a_reload_takes_links_away_and_brings_them_back(daemon: Daemon) -> None:
    arguments = [str(each) for each in cast("list[str]", daemon.process.args)]
    config = Path(arguments[arguments.index("--config") + 1])
    text = config.read_text()
    config.write_text(text.split("[[upstream]]")[0])
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until("upstream removed")
    config.write_text(text)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until("upstream connected")
