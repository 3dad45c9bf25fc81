"""One worker: a whole broker in a process of its own, which gets its connections from the supervisor.

Owns the worker's side of the conversation. The nursery forks a process for `main`. Promises: it ends in
order when the supervisor says so, and at once when that is gone; no signal but SIGKILL ends it, since systemd sends
them to all processes of a service at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from canopy_mqtt.assembly import daemon, logs
from canopy_mqtt.assembly.app import Broker, StartupError
from canopy_mqtt.assembly.logwriter import BackgroundWriter
from canopy_mqtt.assembly.process import Process
from canopy_mqtt.cluster.cluster import Cluster
from canopy_mqtt.cluster.node_link import NodeLink
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.listening.listeners import Listener, ListenerHost, Listeners
from canopy_mqtt.net.stream import LINGER
from canopy_mqtt.net.websocket.transport import WebSocketTransport
from canopy_mqtt.observe.systopics import SysTopics
from canopy_mqtt.settings import Listener as ListenerSettings
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.sockets import of_http
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import name_of
from canopy_mqtt.workers.asking import SUPERVISOR, Siblings, socket_of
from canopy_mqtt.workers.counted import Counted
from canopy_mqtt.workers.first_packet import Opening
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.process import Start
from canopy_mqtt.workers.relay import Chooser, Place
from canopy_mqtt.workers.shared_bans import BansOfAll
from canopy_mqtt.workers.systopics import CrewSysTopics
from canopy_mqtt.workers.told_wills import ToldWills
from canopy_mqtt.workers.totals import Totals
from canopy_mqtt.workers.uplinks import WorkerLinks, serve_all_workers
from canopy_mqtt.workers.wire import Arrival, Channel, encoded, first_said

if TYPE_CHECKING:
    from canopy_mqtt.admin.server import AdminServer
    from canopy_mqtt.workers.http_server import WorkerAdminServer

KILLED: Final = 137
"""The exit code of a process that SIGKILL has ended, as shells have it."""

LOOK: Final = 0.02
"""Seconds between two looks whether a link that the supervisor asked for is there."""

TELL: Final = 10.0
STUCK: Final = 120.0
"""Seconds between two log lines about what waits for other workers before a move, or about connections that are lost,
and until a move ends as none goes."""


class PassedOnListener(Listener):
    """A listener whose connections the supervisor accepts and passes on."""

    async def _open_tcp(self) -> None:
        """Do nothing: the supervisor listens."""

    async def _open_unix(self) -> None:
        """Do nothing: the supervisor listens."""

    def begin(self, found: Arrival, place: Place, counted: Counted) -> asyncio.Protocol:
        """Make the protocol of a connection that was passed on."""
        connection = Connection(self.server.connection_table, self.terms)
        counted.begin(found, connection)
        upper = cast(asyncio.Protocol, self.above(connection))
        if found.upgraded:
            cast(WebSocketTransport, upper).opened()
        if found.source is not None:
            # The stages below are at another worker.
            found.source.tell(connection.origin)
            protocol = upper
        elif self.certificates is None:
            protocol = self.below(connection, upper)
        else:
            opening = Opening(0, self.upgrades, self.largest)
            protocol = self.below(connection, Chooser(found, place, connection, upper, opening))
        return cast(asyncio.Protocol, _Begun(protocol, found.data)) if found.data else protocol

    @property
    def largest(self) -> int:
        """Bytes of a CONNECT at most."""
        limits = self.server.settings.limits
        return limits.max_connect_size or limits.max_packet_size or MAX_PACKET


class _Begun:
    """The protocol of a connection until it is made: those above get what was read before first."""

    def __init__(self, upper: asyncio.Protocol, data: bytes) -> None:
        self._upper = upper
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast(asyncio.Transport, transport)
        raw.set_protocol(self._upper)
        self._upper.connection_made(raw)
        if not raw.is_closing():
            # Another may have taken its place.
            cast(asyncio.Protocol, raw.get_protocol()).data_received(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on: another protocol takes this one's place while it is made."""
        self._upper.connection_lost(exc)


class WorkerBroker(Broker):
    """The broker of a worker."""

    http_server: WorkerAdminServer | None = None
    """The HTTP server, if the settings name an address; from `start` on."""

    def __init__(self, start: Start, bound: Callable[[], Awaitable[None]]) -> None:
        """`bound` is awaited once the other workers can reach this one."""
        super().__init__(start.settings)
        self._worker = start.worker
        self._when_bound = bound
        self.among = start.settings.workers.count, start.worker
        if not start.settings.federation.broker_id:
            # To other brokers all workers are one.
            self.router.broker_id = start.broker_id
        serve_all_workers(self.router, start.worker)
        workers = start.settings.workers.count
        folder = Path(start.settings.cluster.endpoint.path).parent
        self.siblings = Siblings(folder, start.worker, workers, self.faults.broke)
        ports = iter(start.ports)

        def make(server: ListenerHost, settings: ListenerSettings) -> Listener:
            listener = PassedOnListener(server, settings)
            listener.endpoint = listener.endpoint._replace(port=next(ports))
            return listener

        self.listeners = Listeners(self, make)
        self.router.limits.relays_retained = not start.settings.store.path
        self.router.limits.presence_crosses = True
        if self.router.limits.relays_retained:
            self.router.retained_store.is_echo = self._is_echo

        def home_of(group: str) -> str:
            home = worker_of(group.encode(), workers)
            return "" if home == start.worker else NODES + name_of(home)

        self.router.table.home_of = home_of
        self.router.keeps = lambda client_id: worker_of(client_id.encode(), workers) == start.worker

        self.limits_applied: Callable[[], None] = lambda: None
        """Called when limits were applied anew."""

    def _is_echo(self, topic: str, at: int) -> bool:
        return self.presence is not None and self.presence.is_echo(topic, at)

    def apply_limits(self, settings: Settings) -> None:
        super().apply_limits(settings)
        self.limits_applied()

    async def start(self) -> None:
        """Serve, and then answer the other workers. Raises StartupError."""
        await super().start()
        self.explainer.leaves_out = NODES
        self.siblings.answers["not ready"] = self._not_ready
        await self.siblings.start()

    async def stop(self) -> None:
        await self.siblings.stop()
        await super().stop()

    def make_sys_topics(self) -> SysTopics:
        self.figures.worker = self.siblings.name
        return CrewSysTopics(self.figures, self.settings.sys.interval, self.siblings, self._raised)

    def make_admin(self) -> AdminServer:
        # Not before: it takes 20 MB.
        from canopy_mqtt.workers.http_server import WorkerAdminServer

        self.http_server = WorkerAdminServer(self, self.settings.http, self.siblings)
        return self.http_server

    def _raised(self) -> dict[str, dict[str, Any]]:
        alarms = [] if self.alarms is None else self.alarms.active.values()
        return {alarm.name: alarm.fields() for alarm in alarms}

    async def _not_ready(self) -> list[str]:
        return self.not_ready()

    def make_cluster(self) -> Cluster:
        return Cluster(self, WorkerLinks)

    async def meet_nodes(self, cluster: Cluster) -> None:
        """Wait for no other worker: the supervisor gives this one clients once all are linked."""

    async def prepare_links(self, records: list[SessionRecord]) -> None:
        """Make the links to the other workers, which connect once all can be reached."""
        await super().prepare_links(records)
        assert self.cluster is not None
        self.cluster.opened = self._when_bound

    def suspicious(self, settings: Settings) -> list[str]:
        """Return warnings about settings, at the first worker: they are the same at all."""
        return super().suspicious(settings) if self._worker == 0 else []

    def warn(self, settings: Settings) -> None:
        """Log warnings about links, at the first worker."""
        if self._worker == 0:
            super().warn(settings)


class Worker:
    """The broker of this process, and its conversation with the supervisor."""

    def __init__(self, start: Start, sock: socket.socket) -> None:
        self._broker = WorkerBroker(start, self._wait_for_others)
        self._broker.process = Process(None, logs.set_level)
        self._broker.process.changed = self._broker.log_changed
        self._broker.connection_log.write = logs.json_write()
        self._sock = sock
        self._counted = Counted(
            self._broker.connection_table, self._broker.router.limits, partial(self._tell, "counted")
        )
        self._bans = BansOfAll(self._broker, start.worker, self._tell)
        self._totals = Totals(self._broker)
        self._wills = None if start.settings.store.path else ToldWills(self._broker.router, self._tell)
        self._broker.limits_applied = self._keep_to_limits
        self._place = Place(
            start.worker, start.settings.workers.count, self._pass_on, self._served, of_http(start.settings)
        )
        self._stopping = asyncio.Event()
        self._others_there = asyncio.Event()
        self._works: set[asyncio.Task[None]] = set()
        # Those that are in no line of the log yet, and when the last one was written.
        self._lost_connections, self._lost_told = 0, -TELL
        # What the supervisor says without a descriptor, by its first word, and what is done then.
        self._does: dict[str, Callable[..., object]] = {
            "go on": self._others_there.set,
            "link": lambda other: self._begin(self._link(other)),
            "parts": lambda *parts: self._tell("uses", *self._totals.take(*parts)),
            "short": self._broker.connection_table.end_unaccepted,
            "ping": lambda: self._tell("pong"),
            "reload": lambda *given: self._begin(self._reload(*given)),
            "drain": lambda: self._begin(self._drain()),
            "stop": self._stop,
            **self._bans.says,
        }
        if self._wills is not None:
            self._does["wills"] = self._wills.take
        # From `run` on.
        self._channel: Channel

    async def run(self) -> str:
        """Serve until the supervisor has it stop, or is gone; or return why it stops by itself. Raises StartupError."""
        broker = self._broker
        loop = asyncio.get_running_loop()
        gc.collect()
        broker.before_listening = gc.freeze
        broker.suspended = daemon.Suspends(loop).look
        path = Path(broker.settings.cluster.endpoint.path)
        self._channel = Channel(self._sock, self._received, lambda: supervisor_gone(path), broker.faults.broke)
        await broker.start()
        self._bans.start()
        gc.freeze()
        gc.set_threshold(*daemon.GC_THRESHOLDS)
        self._channel.send("open")
        asked, broken = loop.create_task(self._stopping.wait()), loop.create_task(broker.broken())
        try:
            await asyncio.wait((asked, broken), return_when=asyncio.FIRST_COMPLETED)
            return "" if asked.done() else broken.result()
        finally:
            asked.cancel()
            broken.cancel()
            for work in self._works:
                work.cancel()
            until = loop.time() + broker.settings.shutdown.flush_timeout + LINGER
            await broker.stop()
            if self._wills is not None:
                self._wills.flush()
            while self._unfinished and loop.time() < until:  # noqa: ASYNC110 (nothing tells when)
                # Clients of other workers have the same time to take what waits for them.
                await asyncio.sleep(LOOK)
            self._channel.close()

    @property
    def _unfinished(self) -> bool:
        """Return whether there is more to do before this process ends."""
        return bool(self._place.relays) or self._channel.sending

    async def _wait_for_others(self) -> None:
        """Tell the supervisor that others can reach this worker, and wait until it says that all can be reached."""
        self._channel.send("bound")
        await self._others_there.wait()
        if self._stopping.is_set():
            raise StartupError("the broker was stopped before it had started")

    def _stop(self) -> None:
        """End in order."""
        self._stopping.set()
        self._others_there.set()

    def _received(self, sock: socket.socket | None, what: str, *given: Any) -> None:
        """Do what the supervisor says."""
        if what == "connection":
            # That has to leave before anything is done with it: what was not taken, another process gets.
            self._channel.send("taken", then=lambda: self._take(given[0], sock))
        elif what == "http":
            self._begin(self._serve_http(given[0], sock))
        else:
            self._does[what](*given)

    def _take(self, found: Arrival, sock: socket.socket | None) -> None:
        self._counted.arrive(found)
        if sock is None:
            self._lost()
            self._counted.begun(found)
        else:
            self._begin(self._connect(found, sock))

    def _keep_to_limits(self) -> None:
        """Keep to the limits of all workers after a reload."""
        self._counted.limit()
        self._totals.limit()

    def _tell(self, *said: object) -> None:
        """Say something to the supervisor."""
        self._channel.send(*said)

    def _lost(self) -> None:
        """Count it. One line in `TELL` seconds says how many there were: a flood costs no line for each connection."""
        self._lost_connections += 1
        now = asyncio.get_running_loop().time()
        if now - self._lost_told > TELL:
            self._broker.log.error(
                "connection is lost", reason="too few file descriptors", total=self._lost_connections, interval=TELL
            )
            self._lost_connections, self._lost_told = 0, now

    async def _serve_http(self, address: int, sock: socket.socket | None) -> None:
        """Serve a connection of `[http]`."""
        if sock is None:
            self._lost()
        elif self._broker.http_server is None:
            # The broker stops.
            sock.close()
        else:
            await self._broker.http_server.take(address, sock)

    def _pass_on(self, found: Arrival, sock: socket.socket) -> None:
        """Have the supervisor pass a connection on to another worker."""
        # The connection counts no more by then.
        self._counted.flush()
        self._channel.send("connection", found, sock=sock, then=sock.close)

    def _served(self) -> int:
        return len(self._broker.connection_table.connections)

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._works.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._broker.faults.broke("workers", error)

    async def _connect(self, found: Arrival, sock: socket.socket) -> None:
        listener = cast(PassedOnListener, self._broker.listeners.all[found.listener])
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: listener.begin(found, self._place, self._counted), sock
            )
        except OSError:
            # Its client has gone.
            sock.close()
        self._counted.begun(found)

    async def _reload(self, number: int, takes: bool, settings: Settings) -> None:
        """Take up other settings, or check them, and say what came of it. `number`: of the question."""
        problems: list[str] = []
        lines: list[str] = []
        try:
            if takes:
                lines = await self._broker.reload(settings)
            else:
                await self._broker.check_reload(settings)
        except SettingsError as error:
            problems = list(error.problems)
        except RuntimeError as error:
            problems = [str(error)]
        self._channel.send(f"reloaded {number}", problems, lines)

    async def _drain(self) -> None:
        """Say when no message waits here for another worker, nor is on its way there.

        It is logged how many do. Where that stays the same for long, this worker says so, and ends.
        """
        broker, loop = self._broker, asyncio.get_running_loop()
        before, changed, told = -1, loop.time(), loop.time()
        while left := self._for_others():
            if left != before:
                before, changed = left, loop.time()
            elif loop.time() - changed > STUCK:
                why = f"has {left:,} messages for other workers, and none has gone in {STUCK:g} s"
                self._channel.send("failed", f"worker {broker.settings.cluster.node} {why}")
                self._stop()
                return
            if loop.time() - told > TELL:
                told = loop.time()
                broker.log.warning("messages wait for other workers", messages=left)
            await asyncio.sleep(LOOK)
        self._channel.send("drained")

    def _for_others(self) -> int:
        """Return how many messages wait for other workers, or are on their way there, or to very many sessions."""
        nodes = [session for name, session in self._broker.router.sessions.items() if name.startswith(NODES)]
        found = sum((node.waiting_messages() + len(node.inflight)) or node.backlog for node in nodes)
        return found + self._broker.router.fanout.broadcasting

    async def _link(self, other: str) -> None:
        """Say when the link to another worker is up, and that one knows all that is wanted here."""
        links, cluster = self._broker.links, self._broker.cluster
        assert links is not None
        assert cluster is not None
        await cluster.listener.renew_file()
        await self._broker.siblings.renew()
        link = links.links[NODES + other]
        assert isinstance(link, NodeLink)
        link.hurry()
        while not (link.connected and link.declarer.settled):  # noqa: ASYNC110 (nothing tells when)
            await asyncio.sleep(LOOK)
        self._channel.send(f"linked {other}")


def main(sock: socket.socket) -> int:
    """Run a worker that says what it does over this socket, and return its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    daemon.ignore_signals()
    daemon.raise_descriptor_limit(0)
    try:
        start: Start = first_said(sock)[0]
    except EOFError:
        return 1
    settings = start.settings
    with closing(BackgroundWriter(sys.stderr)) as writer:
        logs.configure(settings.log.level, settings.log.format, writer)
        try:
            with asyncio.Runner(loop_factory=daemon.loop_factory()) as runner:
                why = runner.run(_serve(start, sock))
        except (StartupError, StoreError, daemon.DaemonError) as error:
            _say_why(sock, str(error))
            return 1
        except Exception as error:
            log: Any = structlog.get_logger("canopy")
            log.error("worker failed", exc_info=error)
            _say_why(sock, f"a fault of Canopy: {type(error).__name__}: {error}")
            return 1
    return 1 if why else 0


def supervisor_gone(path: Path) -> None:
    """End at once, as if killed too: the next supervisor shall find the store free. `path`: of this worker's socket.

    The last worker removes the folder, too. The supervisor may be there all the same, and start this worker again.
    """
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        socket_of(path.parent, path.stem).unlink(missing_ok=True)
        supervisors = socket_of(path.parent, SUPERVISOR)
        if os.listdir(path.parent) == [supervisors.name]:
            supervisors.unlink(missing_ok=True)
        path.parent.rmdir()
    os._exit(KILLED)


async def _serve(start: Start, sock: socket.socket) -> str:
    return await Worker(start, sock).run()


def _say_why(sock: socket.socket, why: str) -> None:
    """Tell the supervisor why it does not start. It blocks."""
    with contextlib.suppress(OSError):
        sock.setblocking(True)
        sock.sendall(encoded("failed", why))
