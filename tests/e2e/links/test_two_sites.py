"""The two settings files of docs/cluster.md, each in a broker of its own process: what the page says of two sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from canopy_load.brokers.process import free_port
from tests.docs.blocks import BLOCKS
from tests.e2e.links.network import before, pairs
from tests.e2e.wire import SESSION_EXPIRY, Peer
from tests.support.daemon import Daemon

SITE_A, SITE_B = (
    block.text for block in BLOCKS if block.page == "cluster" and block.language == "toml" and "site-" in block.text
)
REMOTE: Final = "mqtt://site-b.example.org:1883"
FOLDER: Final = "/var/lib/canopy/store"
STAYS: Final[dict[str, Any]] = {"clean": False, "props": ((SESSION_EXPIRY, 3_600),)}
"""A client whose session stays while it is away."""


class Sites:
    """The brokers of both sites, by name: each can be ended and started again."""

    def __init__(self, folder: Path) -> None:
        self.port_of_b = free_port()
        self.running: dict[str, Daemon] = {}
        self.clients: list[Peer] = []
        self._files = {name: folder / f"{name}.toml" for name in "ab"}
        # Only what is of another machine than this one is replaced.
        for name, text in (("a", SITE_A), ("b", SITE_B)):
            assert text.count(FOLDER) == 1
            self._files[name].write_text(text.replace(FOLDER, str(folder / name)).replace(REMOTE, self._remote()))
        assert SITE_A.count(REMOTE) == 1

    def _remote(self) -> str:
        return f"mqtt://127.0.0.1:{self.port_of_b}"

    async def start(self, name: str) -> None:
        """Start the broker of a site."""
        more = ("--listen", self._remote()) if name == "b" else ()
        self.running[name] = await asyncio.to_thread(Daemon, "--config", str(self._files[name]), *more)

    async def stop(self, name: str) -> None:
        """End it in order."""
        code, _ = await asyncio.to_thread(self.running.pop(name).end)
        assert code == 0

    async def join(self, name: str, client_id: str, *filters: tuple[str, int], **options: Any) -> Peer:
        """A client of a site."""
        peer = await Peer.join(self.running[name].port, client_id, *filters, **options)
        self.clients.append(peer)
        return peer

    async def linked(self) -> None:
        """Return when the link is up, and asks for all that it should."""
        writer = await self.join("b", "first")
        await writer.publish("site/b/first", b"1", qos=1, retain=True)
        reader = await self.join("a", "first", ("site/b/first", 1))
        assert pairs([await reader.message()]) == [("site/b/first", b"1")]


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[Sites]:
    both = Sites(tmp_path)
    yield both
    for peer in both.clients:
        peer.abort()
    for daemon in both.running.values():
        await asyncio.to_thread(daemon.close)


async def test_live_and_retained_messages_cross_once_in_both_directions(sites: Sites) -> None:
    await sites.start("b")
    await sites.start("a")
    await sites.linked()
    readers = {name: await sites.join(name, "reader", ("site/#", 2)) for name in "ab"}
    for reader in readers.values():
        assert pairs([await reader.message()]) == [("site/b/first", b"1")]
    sent: dict[str, list[tuple[str, bytes]]] = {}
    for name in "ab":
        writer = await sites.join(name, "writer")
        for qos in (0, 1, 2):
            await writer.publish(f"site/{name}/live", b"%d" % qos, qos=qos)
            await writer.publish(f"site/{name}/state/{qos}", b"on", qos=qos, retain=True)
        sent[name] = [
            message
            for qos in (0, 1, 2)
            for message in ((f"site/{name}/live", b"%d" % qos), (f"site/{name}/state/{qos}", b"on"))
        ]
    # Behind the second fence of a site nothing of the other one can come back any more.
    found: dict[str, list[tuple[str, bytes]]] = {"a": [], "b": []}
    for fence in ("site/a/fence/1", "site/b/fence/1", "site/a/fence/2", "site/b/fence/2"):
        writer = await sites.join(fence[5], fence)
        await writer.publish(fence, qos=1)
        for name, reader in readers.items():
            found[name] += pairs(await before(reader, fence))
    for name, reader in readers.items():
        for owner in "ab":
            assert [message for message in found[name] if message[0].startswith(f"site/{owner}/")] == sent[owner]
        assert pairs(await reader.fence()) == []
        late = await sites.join(name, "late", ("site/+/state/+", 1))
        states = sorted(pairs([await late.message() for _ in range(6)]))
        assert states == sorted(message for owner in "ab" for message in sent[owner] if "state" in message[0])
        assert pairs(await late.fence()) == []


@pytest.mark.parametrize(("away", "here"), ["ab", "ba"])
async def test_what_a_site_misses_waits_at_the_other_one(sites: Sites, away: str, here: str) -> None:
    """Also what is retained; and what the other one retained is there meanwhile."""
    await sites.start("b")
    await sites.start("a")
    await sites.linked()
    absent = await sites.join(away, "absent", ("site/#", 1), **STAYS)
    await absent.message()
    writer = await sites.join(away, "writer")
    await writer.publish(f"site/{away}/state", b"on", qos=1, retain=True)
    reader = await sites.join(here, "reader", (f"site/{away}/state", 1))
    assert pairs([await reader.message()]) == [(f"site/{away}/state", b"on")]
    assert pairs([await absent.message()]) == [(f"site/{away}/state", b"on")]
    await sites.stop(away)
    late = await sites.join(here, "late", (f"site/{away}/state", 1))
    assert pairs([await late.message()]) == [(f"site/{away}/state", b"on")]
    writer = await sites.join(here, "writer")
    await writer.publish(f"site/{here}/live", b"1", qos=1)
    await writer.publish(f"site/{here}/state", b"off", qos=1, retain=True)
    await sites.start(away)
    back = await sites.join(away, "absent", **STAYS)
    assert pairs([await back.message(), await back.message()]) == [
        (f"site/{here}/live", b"1"),
        (f"site/{here}/state", b"off"),
    ]
    fresh = await sites.join(away, "fresh", (f"site/{here}/state", 1))
    assert pairs([await fresh.message()]) == [(f"site/{here}/state", b"off")]
    # The link asks for the retained messages again when site a has started.
    again = [] if away == "b" else [(f"site/{here}/state", b"off")]
    assert pairs(await back.fence()) in ([], again)
