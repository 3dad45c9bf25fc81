"""A store in PostgreSQL: a task that does one thing after another over one connection.

Owns the task, and when the lease is renewed while nothing is written. `GroupCommitter` decides when groups end, and
what happens if they cannot be written.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from canopy_mqtt.core.persistence.journal import DeliveryRecord
from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.store.base import IN_USE, StoreError
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.group_commit.committer import STALL_TIMEOUT
from canopy_mqtt.store.group_commit.records import Loaded
from canopy_mqtt.store.group_commit.store import GroupStore
from canopy_mqtt.store.postgresql.database import BEATS, FAILURES, Behind, Database, Replaced
from canopy_mqtt.store.postgresql.opening import open_for_broker
from canopy_mqtt.store.postgresql.reading import discard, discard_deliveries, read, read_alone
from canopy_mqtt.store.postgresql.sweeping import Sweep
from canopy_mqtt.store.postgresql.writing import write

LEASE_TIMEOUT: Final = 15.0
"""Seconds for which the tables stay a broker's that was killed."""

SLOWEST: Final = 1024 * 1024
"""Bytes of a group that the network brings in a second at least: a large group may take longer than a small one."""

IDLE: Final = 0.05
"""Seconds without work after which the next piece of the background's is done."""

BETWEEN: Final = 0.25
"""Seconds between two pieces of it where groups leave no idle time."""

MEASURED: Final = 60.0
"""Seconds between two looks at how large the tables are."""

SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
    " WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)"
)

Job = Callable[[], Awaitable[None]]


class PostgresStore(GroupStore):
    """Keeps everything in a schema of a database."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "canopy",
        node: str = "",
        lease_timeout: float = LEASE_TIMEOUT,
        synchronous: str = "full",
        stall_timeout: float = STALL_TIMEOUT,
        **terms: Any,
    ) -> None:
        """`name`: the schema; `node`: which broker this is, for people; `lease_timeout`: seconds after which another
        broker may take the tables of one that was killed; all else: see `GroupStore`."""
        self._database = Database(
            url,
            name,
            node=node or f"{socket.gethostname()} process {os.getpid()}",
            synchronous=synchronous,
            stall_timeout=stall_timeout,
            lease_timeout=lease_timeout,
        )
        super().__init__(self._database.place, synchronous=synchronous, stall_timeout=stall_timeout, **terms)
        self._sweep = Sweep(self._database)
        # While it is open: the task, what it is to do, and what tells it of more.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._jobs: deque[Job] = deque()
        self._more = asyncio.Event()
        self._ending = False
        self._pulse: asyncio.TimerHandle | None = None
        # Whether the background may have anything to do; when it had its last piece, and when the tables were measured.
        self._untidy = True
        self._tidied = 0.0
        self._measured = 0.0
        self._bytes = 0
        # Deliveries that cannot be used, to be removed when there is time.
        self._damaged: list[int] = []

    # -- a broker's life -----------------------------------------------------------------------------------------------

    async def open(self, clock: Callable[[], float]) -> None:
        """Open the store. Raises StoreError: the database cannot be used; it says why and what to do."""
        if self._task is not None:
            raise StoreError(IN_USE)
        loop = asyncio.get_running_loop()
        begun = await open_for_broker(self._database)
        if not self._committer.unfinished():
            self._database.group = begun.group
        self._times.start(clock, begun.note)
        self._loop = loop
        self._ending = False
        self._untidy = True
        self._task = loop.create_task(self._run(), name="canopy-store")
        self._committer.start(loop, begun.highest)
        self._beat()

    async def _load(self, now: float) -> Loaded:
        async def work() -> Loaded:
            loaded = await read(self._database, now, self._principals, self._pages.page)
            await discard(self._database, loaded)
            return loaded

        try:
            loaded: Loaded = await self._ask(work)
        except asyncio.CancelledError:
            # Nobody wants to know any more, and `close` waits for the task.
            self._database.drop()
            raise
        return loaded

    async def close(self) -> None:
        task = self._task
        if task is None:
            return
        try:
            await self._committer.finish()
        finally:
            if self._pulse is not None:
                self._pulse.cancel()
                self._pulse = None
            self._committer.rest()
            self._ending = True
            self._more.set()
            _, late = await asyncio.wait((task,), timeout=self._database.timeout)
            if late:
                task.cancel()
                await asyncio.wait((task,))
            # It may have told of something last.
            await asyncio.sleep(0)
            self._committer.stop()
            self._jobs.clear()
            await self._database.give_up()
            await self._database.disconnect()
            self._task = self._loop = None

    def _size(self) -> int:
        return self._bytes

    # -- the task ------------------------------------------------------------------------------------------------------

    def _put(self, job: Job) -> None:
        self._jobs.append(job)
        self._more.set()

    async def _ask(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Let the task do something, and return its result. Raises StoreError, and what the work raises."""
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def job() -> None:
            try:
                found = await work()
            except FAILURES as error:
                self._database.drop()
                _fail(outcome, StoreError(self._database.told(error)))
            except Exception as error:
                _fail(outcome, error)
            else:
                if not outcome.done():
                    outcome.set_result(found)

        self._put(job)
        return await outcome

    async def _run(self) -> None:
        """Do the work one after another, and pieces of the background's in between."""
        while True:
            if self._jobs:
                await self._jobs.popleft()()
                if self._untidy and asyncio.get_running_loop().time() - self._tidied >= BETWEEN:
                    await self._tidy()
                continue
            if self._ending:
                if self._damaged:
                    await self._tidy()
                return
            self._more.clear()
            try:
                async with asyncio.timeout(IDLE if self._untidy else None):
                    await self._more.wait()
            except TimeoutError:
                await self._tidy()

    async def _tidy(self) -> None:
        """Do one piece. An error is not reported: the piece is tried again with the next group, which reports it."""
        self._tidied = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._database.timeout):
                numbers, self._damaged = self._damaged, []
                if numbers:
                    await discard_deliveries(self._database, numbers)
                self._untidy = await self._sweep.piece()
                if not self._untidy and (self._bytes == 0 or self._tidied - self._measured >= MEASURED):
                    self._measured = self._tidied
                    [[self._bytes]] = await self._database.fetch(SIZE, self._database.name)
        except Exception:
            self._database.drop()
            self._untidy = False

    def _beat(self) -> None:
        """Renew the lease, unless a group has just done so; and know whether the database is there."""
        loop = self._loop
        if loop is None:
            return
        self._pulse = loop.call_later(self._database.lease_timeout / (2 * BEATS), self._beat)
        if self._database.is_due():
            self._committer.beat()

    # -- its work ------------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        committer = self._committer

        async def job() -> None:
            try:
                async with asyncio.timeout(self._database.timeout + batch.size / SLOWEST):
                    await write(self._database, batch, self._principals.write)
            except Exception as error:  # whatever it is: whoever waits for the group is to be told
                self._database.drop()
                for_good = isinstance(error, Replaced | Behind)
                self._tell(partial(committer.failed, batch, self._database.told(error), for_good=for_good))
                if isinstance(error, Replaced):
                    self._tell(self._replaced)
            else:
                if batch.gone or batch.finished or batch.unpaged or batch.retained_cleared:
                    self._untidy = True
                self._tell(partial(committer.written, batch))

        self._put(job)

    def _replaced(self) -> None:
        if self.listener is not None and self._loop is not None:
            self.listener.replaced()

    def read(self, fetch: Fetch, session: int) -> None:
        fetches = self._committer.fetches

        async def job() -> None:
            found: tuple[list[DeliveryRecord], Damages] = ([], Damages())
            try:
                if not fetch.over:
                    async with asyncio.timeout(self._database.timeout):
                        now = self._times.now()
                        found = await read_alone(self._database, session, fetch.first, fetch.last, now)
            except Exception as error:
                self._database.drop()
                self._tell(partial(fetches.unread, fetch, self._database.told(error)))
            else:
                self._tell(partial(fetches.found, fetch, *found))

        self._put(job)

    def discard(self, numbers: list[int]) -> None:
        self._damaged += numbers
        self._untidy = True
        self._more.set()

    def _tell(self, outcome: Callable[[], None]) -> None:
        """Report an outcome in a later turn of the event loop: whatever comes of it, the task goes on."""
        if self._loop is not None:
            self._loop.call_soon(outcome)

    def stalled(self) -> str:
        return (
            f"{self._database.place}: the database does not answer: look at its log, its disk and the network "
            f"(a write takes more than {self._database.timeout:g} s)"
        )


def _fail(outcome: asyncio.Future[Any], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
