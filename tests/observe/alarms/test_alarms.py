"""Alarms of a broker that runs: what raises each, who is told, and what is remembered."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.accounts import RETAINED
from canopy_mqtt.core.ledger import AGE, EXPIRED, FULL_BYTES, REPLACED
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.guards import hook_guards
from canopy_mqtt.observe.alarms import observer
from canopy_mqtt.observe.alarms.alarms import Alarms
from canopy_mqtt.observe.alarms.observer import KINDS, disk_used
from canopy_mqtt.settings import Alarms as AlarmSettings
from canopy_mqtt.settings import Store, Sys, Upstream
from tests.e2e.wire import Peer
from tests.support.certificates import Authority
from tests.support.waiting import until

SELDOM = 86_400.0

# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")


class Told:
    """Whoever is told besides."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def send(self, alarm: dict[str, Any]) -> None:
        self.told.append(alarm)

    async def stop(self) -> None:
        """Nothing to stop."""


def settings(**alarms: Any) -> Settings:
    wanted = {"interval": SELDOM, "raise_after": 10.0} | alarms
    return Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=SELDOM), alarms=AlarmSettings(**wanted))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(settings()) as running:
        running.lag_monitor.close()
        yield running


class Looks:
    """Looks at a broker by a clock of its own."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        assert broker.alarms is not None
        self.alarms: Alarms = broker.alarms
        self.now = broker.loop.time()
        self.told = Told()
        self.alarms._notifier = self.told
        monkeypatch.setattr(self.alarms, "_host", self)
        self.lines: list[str] = []
        self.log = self
        self.faults = broker.faults
        self.loop = self

    def time(self) -> float:
        """The loop's clock, as the alarms see it."""
        return self.now

    def warning(self, event: str, **fields: Any) -> None:
        """A line of the log."""
        assert fields["alarm"] in KINDS
        self.lines.append(event)

    def look(self, seconds: float = 5.0, disks: dict[str, float] | None = None) -> list[str]:
        """Look again after so long; which alarms are raised."""
        self.now += seconds
        self.alarms.look(disks or {})
        return [alarm.name for alarm in self.alarms.active.values()]


@pytest.fixture
async def looks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Looks:
    made = Looks(broker, monkeypatch)
    # The alarms' own task has looked, or will, at no time of this clock.
    task = made.alarms._task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    made.look(0.0)
    return made


def retained(broker: Broker, topic: str) -> dict[str, Any] | None:
    found = broker.router.retained.get(f"$SYS/broker/alarms/{topic}")
    return json.loads(found.payload()) if isinstance(found, Message) else None


async def test_messages_are_dropped(broker: Broker, looks: Looks) -> None:
    """Raised after a while, cleared after a while, told each time to everybody, and remembered."""
    counters = broker.router.counters
    for _ in range(3):
        counters.dropped[FULL_BYTES] += 500
        raised = looks.look()
    assert raised == ["drop-rate"]
    told = retained(broker, "drop-rate")
    assert told is not None
    assert (told["alarm"], told["state"], told["value"], told["bound"]) == ("drop-rate", "raised", 100.0, 100.0)
    assert broker.figures.alarms is not None
    assert broker.figures.alarms() == dict.fromkeys(KINDS, 0) | {"drop-rate": 1}
    # Worse: not told again, but remembered.
    counters.dropped[FULL_BYTES] += 5_000
    looks.look()
    while looks.look():
        pass
    assert retained(broker, "drop-rate") is None
    assert [each["state"] for each in looks.told.told] == ["raised", "cleared"]
    assert [(alarm.name, alarm.value) for alarm in looks.alarms.history] == [("drop-rate", 1_000.0)]
    assert looks.lines == ["alarm raised", "alarm cleared"]


async def test_room_is_short(broker: Broker, looks: Looks) -> None:
    """The alarm names the room, and the account that holds most of it."""
    broker.router.limits.max_retained_messages = 10
    for number in range(9):
        broker.router.retained_store.retain(Message(b"t/%d" % number, b"x", 0, True, b"", 0.0, "p"))
    account = broker.router.accounts.named("user alice")
    broker.router.accounts.rooms[RETAINED].change(account, 8)
    for _ in range(3):
        raised = looks.look()
    assert raised == ["room/retained-messages"]
    told = retained(broker, "room/retained-messages")
    assert told is not None
    assert told["value"] == 0.9
    assert told["message"].endswith(": 90% of retained.max_messages; user alice holds most of it, 80%")
    broker.router.accounts.rooms[RETAINED].change(account, -8)
    for number in range(9):
        broker.router.retained_store.drop(f"t/{number}")
    while looks.look():
        pass
    assert retained(broker, "room/retained-messages") is None


async def test_what_somebody_asked_for_is_no_alarm(broker: Broker, looks: Looks) -> None:
    for _ in range(5):
        for cause in (AGE, EXPIRED, REPLACED):
            broker.router.counters.dropped[cause] += 100_000
        assert looks.look() == []


async def test_the_event_loop_is_late(broker: Broker, looks: Looks) -> None:
    for _ in range(3):
        broker.lag_monitor.lags.add(0.1)
        broker.lag_monitor.lags.add(0.5)
        raised = looks.look()
    assert raised == ["loop-lag"]


async def test_queues_take_much_memory(broker: Broker, looks: Looks) -> None:
    totals = broker.router.counters.totals
    before = totals.bytes
    totals.bytes = totals.max_bytes * 91 // 100
    raised = [looks.look() for _ in range(3)]
    totals.bytes = before
    assert raised == [[], [], ["queue-memory"]]


async def test_wrong_credentials(broker: Broker, looks: Looks) -> None:
    assert broker.securing is not None
    broker.router.access_control = hook_guards.GuardedAccessControl(
        broker.securing.access, broker.faults, time.monotonic
    )
    for _ in range(3):
        broker.securing.access.chain.brute_force.failures += 50
        raised = looks.look()
    assert raised == ["authentication-failures"]


async def test_a_disk_is_nearly_full(monkeypatch: pytest.MonkeyPatch, looks: Looks) -> None:
    monkeypatch.setattr(looks.alarms._observer, "_folders", {"store": "/s"})
    assert looks.look(disks={"store": 0.95}) == ["disk-space/store"]
    # Not far enough from full, then long enough.
    for share, raised in ((0.89, True), *((0.87, True),) * 12, (0.87, False)):
        assert (looks.look(disks={"store": share}) == ["disk-space/store"]) is raised


def test_how_full_a_disk_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        f_blocks, f_bfree, f_bavail = 100, 30, 20

    assert 0.0 <= disk_used(str(tmp_path)) <= 1.0
    assert disk_used(str(tmp_path / "missing")) == 0.0
    monkeypatch.setattr(os, "statvfs", lambda _: Found)
    # What root alone may write is not there for the broker.
    assert disk_used("/") == 70 / 90


@pytest.mark.parametrize(
    ("part", "state", "kind", "at_once", "said"),
    [
        ("recorder", {"failure": "no space"}, "recorder-failing", True, "nothing is recorded: no space"),
        (
            "recorder",
            {"behind": 12_000},
            "recorder-behind",
            False,
            "publishers wait for the recorder: 12,000 events wait to be written",
        ),
        ("store", {"failing": True, "state": "full"}, "store-failing", True, "the store cannot be written: full"),
        ("store", {"blocked": True}, "store-blocked", False, KINDS["store-blocked"]),
        (
            "store",
            {"damage": "lost rows: 2 of retained"},
            "store-damaged",
            True,
            "a part of the store was damaged, and is lost: lost rows: 2 of retained",
        ),
    ],
)
async def test_the_store_and_the_recorder_are_in_trouble(
    looks: Looks, broker: Broker, part: str, state: dict[str, Any], kind: str, at_once: bool, said: str
) -> None:
    """A failure is told at once, and a delay when it lasts; both are cleared when they are over."""
    well = {"failure": "", "behind": 0, "failing": False, "state": "written", "damage": "", "blocked": False}
    found = SimpleNamespace(**well | state)
    setattr(broker.figures, part, found)
    assert looks.look() == ([kind] if at_once else [])
    assert looks.look(20.0) == [kind]
    assert looks.told.told[0]["message"] == said
    vars(found).update(well)
    looks.look(1.0)
    assert looks.look(70.0) == []


async def test_an_upstream_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings().model_copy(update={"upstream": (Upstream(name="up", url="mqtt://127.0.0.1:1"),)})
    async with Broker(wanted) as broker:
        looks = Looks(broker, monkeypatch)
        looks.look(0.0)
        assert looks.look(59.0) == []
        assert looks.look(2.0) == ["upstream-down/up"]
        assert retained(broker, "upstream-down/up") is not None
        assert broker.links is not None
        # A reload takes the link away.
        monkeypatch.setattr(broker.links, "links", {})
        assert looks.look() == []
        assert retained(broker, "upstream-down/up") is None


async def test_a_certificate_expires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("broker")
    listener = {"name": "tls", "url": "mqtts://127.0.0.1:0", "tls": {"certificate": pair[0], "key": pair[1]}}
    wanted = Settings.model_validate({"listener": [listener], "alarms": {"interval": SELDOM}})
    async with Broker(wanted) as broker:
        looks = Looks(broker, monkeypatch)
        assert looks.look() == []
        certificates = broker.listeners.open[0].certificates
        assert certificates is not None
        (file,) = certificates.expires
        certificates.expires[file] = time.time() + 13 * 86_400
        assert len(looks.look()) == 1
        (alarm,) = looks.alarms.active.values()
        assert alarm.detail == f"{file}: 13.0 days left"
        certificates.expires[file] = time.time() + 15 * 86_400
        assert looks.look() == []


async def test_the_certificate_of_https_expires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("127.0.0.1")
    http = {"listen": ["https://127.0.0.1:0"], "certificate": certificate, "key": key}
    wanted = Settings.model_validate(
        {"listen": ["mqtt://127.0.0.1:0"], "http": http, "alarms": {"interval": SELDOM, "loop_lag": 0.0}}
    )
    async with Broker(wanted) as broker:
        looks = Looks(broker, monkeypatch)
        assert looks.look() == []
        assert broker.admin is not None
        broker.admin.certificates()[certificate] = time.time() - 86_400
        assert len(looks.look()) == 1
        assert next(iter(looks.alarms.active.values())).detail == f"{certificate}: expired 1.0 days ago"
        # A reload reads it again.
        await broker.reload(wanted)
        assert looks.look() == []


async def test_disks_are_looked_at_where_something_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the alarms' own task, in a thread; a broker that writes nothing needs none."""
    threads: list[int] = []
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def used(path: str) -> float:
        assert path == str(tmp_path / "store")
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(looked.set)
        return 0.99

    monkeypatch.setattr(observer, "disk_used", used)
    wanted = settings(interval=0.001).model_copy(update={"store": Store(path=str(tmp_path / "store"))})
    async with Broker(wanted) as broker:
        await asyncio.wait_for(looked.wait(), 10)
        alarms = broker.alarms
        assert alarms is not None
        await until(lambda: [alarm.name for alarm in alarms.active.values()] == ["disk-space/store"])
        assert threading.get_ident() not in threads
    async with Broker(settings()) as without:
        assert without.alarms is not None
        assert not without.alarms._observer.has_disks


async def test_what_was_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(settings(history=3, raise_after=0.0)) as broker:
        looks = Looks(broker, monkeypatch)
        monkeypatch.setattr(looks.alarms._observer, "_folders", {"store": "/s"})
        for _ in range(10):
            looks.look(disks={"store": 0.95})
            looks.look(disks={"store": 0.5})
        assert len(looks.alarms.history) == 3


@pytest.mark.parametrize("bound", ["loop_lag", "drop_rate", "room", "authentication_failures", "disk_used"])
async def test_a_bound_of_0_is_no_alarm(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(settings(**{bound: 0.0})) as broker:
        looks = Looks(broker, monkeypatch)
        looks.look(0.0)
        looks.look()
        kinds = {kind for kind, _ in looks.alarms._states}
    assert {bound.replace("_", "-")} & kinds == set()


async def test_a_fault_in_one_look_does_not_end_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    again = asyncio.Event()

    def look(disks: dict[str, float], now: float) -> list[Any]:
        del disks
        calls.append(now)
        if len(calls) == 1:
            raise RuntimeError("broken")
        again.set()
        return []

    broker = Broker(settings(interval=0.001))
    async with broker:
        assert broker.alarms is not None
        calls.clear()
        monkeypatch.setattr(broker.alarms._observer, "look", look)
        await asyncio.wait_for(again.wait(), 10)
        assert broker.faults.counts["alarms"] == 1


async def test_subscribers_hear_of_it_at_once(broker: Broker, looks: Looks) -> None:
    peer = await Peer.join(broker.ports[0], "operator")
    await peer.subscribe("$SYS/broker/alarms/#")
    looks.alarms._observer._folders = {"store": "/s"}
    looks.look(disks={"store": 1.0})
    heard = await peer.message()
    assert (heard.topic, json.loads(heard.payload)["instance"]) == ("$SYS/broker/alarms/disk-space/store", "store")
    peer.abort()
