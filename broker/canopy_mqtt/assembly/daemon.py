"""Runs a broker as a process of its own: file descriptors, event loop, signals, and the messages of the start.

Owns everything that exists once in a process, and that an embedded broker must not touch. Promises: SIGTERM and SIGINT
stop the broker in order, with exit code 0; the same signal again ends the process at once, with 128 and the signal's
number. SIGHUP reloads the settings and never ends the process; unusable settings change nothing. The signals of other
brokers (`UNUSED`) get a log line and do nothing else. Faults that prevent serving are reported in one line before the
first client. It knows no MQTT: it starts a `Broker`, waits, and stops it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, Protocol

import structlog

from canopy_mqtt import sockets
from canopy_mqtt.assembly import logs
from canopy_mqtt.assembly.notify import Supervisor
from canopy_mqtt.assembly.process import Process
from canopy_mqtt.assembly.storing import kept, place
from canopy_mqtt.buildinfo import BuildInfo, build_info
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.sockets import OWN_DESCRIPTORS
from canopy_mqtt.store.times import uptime

MIN_SUSPENSION: Final = 1.0
"""Seconds of suspension that are counted: shorter ones add up until they are as long."""


def slept() -> float:
    """Return the seconds for which the machine has been suspended since its start; 0.0 if the platform does not count
    them.
    """
    return uptime() - time.monotonic()


class Suspends:
    """The suspensions that one event loop has seen."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slept: Callable[[], float] = slept) -> None:
        """`loop`: one whose clock has not been read yet; `slept`: see the function of this name."""
        self._loop = loop
        self._clock: Callable[[], float] = loop.time
        self._slept = slept
        self._counted = slept()
        self._added = 0.0

    def look(self) -> float:
        """Return the newly seen seconds of suspension, which the loop's clock includes from now on; 0.0: none."""
        passed = self._slept() - self._counted
        if passed < MIN_SUSPENSION:
            return 0.0
        self._counted += passed
        self._added += passed
        self._loop.time = self._time  # type: ignore[method-assign]
        return passed

    def _time(self) -> float:
        return self._clock() + self._added


MANY_DESCRIPTORS: Final = 1_048_576
"""The number to request if the system has no upper limit."""

# A broker makes garbage in cycles only when connections end: collecting seldom is enough. A threshold of -1 for the
# middle generation has it collected with the young one each time, so that what stays is looked at once, and 5,000
# objects at a time, a millisecond: with the million that (50_000, 20, 100) allowed, queues that fill up made pauses of
# 0.2 s. One of everything comes after about 150 million.
GC_THRESHOLDS: Final = (5_000, -1, 30_000)


IGNORED: Final = 20
IGNORED_INTERVAL: Final = 10.0
"""Seconds between two log lines about exceptions that Python ignores. A client may cause one with each TLS handshake,
by a host name that is not ASCII; Python would write each to standard error."""


UNUSED: Final[dict[signal.Signals, str]] = {
    getattr(signal, name): meaning
    for name, meaning in (
        ("SIGUSR1", "a store keeps everything by itself; for mosquitto this signal means: save"),
        ("SIGUSR2", "it means nothing here; SIGHUP has the settings read again"),
        ("SIGRTMIN", "the log goes to standard error, where no file is to be opened again"),
    )
    if hasattr(signal, name)
}
"""Signals that mean something to other brokers, and would end this process by default."""


class DaemonError(Exception):
    """The reason in one line why the broker cannot run here."""


class Service(Protocol):
    """The interface of a broker for its daemon."""

    before_listening: Callable[[], None]
    """Called when the state of the store is restored, and before the first client can connect."""

    suspended: Callable[[], float]
    """Called several times a second. Returns the seconds that the machine slept and the loop's clock did not count."""

    @property
    def signals(self) -> Mapping[int, Callable[[], object]]:
        """The handlers of signals that are ignored by default (`UNUSED`), while it serves."""

    @property
    def listening(self) -> list[str]:
        """The URLs with the real ports, after the start."""

    @property
    def http(self) -> list[str]:
        """The URLs of metrics, API and page, after the start; often none."""

    async def start(self) -> None:
        """Listen. Raises `DaemonError` or an error of its own kind, in one line."""

    async def stop(self) -> None:
        """Disconnect all clients, drain, stop listening."""

    async def broken(self) -> str:
        """Wait until it stops by itself, and return the reason in one line."""

    async def reload(self, new: Settings) -> list[str]:
        """Apply other settings as far as possible; returns a line for each that takes a restart."""


def run(
    settings: Settings,
    make: Callable[[Settings], Service],
    stream: logs.Stream | None = None,
    read: Callable[[], Settings] | None = None,
) -> None:
    """Run the broker that `make` builds until a signal ends it. Returns after an orderly stop.

    The banner goes to `stream` (standard error when None), which is closed where a second signal ends the process.
    `read` reads the settings again, on SIGHUP, in a thread; it may raise SettingsError. None: there is nothing to read.

    Raises:
        DaemonError: there are too few file descriptors, or the broker stopped by itself.
    """
    # Always, not only under a limit: the usual soft limit of 1,024 is what most brokers first run into.
    # Of several workers each has a part of the connections (`workers.plan.unusable`).
    alone = settings.workers.count == 1
    raise_descriptor_limit(settings.limits.max_connections if alone else 0, sockets.of_http(settings))
    output = sys.stderr if stream is None else stream
    supervisor = Supervisor.of(os.environ)
    hangup = _Hangup(read, supervisor)
    unused = _Unused()
    # No handler of the event loop: those leave the default behind, which ends the process, when the loop is closed.
    before = {number: signal.signal(number, unused.on_signal) for number in UNUSED}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, hangup.on_signal)
    unraisable, sys.unraisablehook = sys.unraisablehook, _Ignored()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, make, output, hangup, unused, supervisor))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = unraisable


def ignore_signals() -> None:
    """Ignore SIGHUP and `UNUSED` from now on, whether a broker runs or not."""
    for number in (signal.SIGHUP, *UNUSED):
        signal.signal(number, signal.SIG_IGN)


class _Ignored:
    """Logs exceptions that Python ignores: a line each, at a bounded rate."""

    def __init__(self) -> None:
        self._log: Any = structlog.get_logger("canopy")
        self._logged = 0
        self._until = 0.0

    def __call__(self, ignored: sys.UnraisableHookArgs) -> None:
        now = time.monotonic()
        if now >= self._until:
            self._logged, self._until = 0, now + IGNORED_INTERVAL
        self._logged += 1
        if self._logged <= IGNORED:
            detail = f"{ignored.exc_type.__name__}: {ignored.exc_value}"[:256]
            self._log.warning("exception ignored", detail=detail)


class _Unused:
    """Logs a signal without meaning, once while several of one kind wait."""

    def __init__(self) -> None:
        self._log: Any = structlog.get_logger("canopy")
        self._waiting: set[int] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that writes lines: a signal handler may interrupt the writing of one."""
        self.meant: Mapping[int, Callable[[], object]] = {}
        """The handlers of some of them, while a broker serves."""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal, at any point of the main thread."""
        del frame
        if self.loop is not None and number not in self._waiting:
            self._waiting.add(number)
            self.loop.call_soon_threadsafe(self._log_line, number)

    def _log_line(self, number: int) -> None:
        self._waiting.discard(number)
        if number in self.meant:
            self.meant[number]()
            return
        known = signal.Signals(number)
        self._log.warning("signal ignored", signal=known.name, detail=UNUSED[known])


class _Hangup:
    """Handles SIGHUP: the settings are reloaded once, however often it came meanwhile."""

    def __init__(self, read: Callable[[], Settings] | None, supervisor: Supervisor) -> None:
        self._read = read
        self._supervisor = supervisor
        self._log: Any = structlog.get_logger("canopy")
        self._loop: asyncio.AbstractEventLoop | None = None
        # What came before the broker had started is not lost.
        self._came = False
        self._asked = asyncio.Event()
        self._reloads = False
        # Until the reload is done.
        self._waiting: list[Callable[[], object]] = []

    def behind(self, call: Callable[[], object]) -> None:
        """Call something now, or after a reload that was requested before."""
        if self._reloads or self._asked.is_set():
            self._waiting.append(call)
        else:
            call()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal, at any point of the main thread."""
        del number, frame
        self._came = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._asked.set)

    async def serve(self, broker: Service) -> None:
        self._loop = asyncio.get_running_loop()
        if self._came:
            self._asked.set()
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                self._reloads = True
                self._supervisor.reloading()
                outcome = "settings not reloaded"
                try:
                    outcome = await self._reload(broker)
                finally:
                    self._supervisor.ready(f"{_status(broker)}; {outcome}")
                    self._reloads = False
                waiting, self._waiting = self._waiting, []
                for call in waiting:
                    self.behind(call)
        finally:
            self._loop = None

    async def _reload(self, broker: Service) -> str:
        """Reload. Returns the result in a few words; the log has all of it."""
        if self._read is None:
            self._log.warning("nothing to reload", detail="the broker was started without --config")
            return "nothing to reload"
        try:
            lines = await broker.reload(await asyncio.to_thread(self._read))
        except SettingsError as error:
            for problem in error.problems:
                self._log.error("settings not reloaded", detail=problem)
            return f"settings not reloaded: {error.problems[0]}"
        except Exception as error:
            # The broker goes on with what it has.
            self._log.error("settings not reloaded", detail=str(error), exc_info=error)
            return f"settings not reloaded: {error}"
        return f"settings reloaded, {len(lines)} of them take a restart" if lines else "settings reloaded"


def _status(broker: Service) -> str:
    """Return the status of a serving broker for `systemctl status`."""
    return f"listening on {', '.join(broker.listening)}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's loop if it is installed, else None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_descriptor_limit(connections: int, beside: int = 0) -> int:
    """Raise this process's limit on file descriptors as far as the system allows.

    Args:
        connections: connections that must be possible; 0 for as many as there are.
        beside: file descriptors for connections that are not those of clients.

    Returns:
        The limit that now holds.

    Raises:
        DaemonError: `connections` and the broker's own descriptors do not fit under it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            # A system that lists a limit it does not grant: what there is may still be enough.
            pass
    if soft == resource.RLIM_INFINITY:
        return MANY_DESCRIPTORS
    if connections and connections + OWN_DESCRIPTORS + beside > soft:
        raise DaemonError(sockets.too_few_descriptors(connections, soft, beside))
    return soft


def too_few_descriptors(connections: int, beside: int = 0, setting: int = 0) -> str:
    """Return the reason why a broker that is started here cannot have this number of connections; empty: it can.
    Changes nothing. `setting`: the limit, where a process serves a part of it alone.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or connections + OWN_DESCRIPTORS + beside <= hard
    return "" if enough or not connections else sockets.too_few_descriptors(connections, hard, beside, setting)


def stop_on_signals(
    loop: asyncio.AbstractEventLoop, output: logs.Stream, stop: Callable[[], object], stops: Callable[[], object]
) -> None:
    """Call `stop` at SIGTERM and SIGINT. Where it `stops` already, end the process at once, with 128 and the signal's
    number, once `output` has written what it has."""

    def on_signal(number: int) -> None:
        if stops():
            output.close()
            os._exit(128 + number)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


async def _serve(
    settings: Settings,
    make: Callable[[Settings], Service],
    output: logs.Stream,
    hangup: _Hangup,
    unused: _Unused,
    supervisor: Supervisor,
) -> None:
    loop = unused.loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    # Before the start, so that a signal during a long start is not lost.
    stop_on_signals(loop, output, stopping.set, stopping.is_set)
    broker = make(settings)
    # Before a store is read: to look for garbage among all of its objects takes seconds, in which no client is
    # answered, and reading makes none.
    gc.collect()
    broker.before_listening = gc.freeze
    broker.suspended = Suspends(loop).look
    starting, asked = loop.create_task(broker.start()), loop.create_task(stopping.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # A start may take minutes.
        starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled():
            unused.loop = None
            supervisor.close()
            return
    starting.result()
    # What was loaded since then.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    await _announce(build_info(), settings, broker, output)
    supervisor.ready(_status(broker))
    unused.meant = {number: partial(hangup.behind, call) for number, call in broker.signals.items()}
    reloading = loop.create_task(hangup.serve(broker))
    broken = loop.create_task(broker.broken())
    try:
        await asyncio.wait((asked, broken), return_when=asyncio.FIRST_COMPLETED)
    finally:
        beside = (reloading, asked, broken)
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        unused.meant = {}
        supervisor.stopping()
        try:
            await broker.stop()
        finally:
            unused.loop = None
            supervisor.close()
    if not broken.cancelled():
        raise DaemonError(f"stopped: {broken.result()}")


async def _announce(build: BuildInfo, settings: Settings, broker: Service, output: logs.Stream) -> None:
    """Report the start: lines for people, an event for programs."""
    if logs.for_people(settings.log.format, output):
        from canopy_mqtt.assembly.trial_commands import lines_to_try

        tries = await asyncio.to_thread(lines_to_try, settings, broker.listening)
        output.write(f"{banner(str(build), broker.listening, kept(settings), broker.http, tries)}\n")
        output.flush()
    else:
        _tell_started(build, broker.listening, place(settings), broker.http)


def _tell_started(build: BuildInfo, listening: list[str], store: str, http: list[str]) -> None:
    """Report the start to programs: one event at any level, as their only source for the port of a listener."""
    log = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    log.info(
        "started",
        version=build.version,
        core=build.core,
        python=build.python,
        uvloop=build.uvloop,
        pid=os.getpid(),
        listening=listening,
        store=store,
        http=http,
    )


def banner(
    build: str, listening: list[str], what_is_kept: str, http: Sequence[str] = (), tries: Sequence[str] = ()
) -> str:
    """Return a few plain lines for the person who has started the broker."""
    lines = [build]
    lines += [f"listening on {url}" for url in listening]
    lines += [f"page, metrics and API at {url}" for url in http]
    lines.append(what_is_kept)
    lines += [f"{label}{line}" for label, line in zip(("try it:  ", "         "), tries, strict=False)]
    lines.append("stop it with Ctrl-C or SIGTERM")
    return "\n".join(lines)


def real_broker(settings: Settings, read: Callable[[], Settings] | None = None) -> Service:
    """Make the broker of `canopy_mqtt.net`, which is loaded only here. `read`: as for `run`."""
    from canopy_mqtt.assembly.app import Broker

    broker = Broker(settings)
    broker.process = Process(read, logs.set_level)
    broker.process.changed = broker.log_changed
    broker.connection_log.write = logs.json_write()
    return broker
