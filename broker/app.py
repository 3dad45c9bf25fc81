"""A whole broker: the server and what stands beside it. What an embedding program and the daemon run.

Owns the composition, and nothing else: each room is built, started and stopped here, in the order in which they need
each other.

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        port = broker.ports[0]
"""

from __future__ import annotations

from types import TracebackType

from broker.net.server import Server, StartupError
from broker.observe.systopics import SysTopics

__all__ = ["Broker", "StartupError"]


class Broker(Server):
    """An MQTT broker inside an asyncio program. Constructible without a running loop."""

    async def start(self) -> None:
        """Listen, and begin to publish `$SYS`. Raises StartupError in one line."""
        await super().start()
        self._sys = SysTopics(self, self.settings.sys.interval)
        self._sys.start()

    async def stop(self) -> None:
        """End in order (see `Server.stop`)."""
        if hasattr(self, "_sys"):
            self._sys.stop()
        await super().stop()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
