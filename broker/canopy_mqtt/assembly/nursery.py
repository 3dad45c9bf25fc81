"""Forks processes that are like this one was at its beginning, in moments: a process without threads and event loop.

Owns that process, which is forked itself before this one has either, once this one has imported what it and those
children are made of: all of them share that memory. Promises: only `fork` has its descriptors; it ends with this
process, and ignores signals, as its children do at first; whatever ends it ends its children, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import select
import signal
import socket
import struct
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, NoReturn

from canopy_mqtt.assembly.notify import NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC

NOT_THEIRS: Final = (NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID)
"""Variables that are for this process alone."""

ANSWER: Final = struct.Struct("!ii")
"""The number of a process and `BORN`; or its exit code, or minus the number of the signal that ended it."""

BORN: Final = -1_000

Main = Callable[[socket.socket], int]
"""The function that a child runs with its socket; it returns the exit code."""


class Nursery:
    """The process, as this one sees it. Made before this one has a thread, or an event loop."""

    def __init__(self, main: str, others: Sequence[str]) -> None:
        """`main`: the module whose function `main` the children run; `others`: modules that they, or this process,
        would import later."""
        self._asks, answers = socket.socketpair()
        # Who waits for a number, and for the end of each.
        self._asked: deque[asyncio.Future[int]] = deque()
        self._ends: dict[int, asyncio.Future[int]] = {}
        self.lost: Callable[[], object] | None = None
        """Called when it has ended, which nothing but a fault or a signal makes it do."""
        run: Main = import_module(main).main
        for name in others:
            with contextlib.suppress(ImportError):
                import_module(name)
        # Collections look at nothing that is there already, neither here nor in what is forked: they would write to
        # each object, and each process would have its own copy of it.
        gc.collect()
        gc.freeze()
        self._pid = os.fork()
        if self._pid == 0:
            self._asks.close()
            _live(answers, run)
        answers.close()

    def close(self) -> None:
        """Have it end, and wait for that. It blocks."""
        self._asks.close()
        os.waitpid(self._pid, 0)

    async def fork(self, sock: socket.socket, errors: socket.socket) -> tuple[int, asyncio.Future[int]]:
        """Fork a child with this socket, and this one as its standard error, which the caller closes here.

        Returns:
            Its number, and its exit code, or minus the number of the signal that ended it.

        Raises:
            OSError: there can be none.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._asks.fileno(), self._read)
        asked: asyncio.Future[int] = loop.create_future()
        socket.send_fds(self._asks, [b"\0"], [sock.fileno(), errors.fileno()])
        self._asked.append(asked)
        pid = await asked
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid, self._ends[pid]

    def _read(self) -> None:
        answer = self._asks.recv(ANSWER.size, socket.MSG_WAITALL)
        if not answer:
            self._end()
            return
        pid, code = ANSWER.unpack(answer)
        if code != BORN:
            self._ends.pop(pid).set_result(code)
            return
        if pid > 0:
            self._ends[pid] = asyncio.get_running_loop().create_future()
        asked = self._asked.popleft()
        # Otherwise no caller waits any more, and the child ends by itself, since its socket is closed.
        if not asked.done():
            asked.set_result(pid)

    def _end(self) -> None:
        """Kill its children: no process would learn of their ends."""
        asyncio.get_running_loop().remove_reader(self._asks.fileno())
        for asked in self._asked:
            if not asked.done():
                asked.set_result(-errno.ECHILD)
        for pid, end in self._ends.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            end.set_result(-signal.SIGKILL)
        self._asked.clear()
        self._ends.clear()
        if self.lost is not None:
            self.lost()


def _live(answers: socket.socket, run: Main) -> NoReturn:
    """Be that process."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for name in NOT_THEIRS:
            os.environ.pop(name, None)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        with contextlib.suppress(ConnectionError):
            _serve(answers, run)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(answers: socket.socket, run: Main) -> None:
    """Fork until the socket of requests is closed, and report the ends of children."""
    wakes, waker = os.pipe()
    for end in (wakes, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    events = select.poll()
    events.register(answers, select.POLLIN)
    events.register(wakes, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor == wakes:
                os.read(wakes, 4_096)
                continue
            asked, ends, *_ = socket.recv_fds(answers, 1, 2)
            if not asked:
                return
            try:
                pid = os.fork()
            except OSError as error:
                pid = -(error.errno or 1)
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answers.close()
                os.close(wakes)
                os.close(waker)
                _be(run, *ends)
            for end in ends:
                os.close(end)
            answers.send(ANSWER.pack(pid, BORN))
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                answers.send(ANSWER.pack(ended[0], os.waitstatus_to_exitcode(ended[1])))


def _be(run: Main, sock: int, errors: int) -> NoReturn:
    """Be a child."""
    code = 1
    try:
        os.dup2(errors, 2)
        os.close(errors)
        code = run(socket.socket(fileno=sock))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
