"""A whole broker: the server and what stands beside it. What an embedding program and the daemon run.

Owns the composition, and nothing else: each room is built, started and stopped here, in the order in which they need
each other.

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        port = broker.ports[0]
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from broker.net.server import Server, StartupError
from broker.observe.systopics import SysTopics
from broker.settings import Settings
from broker.upstream.links import Links

if TYPE_CHECKING:
    from broker.record.recorder import Recorder

__all__ = ["Broker", "StartupError"]


class Broker(Server):
    """An MQTT broker inside an asyncio program. Constructible without a running loop."""

    recorder: Recorder | None = None
    """Who records what goes through it, where the settings name a folder; from `start` on."""
    links: Links | None = None
    """Its links to upstream brokers; from `start` on."""

    async def start(self) -> None:
        """Listen, and begin to record and to publish `$SYS`. Raises StartupError in one line."""
        # Before anything can happen that belongs into a record.
        self.recorder = self._recorder(self.settings)
        if self.recorder is not None:
            await self.recorder.start()
        try:
            await super().start()
        except BaseException:
            if self.recorder is not None:
                await self.recorder.stop()
            raise
        self.links = Links(self)
        self.links.start()
        self._sys = SysTopics(self, self.settings.sys.interval, self.recorder, self.links)
        self._sys.start()

    async def emptied(self) -> None:
        """The clients are gone, and what they left behind is on its way up: end the links."""
        if self.links is not None:
            await self.links.stop()

    async def stop(self) -> None:
        """End in order (see `Server.stop`)."""
        if hasattr(self, "_sys"):
            self._sys.stop()
        try:
            await super().stop()
        finally:
            if self.recorder is not None:
                # Last: the ends of the connections are recorded too.
                await self.recorder.stop()

    def _recorder(self, settings: Settings) -> Recorder | None:
        """The recorder of the settings, if they ask for one. Raises StartupError without pyarrow."""
        wanted = settings.recorder
        if not wanted.directory:
            return None
        try:
            from broker.record.recorder import Options, Recorder
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise StartupError(
                "recorder.directory needs pyarrow: install Canopy with its extra: pip install 'canopy-mqtt[record]'"
            ) from error
        options = Options(
            Path(wanted.directory),
            tuple(wanted.filters),
            wanted.payloads,
            wanted.deliveries,
            wanted.segment_bytes,
            wanted.segment_seconds,
            wanted.queue_events,
            wanted.queue_bytes,
        )
        return Recorder(options, self.router, self.log)

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
