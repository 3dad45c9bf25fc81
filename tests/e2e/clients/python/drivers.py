"""One face for every client library, so that the same contract can be held against each.

Owns: `Driver`, what a library is asked to do, and the waiting. Promises: every wait is bounded and says what did not
come. Nothing works around a library or the broker: a driver sets only what its user would have to set to get the
behaviour the test asks for (a client identifier, a Will, a kept session); everything else stays at the library's
defaults, but for reconnecting by itself, which would hide a lost connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 20.0
"""Seconds until something that should happen counts as not happening."""

IN_FLIGHT: Final = 500
"""Publishes that `Driver.publish_all` has under way at once, where the library has no limit of its own."""

Opener = Callable[..., Awaitable["Driver"]]


@dataclass(frozen=True)
class Received:
    """One message as the library handed it to its user."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    user_properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Will:
    """The message left with the broker for an unexpected end."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


async def within(what: str, awaitable: Awaitable[T], seconds: float = PATIENCE) -> T:
    """Wait for something, and say what it was when it does not come."""
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError:
        raise AssertionError(f"nothing within {seconds:g} s: {what}") from None


class Driver(ABC):
    """A client of one library. `keep` asks for a session that outlives the connection."""

    v5 = False
    web = False
    """Over WebSocket."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        keep: bool = False,
        resume: bool | None = None,
        will: Will | None = None,
        keep_alive: int = 60,
    ) -> None:
        """`resume`: whether an earlier session is taken up; by default when the session is to be kept."""
        self.port = port
        self.client_id = client_id
        self.keep = keep
        self.resume = keep if resume is None else resume
        self.will = will
        self.keep_alive = keep_alive
        self.session_present = False
        self.inbox: asyncio.Queue[Received] = asyncio.Queue()
        self.ended = asyncio.Event()

    @abstractmethod
    async def connect(self) -> None:
        """Connect, and set `session_present`. Messages go to `inbox` from now on; `ended` tells of the end."""

    @abstractmethod
    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Subscribe; the code that the broker answered."""

    @abstractmethod
    async def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe; returns when the broker has answered."""

    @abstractmethod
    async def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """Publish; with QoS 1 and 2, returns when the exchange with the broker is complete."""

    @abstractmethod
    async def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        """Publish many, with many under way at once; returns when all exchanges are complete."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Leave with a DISCONNECT."""

    @abstractmethod
    async def cut(self) -> None:
        """Lose the connection without a DISCONNECT."""

    async def dispose(self) -> None:
        """After the test: be gone, in whatever state."""
        if not self.ended.is_set():
            await self.disconnect()

    async def receive(self) -> Received:
        """The next message."""
        return await within(f"a message for {self.client_id}", self.inbox.get())

    async def receive_all(self, count: int) -> list[Received]:
        """The next `count` messages."""
        found: list[Received] = []
        try:
            async with asyncio.timeout(PATIENCE * 2):
                while len(found) < count:
                    found.append(await self.inbox.get())
        except TimeoutError:
            raise AssertionError(f"{len(found)} of {count} messages came to {self.client_id}") from None
        return found

    async def gone(self) -> None:
        """Wait until the broker has ended the connection."""
        await within(f"the end of the connection of {self.client_id}", self.ended.wait())
