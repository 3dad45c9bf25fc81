"""The same mosquitto.conf in mosquitto and, converted, in Canopy: the same clients come in, and hear the same."""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from broker.configuration.reading import load_settings
from broker.convert import mosquitto
from canopy import Broker
from loadtest.brokers.process import free_port
from tests.e2e import wire
from tests.e2e.upstream.net import MOSQUITTO, Process
from tests.e2e.wire import CONNACK, PUBLISH, Closed, Peer

PASSWD: Final = shutil.which("mosquitto_passwd")

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(PASSWD is None, reason="mosquitto_passwd is not installed"),
]

PASSWORDS: Final = {"ann": "hunter2", "bob": "s3cret"}

ACL: Final = """\
topic read news/#
user ann
topic readwrite ann/#
topic deny ann/secret
pattern readwrite users/%u/#
"""

CLIENTS: Final = ((None, None), ("ann", "hunter2"), ("ann", "wrong"), ("bob", "s3cret"), ("eve", "x"), ("eve", None))
TOPICS: Final = ("news/today", "ann/desk", "ann/secret", "users/ann/x", "users/bob/x")

CONFS: Final = {
    "an open listener beside one with users": (
        "per_listener_settings true\n"
        "listener P 127.0.0.1\nallow_anonymous true\n"
        "listener Q 127.0.0.1\npassword_file FOLDER/passwd\nallow_anonymous false\n"
    ),
    "users": "listener P 127.0.0.1\npassword_file FOLDER/passwd\n",
    "users and guests": "password_file FOLDER/passwd\nallow_anonymous true\nlistener P 127.0.0.1\n",
    "everybody": "listener P 127.0.0.1\nallow_anonymous true\n",
    "nobody": "listener P 127.0.0.1\n",
    "rules": "listener P 127.0.0.1\npassword_file FOLDER/passwd\nacl_file FOLDER/acl\nallow_anonymous true\n",
    "the default listener": "bind_address 127.0.0.1\nport P\npassword_file FOLDER/passwd\nacl_file FOLDER/acl\n",
    "each listener for itself": (
        "per_listener_settings true\n"
        "listener P 127.0.0.1\npassword_file FOLDER/passwd\n"
        "listener Q 127.0.0.1\npassword_file FOLDER/passwd\nallow_anonymous true\n"
    ),
}


async def heard(port: int, user: str | None, password: str | None) -> list[str]:
    """What a client of 3.1.1 gets of messages that it sends to itself, topic by topic; "refused" when it is."""
    peer = await Peer.open("127.0.0.1", port, 4)
    try:
        data = None if password is None else password.encode()
        await peer.send(wire.connect("self", version=4, user=user, password=data))
        connack = await peer.expect(CONNACK)
        if connack.code != 0:
            return ["refused"]
        for topic in TOPICS:
            await peer.subscribe(topic)
            await peer.send(wire.publish(topic, b"x", version=4))
        return [str(packet.topic) for packet in await peer.fence() if packet.kind == PUBLISH]
    except Closed:
        return ["refused"]
    finally:
        peer.abort()


async def table(ports: list[int]) -> dict[str, list[str]]:
    return {
        f"{at} {user} {word}": await heard(port, user, word) for at, port in enumerate(ports) for user, word in CLIENTS
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acl").write_text(ACL)
    return tmp_path


@pytest.fixture
def ports() -> list[int]:
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            found.append(free_port())
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", found[-1]))
        return found


@pytest.mark.parametrize("name", CONFS)
async def test_the_same_clients_come_in_and_hear_the_same(name: str, folder: Path, ports: list[int]) -> None:
    assert MOSQUITTO is not None
    assert PASSWD is not None
    passwd = folder / "passwd"
    for user, password in PASSWORDS.items():
        create = [] if user != "ann" else ["-c"]
        process = await asyncio.create_subprocess_exec(PASSWD, *create, "-b", str(passwd), user, password)
        assert await process.wait() == 0
    conf, settings = folder / "mosquitto.conf", folder / "canopy.toml"
    # Started by root, it would become another user, who may not read here.
    text = CONFS[name].replace("FOLDER", str(folder)).replace(" P", f" {ports[0]}").replace(" Q", f" {ports[1]}")
    await asyncio.to_thread(conf.write_text, f"user root\n{text}")
    listening = ports[: 1 + (" Q" in CONFS[name])]

    theirs = Process([MOSQUITTO, "-c", str(conf)], "running")
    await theirs.start()
    try:
        expected = await table(listening)
    finally:
        await theirs.end()
    converted = await asyncio.to_thread(mosquitto.convert, conf)
    assert [guard for guard in converted.guards if "withholds a retained message" not in guard] == []
    await asyncio.to_thread(settings.write_text, converted.toml)
    ours = await asyncio.to_thread(
        load_settings, settings, ("security.failure_delay=0", "security.ban_after=0"), (), {}
    )
    async with Broker(ours) as broker:
        assert broker.ports == listening
        assert await table(listening) == expected


MOUNTED: Final = ("a/b", "x", "a", "mine/a")
"""Topics that a client of each of two listeners publishes to, one of which has the mount `mine/`. None with "$", which
mosquitto lets a tenant have."""


async def crossing(ports: list[int]) -> dict[str, list[str]]:
    """What the clients of two listeners hear of each other, live and retained, and of a will: under which names, by the
    second one, and which messages, by the first: mosquitto 2.0.11 does not take the mount off."""
    told: dict[str, list[str]] = {}
    peers = [await Peer.open("127.0.0.1", port, 4) for port in ports]
    try:
        for at, peer in enumerate(peers):
            await peer.send(wire.connect(f"peer-{at}", version=4, will=wire.Will("gone", b"x")))
            assert (await peer.expect(CONNACK)).code == 0
            for topic_filter in ("+/+", "#", "mine/#", "$x"):
                await peer.subscribe(topic_filter)
        for speaker in (0, 1):
            for retain in (False, True):
                for topic in MOUNTED:
                    await peers[speaker].send(wire.publish(topic, topic.encode(), version=4, retain=retain))
                await peers[speaker].fence()
                for listener in (0, 1):
                    told[f"{speaker} to {listener} {retain}"] = await _heard(peers[listener], listener == 1)
        for at, port in enumerate(ports):
            late = await Peer.open("127.0.0.1", port, 4)
            await late.send(wire.connect("late", version=4))
            await late.expect(CONNACK)
            await late.subscribe("#")
            told[f"late at {at}"] = await _heard(late, at == 1)
            late.abort()
        peers[0].abort()
        told["gone"] = [str((await peers[1].expect(PUBLISH)).topic)]
    finally:
        for peer in peers:
            peer.abort()
    return told


async def _heard(peer: Peer, named: bool) -> list[str]:
    """The messages that have come, each once: mosquitto sends one for each filter that matches."""
    came = [packet for packet in await peer.fence() if packet.kind == PUBLISH]
    return sorted({f"{packet.topic if named else ''} {packet.payload!r}" for packet in came})


async def test_a_mount_point_is_the_same(folder: Path, ports: list[int]) -> None:
    assert MOSQUITTO is not None
    conf, settings = folder / "mosquitto.conf", folder / "canopy.toml"
    mounted, outside = (f"listener {port} 127.0.0.1\n" for port in ports)
    text = f"user root\nallow_anonymous true\nsys_interval 0\n{mounted}mount_point mine/\n{outside}"
    await asyncio.to_thread(conf.write_text, text)
    theirs = Process([MOSQUITTO, "-c", str(conf)], "running")
    await theirs.start()
    try:
        expected = await crossing(ports)
    finally:
        await theirs.end()
    converted = await asyncio.to_thread(mosquitto.convert, conf)
    assert converted.guards == ()
    await asyncio.to_thread(settings.write_text, converted.toml)
    ours = await asyncio.to_thread(load_settings, settings, (), (), {})
    async with Broker(ours) as broker:
        assert broker.ports == ports
        assert await crossing(ports) == expected


async def test_a_bridge_loses_nothing_over_a_restart_and_tells_its_state(folder: Path, ports: list[int]) -> None:
    """With mosquitto's defaults: what was published upstream meanwhile comes; the upstream knows the link's state."""
    assert MOSQUITTO is not None
    there, here = ports
    upstream, conf, settings = folder / "upstream.conf", folder / "mosquitto.conf", folder / "canopy.toml"
    await asyncio.to_thread(upstream.write_text, f"user root\nlistener {there} 127.0.0.1\nallow_anonymous true\n")
    text = (
        f"listener {here} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {folder}/\n"
        f"connection up\naddress 127.0.0.1:{there}\ntopic t/# in 1\n"
    )
    await asyncio.to_thread(conf.write_text, text)
    converted = await asyncio.to_thread(mosquitto.convert, conf)
    assert (converted.guards, converted.missing) == ((), ())
    await asyncio.to_thread(settings.write_text, converted.toml)
    ours = await asyncio.to_thread(load_settings, settings, (), (), {})
    kept: Any = {"clean": False, "props": [(wire.SESSION_EXPIRY, 1_000)]}
    theirs = Process([MOSQUITTO, "-c", str(upstream)], "running")
    await theirs.start()
    try:
        source = await Peer.join(there, "source", ("$SYS/broker/connection/+/state", 0))
        await source.publish("t/ready", b"x", qos=1, retain=True)
        async with Broker(ours):
            reader = await Peer.join(here, "reader", ("t/#", 1), **kept)
            assert (await reader.message()).topic == "t/ready"
            told = await source.message()
            assert (told.topic, told.payload) == (f"$SYS/broker/connection/{socket.gethostname()}.up/state", b"1")
            await reader.disconnect()
        for at in range(5):
            await source.publish("t/x", b"%d" % at, qos=1)
        async with Broker(ours):
            reader = await Peer.join(here, "reader", **kept)
            came = [(await reader.message()).payload]
            while came[-1] != b"4":
                came.append((await reader.message()).payload)
            # A new subscription upstream brings what is retained there, as mosquitto's bridge has it too.
            assert [payload for payload in came if payload != b"x"] == [b"%d" % at for at in range(5)]
            await reader.disconnect()
        source.abort()
    finally:
        await theirs.end()
