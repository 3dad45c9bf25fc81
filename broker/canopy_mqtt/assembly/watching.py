"""Watches files that are read again when they change: passwords, keys, certificates, rules.

Owns one task that watches the folders of the files, not the files: an editor renames a new file, and Kubernetes
replaces a link to a folder. A file has changed if its path leads to another file, time or size. The system's
notifications only trigger the check; without them (network file systems) it runs every `LOOK` milliseconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

QUIET: Final = 0.25
"""Seconds without another change after which files count as written: a certificate and its key come one by one."""

MAX_WAITS: Final = 12
"""Waits after which changes are reported although more follow."""

STEP: Final = 50
"""Milliseconds between two polls of the thread with the system's notifications: the time that its end takes."""

LOOK: Final = 5_000
"""Milliseconds between two checks without notifications."""

MAX_LINKS: Final = 40
"""Symbolic links in a path, as many as Linux follows."""

State: TypeAlias = dict[Path, tuple[str, int, int, int] | None]
"""Path → file, time (ns), size and inode that it leads to. None: nothing readable."""


class FileWatcher:
    """Calls `changed` with the files that have changed. `files` returns the watched ones."""

    def __init__(
        self,
        files: Callable[[], Iterable[Path]],
        changed: Callable[[list[Path]], Awaitable[None]],
        broke: Callable[[str, Exception], None],
    ) -> None:
        """`broke`: called with an exception and the name of the place; the watching continues."""
        self._files = files
        self._changed = changed
        self._broke = broke
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.looks = 0
        """The number of checks."""

    async def start(self) -> None:
        """Watch: changes after this call are reported. A second call does nothing."""
        if self._task is None:
            state = await asyncio.to_thread(_look, list(self._files()))
            self._task = asyncio.get_running_loop().create_task(self._watch(state))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self, state: State) -> None:
        while not self._stopping.is_set():
            try:
                state = await self._watch_folders(state)
            except Exception as error:
                self._broke("watching", error)
                await asyncio.sleep(LOOK / 1000)

    async def _watch_folders(self, state: State) -> State:
        """Watch until other folders have to be watched. Returns the last state."""
        folders = await asyncio.to_thread(_folders, list(self._files()))
        # Between the last look and the first notification.
        state = await self._report(state)
        if not folders:
            await asyncio.sleep(LOOK / 1000)
            return await self._report(state)
        awatch = await asyncio.to_thread(_library)
        async for _ in awatch(
            *sorted(folders),
            watch_filter=None,
            debounce=STEP,
            step=STEP,
            stop_event=self._stopping,
            rust_timeout=LOOK,
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        ):
            state = await self._report(state)
            if await asyncio.to_thread(_folders, list(self._files())) != folders:
                break
        return state

    async def _report(self, before: State) -> State:
        """Report changed files. Returns the state of all."""
        self.looks += 1
        now = await asyncio.to_thread(_look, list(self._files()))
        for _ in range(MAX_WAITS if now != before else 0):
            await asyncio.sleep(QUIET)
            earlier, now = now, await asyncio.to_thread(_look, list(self._files()))
            if now == earlier:
                break
        # One that is new in the list was read when it came there.
        changed = [path for path, found in now.items() if path in before and found != before[path]]
        if changed:
            try:
                await self._changed(changed)
            except Exception as error:
                self._broke("watching", error)
        return now


def _look(files: list[Path]) -> State:
    found: State = {}
    for path in files:
        try:
            real = os.path.realpath(path)
            status = os.stat(real)
        except OSError:
            found[path] = None
        else:
            found[path] = (real, status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _library() -> Callable[..., AsyncIterator[object]]:
    """Import the library that watches folders. A broker without files does not need it. Loading it reads files."""
    from watchfiles import awatch

    return awatch


def _folders(files: list[Path]) -> set[str]:
    """Return the existing folders of all files, and of all links on the way to them."""
    found: set[str] = set()
    for path in files:
        at = os.path.abspath(path)
        for _ in range(MAX_LINKS):
            found.add(os.path.dirname(at))
            if not os.path.islink(at):
                break
            at = os.path.normpath(os.path.join(os.path.dirname(at), os.readlink(at)))
        found.add(os.path.dirname(os.path.realpath(path)))
    return {folder for folder in found if os.path.isdir(folder)}
