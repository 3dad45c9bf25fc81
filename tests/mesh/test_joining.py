"""Brokers that become nodes, on Zenoh: a client that comes as soon as it can reaches the clients of all nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.app import Broker, StartupError
from broker.mesh.zenoh.session import MeshSession
from broker.settings import Settings
from tests.e2e.wire import Peer
from tests.support.certificates import Authority
from tests.support.waiting import until


def settings(folder: Path, node: str, *connect: str, **mesh: Any) -> Settings:
    """A node with a store, which knows the way to some others."""
    return Settings.model_validate(
        {
            "listen": ["mqtt://127.0.0.1:0"],
            "store": {"path": str(folder / node)},
            "mesh": {
                "name": "one",
                "node": node,
                "listen": [f"unixsock-stream/{folder}/{node}.socket"],
                "connect": [f"unixsock-stream/{folder}/{other}.socket" for other in connect],
                **mesh,
            },
        }
    )


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def published_at_once(broker: Broker, payload: bytes) -> None:
    """By a client that comes as soon as it can."""
    peer = await Peer.join(broker.ports[0], "says")
    try:
        assert await peer.publish("x", payload, qos=1) < 0x80
    finally:
        peer.abort()


async def test_the_log_names_a_certificate_that_other_nodes_refuse(tmp_path: Path, stack: AsyncExitStack) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = other.issue("a")
    tls = {"ca_file": authority.file, "cert_file": certificate, "key_file": key}
    with capture_logs() as told:
        await stack.enter_async_context(Broker(settings(tmp_path, "a", **tls)))
    (line,) = [line["detail"] for line in told if line["event"] == "suspicious setting"]
    assert line.startswith(f"mesh.cert_file {certificate}: no authority in mesh.ca_file {authority.file} has signed it")


async def test_a_node_that_hears_while_it_starts_that_another_has_its_name_does_not_serve(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it reaches the other one only when it has looked who is there; the one that was first stays."""
    first = await stack.enter_async_context(Broker(settings(tmp_path, "b")))
    (tmp_path / "again").mkdir()
    place = f"unixsock-stream/{tmp_path}/b.socket"
    # It knows of a node that does not come, and waits for it.
    monkeypatch.setattr(MeshSession, "_look_who_is_there", lambda own, _: own.seen.append("c"))
    again = Broker(settings(tmp_path / "again", "b", connect=[place], node_timeout=3_600))
    with pytest.raises(StartupError, match="another process is the node 'b' of the mesh 'one' already"):
        async with again:
            raise AssertionError("it serves")
    assert again.ports == []
    assert again.mesh is None
    assert not first.stopping


async def test_a_node_that_starts_again(tmp_path: Path, stack: AsyncExitStack) -> None:
    """The others have to come to it; it knows from before who they are."""
    b = Broker(settings(tmp_path, "b", "a"))
    async with Broker(settings(tmp_path, "a")) as a:
        await stack.enter_async_context(b)
        await until(lambda: b.mesh is not None and b.mesh.not_ready() == [] and len(b.mesh.links) == 1)
        hears = await Peer.join(b.ports[0], "hears", ("x", 1))
        stack.callback(hears.abort)
        await published_at_once(a, b"1")
        assert (await hears.message()).payload == b"1"
    a = await stack.enter_async_context(Broker(settings(tmp_path, "a")))
    await published_at_once(a, b"2")
    assert (await hears.message()).payload == b"2"


async def test_a_node_that_does_not_come_is_not_waited_for_longer_than_its_time(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    async with (
        Broker(settings(tmp_path, "a", node_timeout=0.5)) as a,
        Broker(settings(tmp_path, "b", "a", node_timeout=0.5)) as b,
    ):
        await until(lambda: b.mesh is not None and b.mesh.not_ready() == [] and len(b.mesh.links) == 1)
        await published_at_once(a, b"1")
    a = await stack.enter_async_context(Broker(settings(tmp_path, "a", node_timeout=0.5)))
    await published_at_once(a, b"2")
