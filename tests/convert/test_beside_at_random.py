"""Random configurations in mosquitto and, converted, in Canopy: the same packets have the same effect.

Owns the configurations (listeners, users, rules, limits), the packets, and what may differ: `Told` keeps of each answer
what no page names as different. A configuration has up to three listeners, each a case of its own.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker
from canopy_mqtt.convert import mosquitto
from canopy_mqtt.settings.loader import load_settings
from tests.e2e import wire
from tests.e2e.links.network import MOSQUITTO, Process
from tests.e2e.wire import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Closed, Packet, Peer

PASSWD: Final = shutil.which("mosquitto_passwd")

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(PASSWD is None, reason="mosquitto_passwd is not installed"),
]

PACKETS: Final = 300
BATCH: Final = 20
"""Packets after which all clients read what has come for them."""

USERS: Final = {"ann": "hunter2", "bob": "s3cret"}
CREDENTIALS: Final = (
    *((None, None), ("ann", "hunter2"), ("bob", "s3cret")) * 3,
    ("ann", "wrong"), ("eve", "x"), ("eve", None), ("ann", ""),
)  # fmt: skip
TOPICS: Final = ("news/today", "ann/desk", "ann/secret", "users/ann/x", "users/bob/x", "c-1/y", "a", "a/b/c")
DISJOINT: Final = ("news/#", "ann/+", "users/+/x", "+/y", "a", "a/b/#")
OVERLAPPING: Final = (*DISJOINT, "#", "+/+", "users/ann/x", "ann/#")

RULES: Final = (
    "topic read news/#", "topic readwrite a/#", "topic write users/ann/x", "topic deny ann/secret", "user ann",
    "topic readwrite ann/#", "topic deny ann/secret", "topic read #", "user bob", "topic readwrite users/bob/x",
    "topic write #", "pattern readwrite users/%u/#", "pattern write %c/y", "pattern read #", "pattern deny ann/desk",
)  # fmt: skip

LIMITS: Final = (
    "allow_zero_length_clientid false",
    "auto_id_prefix self-",
    "clientid_prefixes c-",
    "max_inflight_messages 1",
    "max_inflight_messages 5",
    "max_keepalive 30",
    "max_queued_messages 5",
    "message_size_limit 40",
    "message_size_limit 0",
    "persistent_client_expiration 1d",
    "queue_qos0_messages true",
    "retain_available false",
    "upgrade_outgoing_qos true",
)


class Conf(NamedTuple):
    """A mosquitto.conf for some ports, and its rules; "": none."""

    lines: list[str]
    rules: str


def conf(chance: random.Random, ports: list[int], folder: Path) -> Conf:
    """Something that mosquitto 2.0 takes, and of which Canopy has all, or names what it has not."""
    limits = {line.split()[0]: line for line in chance.sample(LIMITS, chance.randint(0, 4))}
    if "queue_qos0_messages" in limits:
        # With both mosquitto 2.0.11 loses messages of QoS 1, and Canopy delivers them.
        limits.pop("max_inflight_messages", None)
    rules = chance.random() < 0.5
    scoped = chance.random() < 0.6
    shared: list[str] = []
    own: list[list[str]] = [[f"listener {port} 127.0.0.1"] for port in ports]
    for at, lines in enumerate(own):
        access = lines if scoped else shared
        if at == 0 or scoped:
            if chance.random() < 0.6:
                access.append(f"password_file {folder}/passwd-{chance.randint(1, 2)}")
            if chance.random() < 0.8:
                access.append(f"allow_anonymous {chance.choice(('true', 'true', 'true', 'false'))}")
            if rules and (not scoped or chance.random() < 0.8):
                access.append(f"acl_file {folder}/acl")
        if chance.random() < 0.2:
            # Fewer are miscounted by mosquitto 2.0.11, where connections ended before they were accepted.
            lines.append("max_connections 50")
        if chance.random() < 0.15:
            lines.append("mount_point mine/")
    if chance.random() < 0.2:
        most = f"max_qos {chance.randint(0, 1)}"
        for lines in own:
            lines.append(most)
    if scoped:
        for option in ("allow_zero_length_clientid", "auto_id_prefix"):
            line = limits.pop(option, None)
            for lines in own if line is not None else ():
                lines.append(str(line))
        shared.insert(0, "per_listener_settings true")
    lines = ["user root", "sys_interval 0", *shared, *limits.values(), *(line for each in own for line in each)]
    acl = "\n".join(line for line in RULES if chance.random() < 0.6 or line.startswith("user ")) if rules else ""
    return Conf(lines, acl)


class Person(NamedTuple):
    """A client: who it is, how it speaks, and where it connects."""

    client_id: str
    user: str | None
    password: str | None
    version: int
    listener: int


class Told:
    """What the clients were told, step by step, but for what is named as different.

    Named (docs/from-mosquitto.md, and the head of the written file): the reason code of a refusal; copies of a message
    for each filter that matches; "no matching subscribers", which is no failure. The topics that clients behind a mount
    hear are left out: mosquitto 2.0.11 does not take the prefix off.
    """

    def __init__(self, once: bool) -> None:
        """`once`: no two filters match one topic."""
        self._once = once
        self.lines: list[str] = []

    def answer(self, step: str, code: int) -> None:
        self.lines.append(f"{step}: {'refused' if code >= 0x80 or (code and 'connect' in step) else code & 0x0F}")

    def heard(self, who: str, packets: list[Packet], named: bool) -> None:
        best: dict[tuple[str, bytes, bool], int] = {}
        for packet in packets:
            key = (packet.topic if named else "", packet.payload, packet.retain)
            best[key] = max(best.get(key, 0), packet.qos)
        self.lines += sorted(f"{who} heard {key}{f' with QoS {qos}' * self._once}" for key, qos in best.items())


class Run:
    """The same clients and packets, by the same chance, at one broker or the other."""

    def __init__(self, seed: int, lines: list[str], ports: list[int]) -> None:
        self._chance = random.Random(seed)
        self._ports = ports
        self._lines = lines
        self._text = "\n".join(lines)
        self._mounted = self._mounts()
        # With a bound of the queue, copies would count.
        self._once = "max_queued" in self._text or self._chance.random() < 0.5
        self.told = Told(self._once)
        self._people = [self._person(at) for at in range(9)]
        self._peers: dict[Person, Peer] = {}

    async def play(self) -> list[str]:
        try:
            for at in range(PACKETS):
                await self._step(at)
                if at % BATCH == BATCH - 1:
                    self.told.lines.append(f"-- {at}")
                    for person in list(self._peers):
                        await self._hear(person)
            return self.told.lines
        finally:
            for peer in self._peers.values():
                peer.abort()

    def _mounts(self) -> set[int]:
        mounted, at = set(), -1
        for line in self._lines:
            at += line.startswith("listener ")
            if line.startswith("mount_point"):
                mounted.add(at)
        return mounted

    def _person(self, at: int) -> Person:
        user, password = self._chance.choice(CREDENTIALS)
        client_id = self._chance.choice((f"c-{at}", f"c-{at}", f"x-{at}", ""))
        return Person(client_id, user, password, self._chance.choice((4, 5)), self._chance.randrange(len(self._ports)))

    async def _step(self, at: int) -> None:
        chance = self._chance
        person = chance.choice(self._people)
        act, qos, retain = chance.random(), chance.randint(0, 2), chance.random() < 0.3
        topic, size, will = chance.choice(TOPICS), chance.choice((5, 5, 5, 60)), chance.random() < 0.3
        # Canopy refuses a CONNECT whose will the rules forbid, or whose QoS is above the highest; mosquitto takes it.
        will = will and not ("acl_file" in self._text or "max_qos" in self._text or "retain_available" in self._text)
        wanted = chance.choice(DISJOINT if self._once else OVERLAPPING)
        # mosquitto 2.0.11 looks at max_keepalive with MQTT 5.0 alone.
        keep_alive = chance.choice((10, 60 if person.version == 5 else 20))
        clean = chance.random() < 0.4
        who = f"{at} {person.client_id} {person.user} {person.password} {person.version} at {person.listener}"
        peer = self._peers.get(person)
        try:
            if peer is None:
                await self._connect(person, who, keep_alive, clean or not person.client_id, will, topic, qos, retain)
            elif act < 0.08:
                await self._hear(person)
                await self._leave(person, peer, chance.random() < 0.5)
            elif act < 0.3:
                for code in await peer.subscribe((wanted, qos)):
                    self.told.answer(f"{who} subscribes to {wanted} with {qos}", code)
                # Retained messages come as they are by then.
                await self._hear(person)
            elif act < 0.34 and person.listener not in self._mounted:
                # mosquitto 2.0.11 forgets the mount when it unsubscribes.
                await peer.unsubscribe(wanted)
            else:
                if "max_qos" in self._text or "retain_available" in self._text:
                    # It may be cut off for this, and whether it has read what was on its way is chance.
                    await self._hear(person)
                payload = f"{at:03}".encode() * size
                code = await peer.publish(topic, payload[: size + 3], qos=qos, retain=retain)
                self.told.answer(f"{who} publishes to {topic} with {qos}{' retained' * retain}", code)
        except Closed:
            self.told.lines.append(f"{who} is cut off")
            self._peers.pop(person).abort()

    async def _connect(
        self, person: Person, who: str, keep_alive: int, clean: bool, will: bool, topic: str, qos: int, retain: bool
    ) -> None:
        peer = await Peer.open("127.0.0.1", self._ports[person.listener], person.version)
        self._peers[person] = peer
        password = None if person.password is None else person.password.encode()
        props: Any = [(wire.SESSION_EXPIRY, 1_000)] if person.version == 5 and not clean else []
        left = wire.Will(topic, f"will {who}".encode()[:20], qos=qos, retain=retain) if will else None
        await peer.send(
            wire.connect(
                person.client_id,
                version=person.version,
                clean=clean,
                keep_alive=keep_alive,
                props=props,
                will=left,
                user=person.user,
                password=password,
            )
        )
        try:
            connack = await peer.expect(CONNACK)
        except Closed:
            self.told.answer(f"{who} connects", 0x80)
            self._peers.pop(person).abort()
            return
        self.told.answer(f"{who} connects", connack.code)
        if connack.code:
            await peer.closed()
            self._peers.pop(person).abort()
        else:
            self.told.lines.append(f"session present: {connack.session_present}")

    async def _leave(self, person: Person, peer: Peer, in_order: bool) -> None:
        """With a DISCONNECT, or with what is no packet: then the will is published. The broker closes, too."""
        del self._peers[person]
        await peer.send(wire.disconnect(version=person.version) if in_order else b"\xf0\x00")
        await peer.closed()
        peer.abort()

    async def _hear(self, person: Person) -> None:
        """Everything that has come for a client, and is acknowledged."""
        peer, packets = self._peers[person], []
        try:
            while True:
                found = await peer.fence()
                packets += [each for each in found if each.kind == PUBLISH]
                answers = [
                    wire.ack(
                        {PUBLISH: PUBACK if each.qos == 1 else PUBREC, PUBREL: PUBCOMP}[each.kind],
                        each.packet_id or 0,
                        version=person.version,
                    )
                    for each in found
                    if each.packet_id is not None and each.kind in (PUBLISH, PUBREL)
                ]
                if not answers:
                    break
                await peer.send(*answers)
        except Closed:
            self.told.lines.append(f"{person} is cut off")
            self._peers.pop(person).abort()
        self.told.heard(str(person), packets, person.listener not in self._mounted)


async def compared(seed: int, folder: Path) -> tuple[list[str], list[str], list[str]]:
    """What the clients of mosquitto, and of Canopy, were told with a configuration; and that."""
    assert MOSQUITTO is not None
    chance = random.Random(seed)
    ports = [free_port() for _ in range(chance.randint(1, 3))]
    made = conf(chance, ports, folder)
    path = folder / "mosquitto.conf"
    await asyncio.to_thread(path.write_text, "\n".join(made.lines) + "\n")
    await asyncio.to_thread((folder / "acl").write_text, made.rules + "\n")
    theirs = Process([MOSQUITTO, "-c", str(path)], "running")
    await theirs.start()
    try:
        expected = await Run(seed, made.lines, ports).play()
    finally:
        await theirs.end()
    converted = await asyncio.to_thread(mosquitto.convert, path)
    settings = folder / "canopy.toml"
    await asyncio.to_thread(settings.write_text, converted.toml)
    sets = ("security.failure_delay=0", "security.ban_after=0")
    ours = await asyncio.to_thread(load_settings, settings, sets, (), {})
    async with Broker(ours):
        return expected, await Run(seed, made.lines, ports).play(), made.lines


async def passwords(folder: Path) -> None:
    assert PASSWD is not None
    for at, users in enumerate((USERS, {"ann": "hunter2", "eve": "x"}), start=1):
        for number, (user, password) in enumerate(users.items()):
            create = ["-c"] if number == 0 else []
            command = [PASSWD, *create, "-b", str(folder / f"passwd-{at}"), user, password]
            process = await asyncio.create_subprocess_exec(*command)
            assert await process.wait() == 0


async def check(seeds: Sequence[int], folder: Path) -> None:
    await passwords(folder)
    for seed in seeds:
        expected, found, lines = await compared(seed, folder)
        if expected != found:
            at = next(at for at, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1])
            before = "\n".join(expected[max(at - 6, 0) : at])
            raise AssertionError(
                f"seed {seed}\n{chr(10).join(lines)}\n...\n{before}\nmosquitto: {expected[at]}\nCanopy:    {found[at]}"
            )


async def test_the_same_packets_have_the_same_effect(tmp_path: Path) -> None:
    """One in which much is allowed, and much is said; and one with rules. Both have a mount."""
    await check((7, 29), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10, 5))
async def test_the_same_packets_have_the_same_effect_with_many_configurations(first: int, tmp_path: Path) -> None:
    await check(range(first, first + 5), tmp_path)
