"""The bus of one node, on Zenoh: who is there, and what goes between two nodes.

Owns the members, their senders, and the membership that rooms are told of. Keeps the promises of `broker.mesh.bus`: a
node is there when both have greeted each other (`broker.mesh.member`), and what is said to it in one turn of the event
loop goes in one frame. A node leaves when it says so, when Zenoh sees its process gone, when a frame is missing, when
it is silent or takes nothing for `node_timeout`, when more waits for it than `queue_bytes`, and when it breaks the
protocol or a room of ours fails over it. Only in the last case is it not greeted again for `node_timeout`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.mesh import frames
from broker.mesh.bus import Bus, ProtocolFault, Room
from broker.mesh.member import ANSWER, JOINED, LEFT, Member
from broker.mesh.zenoh.inbox import Inbox, Payload
from broker.mesh.zenoh.sender import Sender
from broker.mesh.zenoh.session import MeshSession, same_id
from broker.net.log import Faults
from broker.settings.brokers.mesh import Mesh

TURN: Final = 1 << 20
"""Bytes that came from other nodes and are worked off in one turn of the event loop."""

LOOKS: Final = 6
"""How often within `node_timeout` members are looked at."""

BEATS: Final = 3
"""Signs of life within `node_timeout`, where there is nothing else to say."""

FIRST_GREETING: Final = 0.05
"""Seconds after which a greeting without answer is repeated; then twice as many, up to `LAST_GREETING`."""

LAST_GREETING: Final = 2.0

RESTLESS: Final = 5.0
"""A node that begins anew so many seconds after it joined rests for `REST` seconds first."""

REST: Final = 1.0

FAREWELL: Final = 1.0
"""Seconds for what waits for other nodes when this one stops."""

STOPS: Final = "it stops"
"""Why a node leaves that says so."""

TOKEN: Final = 256
"""What word of a node that comes or goes counts of the bytes that wait for the event loop."""


class Entry:
    """One other node: the member, and how this bus goes about it."""

    __slots__ = (
        "greet_after", "greeting", "joined_at", "lost", "member", "refused", "rest_until", "sender", "tokens", "told",
        "waiting", "waiting_size",
    )  # fmt: skip

    def __init__(self, member: Member, sender: Sender) -> None:
        self.member = member
        self.sender = sender
        self.tokens: set[int] = set()
        """The incarnations that Zenoh knows to be alive."""
        self.told = False
        """The rooms know that it is there."""
        self.joined_at = 0.0
        self.lost = ""
        """Why it is to leave at the end of this turn."""
        self.rest_until = 0.0
        self.refused = 0
        """The incarnation of which the log has that it was refused."""
        self.greet_after = FIRST_GREETING
        self.greeting: asyncio.TimerHandle | None = None
        # Messages of this turn.
        self.waiting: list[bytes] = []
        self.waiting_size = 0


class ZenohBus(Bus):
    """The bus of one process. Made on the event loop.

    `failed`: called when another process turns out to have this node's id for longer, with a line for the operator.
    `versions`: what this node speaks, the lowest and the highest.
    """

    def __init__(
        self,
        settings: Mesh,
        log: Any,
        faults: Faults,
        failed: Callable[[str], None],
        versions: tuple[int, int] = (frames.LOWEST, frames.HIGHEST),
    ) -> None:
        self.node = settings.node or secrets.token_hex(8)
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        # Microseconds, so that the epochs of a process, which count from here, are above those of one before it.
        self.incarnation = time.time_ns() // 1_000 << 10 | secrets.randbits(10)
        self._log = log
        self._faults = faults
        self._failed = failed
        self._versions = versions
        self._epochs = itertools.count(self.incarnation).__next__
        self._rooms: dict[int, Room] = {}
        self._entries: dict[str, Entry] = {}
        self._inbox = Inbox(self.loop, self._look, settings.queue_bytes)
        # Taken from the inbox and not worked off.
        self._arrived: deque[tuple[str, Payload]] = deque()
        self._session = MeshSession(settings, self.node, self.incarnation, self._on_frame, self._on_token)
        # Those with messages of this turn, or to be let go of at its end.
        self._touched: list[Entry] = []
        self._flushing: asyncio.Handle | None = None
        self._working: asyncio.Handle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        # Until a node has joined, or the log has it that none has.
        self._alone_until = 0.0
        self._started = False

    # -- of every bus --------------------------------------------------------------------------------------------------

    def attach(self, kind: int, room: Room) -> None:
        """Have a room hear the messages of a kind. Before the bus is started."""
        self._rooms[kind] = room

    def nodes(self) -> list[str]:
        """The nodes that are there, without this one."""
        return [node for node, entry in self._entries.items() if entry.told]

    def version(self, node: str) -> int:
        """The version that is spoken with a node that is there."""
        entry = self._entries.get(node)
        return entry.member.version if entry is not None else 0

    def seen(self) -> list[str]:
        """The nodes that were there when this one came."""
        return self._session.seen

    def send(self, node: str, kind: int, data: bytes) -> None:
        """Have a message arrive at a node, in one frame with the others of this turn."""
        entry = self._entries.get(node)
        if entry is None or not entry.told or entry.lost:
            return
        if not entry.waiting:
            self._touched.append(entry)
            if self._flushing is None:
                self._flushing = self.loop.call_soon(self._flush)
        entry.waiting.append(frames.message(kind, data))
        entry.waiting_size += len(data) + frames.OVERHEAD
        if entry.waiting_size + entry.sender.waiting > self.settings.queue_bytes:
            # Who sends is not told in the midst of it.
            entry.lost = "more waits for it than mesh.queue_bytes"
            entry.waiting.clear()

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Become a node of the mesh.

        Raises:
            MeshError: an address or a file cannot be used, or another process has this node's id.
        """
        await self.loop.run_in_executor(None, self._session.open)
        self._started = True
        self._alone_until = self.loop.time() + self.settings.node_timeout
        self._look()
        self._tick()
        self._log.info("mesh joined", mesh=self.settings.name, node=self.node, listen=list(self.settings.listen))

    async def stop(self) -> None:
        """Leave: the other nodes hear so after what was sent, and the rooms here hear that all have left."""
        if not self._started:
            return
        self._started = False
        self._flush()
        now = self.loop.time()
        for entry in list(self._entries.values()):
            if entry.told:
                entry.sender.offer(entry.member.frame([frames.message(frames.CONTROL, b"")], now))
            entry.sender.stop()
            self._leave(entry, "")
            self._quiet(entry)
        for handle in (self._ticking, self._flushing, self._working):
            if handle is not None:
                handle.cancel()
        await self.loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        until = time.monotonic() + FAREWELL
        for entry in self._entries.values():
            entry.sender.join(max(0.0, until - time.monotonic()))
        self._session.leave()
        self._session.close()

    # -- called by Zenoh's threads -------------------------------------------------------------------------------------

    def _on_frame(self, key: str, payload: bytes) -> None:
        self._inbox.put(key.rpartition("/")[2], payload, len(payload))

    def _on_token(self, key: str, alive: bool) -> None:
        self._inbox.put(key, alive, TOKEN)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._working is None and self._started:
            self._work()

    def _work(self) -> None:
        self._working = None
        arrived = self._arrived
        if not arrived:
            arrived.extend(self._inbox.take())
        size = 0
        while arrived and size < TURN:
            source, payload = arrived.popleft()
            if isinstance(payload, bool):
                self._hear_of(source, payload)
            else:
                self._hear(source, payload)
                size += len(payload)
        if arrived or not self._inbox.empty:
            self._working = self.loop.call_soon(self._work)

    def _hear_of(self, key: str, alive: bool) -> None:
        """A process is there, or is gone."""
        *_, node, last = key.split("/")
        if not last.isdecimal():
            return
        incarnation = int(last)
        if node == self.node:
            if alive and incarnation < self.incarnation:
                self._log.error("another process has this node's id", mesh=self.settings.name, node=node)
                self._failed(same_id(self.settings.name, node))
            return
        if alive:
            entry = self._entry(node)
            entry.tokens.add(incarnation)
            self._greet(entry)
            return
        gone = self._entries.get(node)
        if gone is None:
            return
        gone.tokens.discard(incarnation)
        if not gone.tokens:
            self._leave(gone, "its process has gone, or the way to it")
            self._forget(gone)
        elif gone.member.incarnation == incarnation:
            self._leave(gone, "its process has gone, or the way to it")
            gone.member.process_gone()
            self._greet(gone)

    def _hear(self, node: str, payload: bytes) -> None:
        """A greeting or a frame."""
        entry = self._entry(node)
        now = self.loop.time()
        if now < entry.rest_until or entry.lost:
            return
        member = entry.member
        messages: list[tuple[int, bytes]] = []
        try:
            kind = payload[0] if payload else -1
            if kind == frames.GREETING:
                outcome = member.hears_greeting(payload, now)
            elif kind == frames.FRAME:
                outcome, messages = member.hears_frame(payload, now)
            else:
                raise ProtocolFault(f"neither a greeting nor a frame begins with {kind}")
        except ProtocolFault as fault:
            self._shun(entry, fault)
            return
        if outcome:
            self._follow(entry, outcome, kind)
        for kind, data in messages:
            if not entry.told or entry.lost:
                return
            self._deliver(entry, kind, data)

    def _follow(self, entry: Entry, outcome: int, kind: int) -> None:
        member = entry.member
        if outcome & LEFT:
            self._leave(entry, "it begins anew" if kind == frames.GREETING else "frames were lost")
        if outcome & ANSWER and not entry.rest_until > self.loop.time():
            entry.sender.offer(member.greeting())
        if member.refused:
            self._quiet(entry)
            if entry.refused != member.incarnation:
                entry.refused = member.incarnation
                lowest, highest = member.their_versions
                self._log.error(
                    "node refused",
                    node=member.node,
                    why=f"it speaks versions {lowest} to {highest} of the mesh, this node {self._versions[0]} to "
                    f"{self._versions[1]}: update one of them",
                )
        elif outcome & JOINED:
            self._join(entry)
        elif not member.there:
            self._greet_again(entry)

    def _deliver(self, entry: Entry, kind: int, data: bytes) -> None:
        room = self._rooms.get(kind)
        try:
            if room is not None:
                room.received(entry.member.node, data)
            elif kind == frames.CONTROL:
                self._leave(entry, STOPS)
            else:
                raise ProtocolFault(f"no message is of kind {kind}")
        except Exception as error:
            self._shun(entry, error)

    # -- membership ----------------------------------------------------------------------------------------------------

    def _entry(self, node: str) -> Entry:
        entry = self._entries.get(node)
        if entry is None:
            sender = Sender(node, lambda: self._session.publisher(node))
            member = Member(node, self.incarnation, self._versions, self._epochs)
            entry = self._entries[node] = Entry(member, sender)
            entry.member.heard_at = self.loop.time()
        return entry

    def _join(self, entry: Entry) -> None:
        self._quiet(entry)
        member = entry.member
        entry.told = True
        self._alone_until = 0.0
        entry.joined_at = self.loop.time()
        self._log.info("node joined", node=member.node, version=member.version)
        try:
            for room in self._rooms.values():
                room.joined(member.node)
        except Exception as error:
            self._shun(entry, error)

    def _leave(self, entry: Entry, why: str) -> None:
        """Have the rooms know that a node is gone. `why`: for the log; "": it is this node that goes."""
        entry.member.begin_anew()
        entry.lost = ""
        entry.waiting.clear()
        entry.waiting_size = 0
        if not entry.told:
            return
        entry.told = False
        node = entry.member.node
        if why == STOPS:
            self._log.info("node left", node=node, why=why)
        elif why:
            self._log.warning("node left", node=node, why=why)
            entry.sender.clear()
        for room in self._rooms.values():
            try:
                room.left(node)
            except Exception as error:
                self._faults.broke("mesh", error, node=node)

    def _begin_anew(self, entry: Entry, why: str) -> None:
        """Let go of a node that is to join again."""
        now = self.loop.time()
        if entry.told and now - entry.joined_at < RESTLESS:
            entry.rest_until = max(entry.rest_until, now + REST)
        self._leave(entry, why)
        # It hears at once that it is let go of, and may join when it is greeted again.
        entry.sender.offer(entry.member.greeting())
        self._greet_again(entry)

    def _shun(self, entry: Entry, error: Exception) -> None:
        """Let go of a node that breaks the protocol, or of whose messages a room of ours has failed."""
        node = entry.member.node
        if isinstance(error, ProtocolFault):
            self._log.error("node broke the protocol", node=node, why=str(error))
        else:
            self._faults.broke("mesh", error, node=node)
        entry.rest_until = self.loop.time() + self.settings.node_timeout
        self._begin_anew(entry, "it was let go of")

    def _forget(self, entry: Entry) -> None:
        self._quiet(entry)
        entry.sender.clear()
        entry.sender.stop()
        self._entries.pop(entry.member.node, None)

    # -- greeting ------------------------------------------------------------------------------------------------------

    def _greet(self, entry: Entry) -> None:
        """Greet a node now, and until it is there."""
        if entry.member.there or self.loop.time() < entry.rest_until:
            return
        entry.greet_after = FIRST_GREETING
        entry.sender.offer(entry.member.greeting())
        self._greet_again(entry)

    def _greet_again(self, entry: Entry) -> None:
        if entry.greeting is None:
            wait = max(entry.greet_after, entry.rest_until - self.loop.time())
            entry.greeting = self.loop.call_later(wait, self._greet_due, entry)

    def _greet_due(self, entry: Entry) -> None:
        entry.greeting = None
        if entry.member.there or entry.member.refused:
            return
        if not entry.sender.waiting:
            entry.sender.offer(entry.member.greeting())
        entry.greet_after = min(2 * max(entry.greet_after, FIRST_GREETING), LAST_GREETING)
        self._greet_again(entry)

    def _quiet(self, entry: Entry) -> None:
        if entry.greeting is not None:
            entry.greeting.cancel()
            entry.greeting = None

    # -- what goes -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what this turn has said."""
        self._flushing = None
        touched, self._touched = self._touched, []
        now = self.loop.time()
        for entry in touched:
            if entry.lost:
                self._begin_anew(entry, entry.lost)
            elif entry.waiting:
                self._send(entry, now)

    def _send(self, entry: Entry, now: float) -> None:
        messages = entry.waiting
        entry.waiting = []
        entry.waiting_size = 0
        member, sender = entry.member, entry.sender
        size = begin = 0
        for place, each in enumerate(messages):
            if size and size + len(each) > frames.LARGEST:
                sender.offer(member.frame(messages[begin:place], now))
                begin, size = place, 0
            size += len(each)
        sender.offer(member.frame(messages[begin:] if begin else messages, now))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.loop.time()
        timeout = self.settings.node_timeout
        every = timeout / LOOKS
        self._ticking = self.loop.call_later(every, self._tick)
        # A loop that was held up has not heard what came meanwhile.
        late = bool(self._ticked_at) and now - self._ticked_at > 2 * every
        self._ticked_at = now
        if 0.0 < self._alone_until <= now:
            # Zenoh does not say why it reaches nobody.
            self._alone_until = 0.0
            self._log.warning("no other node", mesh=self.settings.name, connect=list(self.settings.connect))
        for entry in list(self._entries.values()):
            member = entry.member
            since = entry.sender.stalled_since(now)
            if entry.told:
                if late:
                    member.heard_at = max(member.heard_at, now - timeout + every)
                elif now - member.heard_at >= timeout:
                    self._begin_anew(entry, "it is silent")
                elif now - since >= timeout:
                    self._begin_anew(entry, "it takes nothing")
                elif now - member.said_at >= timeout / BEATS:
                    entry.sender.offer(member.frame([], now))
            elif not entry.tokens and now - member.heard_at > 2 * timeout:
                self._forget(entry)
