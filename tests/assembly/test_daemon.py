"""The process around a broker: descriptors, loop, signals, banner. The broker here is a stand-in."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from canopy_mqtt import Broker
from canopy_mqtt.assembly import daemon
from canopy_mqtt.buildinfo import build_info
from canopy_mqtt.settings import Limits, Log, Settings
from canopy_mqtt.sockets import OWN_DESCRIPTORS

CALM = Settings(listen=["mqtt://127.0.0.1:0"], log=Log(format="console"))


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """A daemon tunes the garbage collector of its process; here other tests follow.

    What it froze stays so: to thaw it thawed a million objects of pytest's collection (tests/conftest.py), and each
    search for garbage in this process took a second from then on.
    """
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class StandIn:
    """A broker that serves nobody and notes what is asked of it. `after_start` runs once the daemon waits."""

    def __init__(self, settings: Settings, after_start: Callable[[], None], failure: Exception | None = None) -> None:
        self.listening = ["mqtt://127.0.0.1:4711"]
        self.http: list[str] = []
        self.settings = settings
        self.before_listening: Callable[[], None] = lambda: None
        self.signals: dict[int, Callable[[], object]] = {}
        self.suspended: Callable[[], float] = lambda: 0.0
        self.calls: list[str] = []
        self._after_start = after_start
        self._failure = failure

    async def start(self) -> None:
        self.calls.append(f"start on {type(asyncio.get_running_loop()).__module__}")
        self.fault: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._failure:
            raise self._failure
        asyncio.get_running_loop().call_soon(self._after_start)

    async def stop(self) -> None:
        self.calls.append("stop")

    async def broken(self) -> str:
        return await self.fault

    async def reload(self, new: Settings) -> list[str]:
        self.calls.append(f"reload {new.mqtt.max_qos}")
        return []


def run(settings: Settings, after_start: Callable[[], None], failure: Exception | None = None) -> tuple[StandIn, str]:
    made: list[StandIn] = []
    output = io.StringIO()

    def make(settings: Settings) -> StandIn:
        made.append(StandIn(settings, after_start, failure))
        return made[-1]

    try:
        daemon.run(settings, make, output)
    finally:
        assert len(made) == 1
    return made[0], output.getvalue()


def kill(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_programs_are_told_the_start_as_an_event_and_without_a_banner() -> None:
    """In a collector of logs six lines of text are six broken events. At every level: nobody else tells the port."""
    with capture_logs() as told:
        _, output = run(Settings(log=Log(level="error")), kill(signal.SIGTERM))
    assert output == ""
    (line,) = told
    assert (line["event"], line["log_level"]) == ("started", "info")
    assert line["listening"] == ["mqtt://127.0.0.1:4711"]
    assert line["version"] == build_info().version
    assert line["core"] == build_info().core
    assert line["store"] == "memory"


def test_no_search_for_garbage_holds_up_the_first_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store brought is passed over before the first client can connect, and not looked at again."""
    calls: list[str] = []
    for name in ("collect", "freeze", "set_threshold"):
        monkeypatch.setattr(gc, name, lambda *_, name=name: calls.append(name))

    class Listening(StandIn):
        async def start(self) -> None:
            calls.append("store is read")
            self.before_listening()
            calls.append("listening")
            await super().start()

    daemon.run(
        Settings(log=Log(format="console")), lambda settings: Listening(settings, kill(signal.SIGTERM)), io.StringIO()
    )
    assert calls == ["collect", "store is read", "freeze", "listening", "freeze", "set_threshold"]


def test_a_broker_that_stops_by_itself_ends_the_process_with_the_reason() -> None:
    made: list[StandIn] = []

    def make(settings: Settings) -> StandIn:
        made.append(StandIn(settings, lambda: made[0].fault.set_result("/var/record: cannot be written to")))
        return made[0]

    with pytest.raises(daemon.DaemonError, match="stopped: /var/record: cannot be written to"):
        daemon.run(CALM, make, io.StringIO())
    assert made[0].calls[-1] == "stop"


class Slow(StandIn):
    """One whose start has no end."""

    async def start(self) -> None:
        asyncio.get_running_loop().call_soon(self._after_start)
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("start is over")


def test_a_signal_ends_a_start_that_lasts() -> None:
    made: list[Slow] = []
    output = io.StringIO()

    def make(settings: Settings) -> Slow:
        made.append(Slow(settings, kill(signal.SIGTERM)))
        return made[-1]

    daemon.run(Settings(), make, output)
    assert made[0].calls == ["start is over"]
    assert not output.getvalue()


def test_without_uvloop_installed_the_standard_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert daemon.loop_factory() is None


class Unlucky:
    """Raises where nobody can be told."""

    def __del__(self) -> None:
        raise LookupError("lost")


def test_exceptions_that_nobody_can_be_told_do_not_fill_the_disk() -> None:
    def after_start() -> None:
        for _ in range(daemon.IGNORED * 3):
            Unlucky()
        os.kill(os.getpid(), signal.SIGTERM)

    before = sys.unraisablehook
    with capture_logs() as told:
        run(CALM, after_start)
    ignored = [line for line in told if line["event"] == "exception ignored"]
    assert [line["detail"] for line in ignored] == ["LookupError: lost"] * daemon.IGNORED
    assert sys.unraisablehook is before


def test_no_collection_of_young_objects_looks_at_many() -> None:
    """Queues that fill up are hundreds of thousands of new objects, and a collection stops everything. Nor is any of
    them looked at twice."""
    before = gc.get_threshold()
    seen: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] < 2:
            seen.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.collect()
    gc.callbacks.append(looked)
    try:
        gc.set_threshold(*daemon.GC_THRESHOLDS)
        kept: list[list[int]] = [[] for _ in range(100_000)]
    finally:
        gc.callbacks.remove(looked)
        gc.set_threshold(*before)
    assert len(kept) == 100_000
    assert 0 < max(seen) <= 7_500
    assert sum(seen) <= 110_000


def test_a_second_signal_ends_the_process_at_once() -> None:
    """A broker whose stop never ends must still be stoppable, and the exit code has to tell how it ended. What it has
    logged by then is written."""
    code = """
import asyncio, sys
from canopy_mqtt import Broker
from canopy_mqtt.assembly import daemon, logwriter
from canopy_mqtt.settings import Settings

class Stuck:
    listening = http = []
    signals = {}
    async def start(self): pass
    async def broken(self): await asyncio.Event().wait()
    async def stop(self):
        writer.write("the last line\\n")
        print("stopping", flush=True)
        await asyncio.Event().wait()

writer = logwriter.BackgroundWriter(sys.stderr, pause=600.0)
daemon.run(Settings(log={"format": "console"}), lambda settings: Stuck(), writer)
"""
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        command = [sys.executable, "-P", "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stderr:  # the banner ends with how to stop it
                if line.startswith("stop it"):
                    break
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "stopping\n"
            process.send_signal(number)
            assert process.wait(30) == status
            assert process.stderr.read() == "the last line\n"


class TestHangup:
    """SIGHUP: settings are read again, and no state of the process is one in which it ends it."""

    @pytest.fixture(autouse=True)
    def told(self) -> Iterator[list[MutableMapping[str, Any]]]:
        with capture_logs() as entries:
            yield entries

    def test_during_the_start_it_is_remembered_and_during_the_stop_it_does_nothing(self) -> None:
        class Slow(StandIn):
            async def start(self) -> None:
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0)
                await super().start()

            async def stop(self) -> None:
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0)
                await super().stop()

            async def reload(self, new: Settings) -> list[str]:
                os.kill(os.getpid(), signal.SIGTERM)
                return await super().reload(new)

        made: list[Slow] = []

        def make(settings: Settings) -> Slow:
            made.append(Slow(settings, lambda: None))
            return made[0]

        daemon.run(CALM, make, io.StringIO(), Settings)
        assert made[0].calls[1:] == ["reload 2", "stop"]

    def test_a_reload_that_hangs_does_not_hold_up_the_stop(self) -> None:
        class Stuck(StandIn):
            async def reload(self, new: Settings) -> list[str]:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()
                return await super().reload(new)

        made: list[Stuck] = []

        def make(settings: Settings) -> Stuck:
            made.append(Stuck(settings, kill(signal.SIGHUP)))
            return made[0]

        daemon.run(CALM, make, io.StringIO(), Settings)
        assert made[0].calls[1:] == ["stop"]


class TestDescriptors:
    @pytest.fixture(autouse=True)
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A system with a soft limit of 1,024 and a hard one of 4,096."""
        self.soft, self.hard = 1024, 4096
        self.refuses = False
        monkeypatch.setattr(resource, "getrlimit", lambda _: (self.soft, self.hard))
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _which: int, limits: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not allowed")
        self.soft, self.hard = limits

    def test_the_soft_limit_is_raised_to_the_hard_one(self) -> None:
        assert daemon.raise_descriptor_limit(0) == 4096
        assert (self.soft, self.hard) == (4096, 4096)

    def test_connections_and_the_brokers_own_just_fit(self) -> None:
        assert daemon.raise_descriptor_limit(4096 - OWN_DESCRIPTORS) == 4096

    def test_one_more_does_not(self) -> None:
        with pytest.raises(daemon.DaemonError) as caught:
            daemon.raise_descriptor_limit(4097 - OWN_DESCRIPTORS)
        assert "needs 4097 file descriptors" in str(caught.value)
        assert "may have 4096" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_connections_of_http_take_none_from_clients(self) -> None:
        """However many silent clients and connections of HTTP there are, descriptors are left to accept another."""
        for http, beside in (({}, 0), ({"listen": ["http://127.0.0.1:0"], "max_connections": 200}, 200)):
            settings = Settings.model_validate({"http": http})
            assert Broker(settings).router.limits.max_connections == 1024 - OWN_DESCRIPTORS - beside
        with pytest.raises(daemon.DaemonError) as caught:
            daemon.raise_descriptor_limit(4096 - OWN_DESCRIPTORS, 200)
        assert "needs 4296 file descriptors" in str(caught.value)

    def test_a_limit_that_cannot_be_raised_counts_as_it_is(self) -> None:
        self.refuses = True
        assert daemon.raise_descriptor_limit(800) == 1024
        with pytest.raises(daemon.DaemonError):
            daemon.raise_descriptor_limit(1000)

    def test_no_upper_limit(self) -> None:
        self.hard = resource.RLIM_INFINITY
        assert daemon.raise_descriptor_limit(500_000) == daemon.MANY_DESCRIPTORS
        self.soft = resource.RLIM_INFINITY
        assert daemon.raise_descriptor_limit(10_000_000) > 0

    def test_it_is_checked_before_anything_listens(self) -> None:
        def never(_: Settings) -> StandIn:
            raise AssertionError("a broker was made")

        with pytest.raises(daemon.DaemonError):
            daemon.run(Settings(limits=Limits(max_connections=100_000)), never)


class TestBanner:
    def test_what_it_says(self) -> None:
        tries = [
            "mosquitto_sub -h 127.0.0.1 -t 'demo/#' -v",
            "mosquitto_pub -h 127.0.0.1 -t demo/hello -m 'hello world'",
        ]
        text = daemon.banner("canopy 1.2.3", ["mqtt://127.0.0.1:1883"], "kept in memory", (), tries)
        assert text.splitlines() == [
            "canopy 1.2.3",
            "listening on mqtt://127.0.0.1:1883",
            "kept in memory",
            f"try it:  {tries[0]}",
            f"         {tries[1]}",
            "stop it with Ctrl-C or SIGTERM",
        ]

    def test_nothing_to_try(self) -> None:
        text = daemon.banner("canopy 1.2.3", ["wss://127.0.0.1:8443"], "")
        assert "listening on wss://127.0.0.1:8443\n" in text
        assert "try it" not in text
