"""Calls plug-ins: each call is guarded, and `async` ones run one after the other, in a bounded queue."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.hooks.interface import defined
from canopy_mqtt.hooks.loading import check

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

STOP_TIMEOUT: Final = 5.0
"""Seconds that each plug-in's `stop` has, or `shutdown.flush_timeout` if that is more."""

PLACE: Final = "hooks"
"""The name under which exceptions of plug-ins are counted: `$SYS/broker/hooks/hooks/errors`."""


def code_of(answer: Any) -> int:
    """Return the reason code of a hook's answer; None is 0. Raises ValueError for other answers."""
    if answer is None:
        return 0
    if not isinstance(answer, int) or not 0 <= answer <= 0xFF:
        raise ValueError(f"a plug-in has answered {answer!r:.80}, which is no reason code")
    return int(answer)


async def _ends(task: asyncio.Future[Any], seconds: float) -> bool:
    """Return True when a task of plug-ins has ended. False: it has not within `seconds`, and is cancelled."""
    _, late = await asyncio.wait([task], timeout=seconds)
    for each in late:
        each.cancel()
        # The stop goes on even if the task does not let itself be cancelled.
        await asyncio.sleep(0)
    return not late


class PluginCalls:
    """Calls the plug-ins of one broker. `server` is set at its start."""

    def __init__(self, plugins: Sequence[Any]) -> None:
        """Raises PluginError: a plug-in defines no hook, or one that does not exist."""
        for plugin in plugins:
            check(plugin)
        self.plugins = tuple(plugins)
        self.server: Server | None = None
        self.left_out = 0
        """Calls of `async` hooks that found the queue full."""
        self._waiting: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    def of(self, name: str) -> list[Any]:
        """Return the methods of that name of all plug-ins that define it."""
        return [method for plugin in self.plugins if (method := defined(plugin, name)) is not None]

    def failed(self, error: Exception) -> None:
        if self.server is not None:
            self.server.faults.failed(PLACE, error)

    def notify(self, methods: list[Any], *arguments: Any) -> None:
        """Call each method; an exception harms neither the other plug-ins nor the broker."""
        for method in methods:
            if inspect.iscoroutinefunction(method):
                self._later(method, arguments)
                continue
            try:
                method(*arguments)
            except Exception as error:
                self.failed(error)

    def _later(self, method: Any, arguments: tuple[Any, ...]) -> None:
        assert self.server is not None
        if len(self._waiting) >= self.server.settings.limits.max_waiting_hooks:
            self.left_out += 1
            if self.left_out & (self.left_out - 1) == 0:
                self.server.log.warning("hooks do not keep up", left_out=self.left_out)
            return
        self._waiting.append((method, arguments))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Run the queued calls in order: a plug-in hears of events in the order in which they happened."""
        while self._waiting:
            method, arguments = self._waiting.popleft()
            try:
                await method(*arguments)
            except Exception as error:
                self.failed(error)

    async def finish(self) -> None:
        """Accept no more calls, and wait for the queued ones."""
        worker, self._worker = self._worker, None
        if worker is not None and not await _ends(worker, self._flush_timeout):
            self._waiting.clear()

    async def stop(self) -> None:
        """Call `stop` of each plug-in and await it; exceptions are logged, and one that does not end in time."""
        for method in self.of("stop"):
            try:
                answer = method()
                if inspect.isawaitable(answer):
                    task = asyncio.ensure_future(answer)
                    timeout = max(STOP_TIMEOUT, self._flush_timeout)
                    if not await _ends(task, timeout):
                        raise TimeoutError(f"a plug-in's stop has taken longer than {timeout:g} s")
                    task.result()
            except Exception as error:
                self.failed(error)

    @property
    def _flush_timeout(self) -> float:
        assert self.server is not None
        return self.server.settings.shutdown.flush_timeout

    @property
    def connect_timeout(self) -> float | None:
        """The seconds in which a CONNECT has to be decided."""
        assert self.server is not None
        return self.server.settings.limits.connect_timeout or None
