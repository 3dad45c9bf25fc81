"""One broker process: started, pinned, metered, ended.

Owns: broker processes of the load tester and of the benchmarks, what they cost, and which core runs what.

Promises: CPU time is the whole process's user + system time in nanoseconds, threads that have ended included. A child
is ended when its ``with`` block is left for any reason, and by the kernel if the bench itself is killed.

No child is left running, and none listens anywhere but on 127.0.0.1. It works on Linux only.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Final

from canopy_load.brokers import frames

HOST: Final = "127.0.0.1"
LOWEST_PORT: Final = 15_000  # of those that `free_port` chooses from; many well-known services stand below
KEPT_PORTS: Final = 64
START_TIMEOUT: Final = 20.0  # seconds until a broker must answer CONNECT
STOP_TIMEOUT: Final = 5.0  # seconds from SIGTERM to SIGKILL
SETTLE_STEP: Final = 0.05  # seconds between two looks at an idle broker's CPU
SETTLE_CPU: Final = 500_000  # nanoseconds of CPU within a step that still count as idle
SETTLE_LIMIT: Final = 5.0  # seconds after which a broker is metered although it is not idle
PR_SET_PDEATHSIG: Final = 1  # prctl(2)
INTERRUPTIONS: Final = frozenset({signal.SIGINT, signal.SIGTERM})

_libc: Final = ctypes.CDLL(None, use_errno=True)
_kept: Final[deque[int]] = deque()


class BrokerFailed(Exception):
    """The broker did not start, or ended by itself; the message holds the end of what it printed."""


def allowed_cores() -> list[int]:
    """Return the cores that this process may run on, in order; empty if the system neither tells nor pins (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """Return the number of cores that this process may run on; all of the machine if the system does not tell."""
    return len(allowed_cores()) or os.cpu_count() or 1


@dataclass(frozen=True)
class Cores:
    """The processor cores of the broker and of the generator. With one core, nothing is pinned."""

    broker: int | None
    generator: tuple[int, ...]

    @classmethod
    def choose(cls) -> Cores:
        """The first core this process may run on for the broker, all others for the generator."""
        allowed = allowed_cores()
        return cls(allowed[0], tuple(allowed[1:])) if len(allowed) > 1 else cls(None, ())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Run this process on the generator's cores while the block lasts."""
        before = allowed_cores()
        try:
            if self.generator:
                os.sched_setaffinity(0, self.generator)
            yield
        finally:
            if before:
                os.sched_setaffinity(0, before)

    def __str__(self) -> str:
        if self.broker is None:
            return "not pinned (one core)"
        several = "cores" if len(self.generator) > 1 else "core"
        return f"broker on core {self.broker}, generator on {several} {', '.join(map(str, self.generator))}"


@contextmanager
def at_work() -> Iterator[Cores]:
    """Run this process on one core of the generator, with SIGTERM like Ctrl-C, while the block lasts."""
    chosen = Cores.choose()
    cores = Cores(chosen.broker, chosen.generator[:1])
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with cores.kept():
            yield cores
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1 that the system gives to no process that asks for any port.

    A port of the system's own range could be taken by any connection before the broker for which it is meant listens.
    No other process that asks here gets it either, until this one ends or has asked for `KEPT_PORTS` more.
    """
    for port in _own_ports():
        with socket.socket() as sock, suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, port))
            _keep(port)
            return port
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def _keep(port: int) -> None:
    """Keep the port from other processes by a name of the abstract namespace; OSError: another one keeps it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"\0canopy-port-{port}")
        _kept.append(sock.detach())
    if len(_kept) > KEPT_PORTS:
        os.close(_kept.popleft())


def _own_ports() -> Iterator[int]:
    """Yield ports below those that the system gives away, in random order."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    if first > LOWEST_PORT + 1_000:
        yield from random.sample(range(LOWEST_PORT, first), 100)


def raise_file_limit(needed: int) -> bool:
    """Raise this process's (and its children's) limit of open files to the hard limit; return True if that is
    enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard == resource.RLIM_INFINITY or hard >= needed


def waited(pid: int) -> int:
    """Nanoseconds the process's main thread was ready to run while something else had its core; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


def cpu_time(pid: int) -> int:
    """Nanoseconds of user + system time a process has used so far, all its threads together; OSError: it is gone."""
    # The kernel's clock id for another process's CPU time, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime_ns(~pid << 3 | 2)


def peak_resident(pid: int) -> int:
    """The most bytes of resident memory that a process has held; 0 where the kernel does not tell."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _connect_once(port: int) -> None:
    """CONNECT, CONNACK, DISCONNECT; OSError where the broker does not accept, answer within 2 seconds, or agree."""
    with socket.create_connection((HOST, port), 2.0) as sock:
        sock.sendall(frames.connect("bench-ready"))
        connack = sock.recv(4, socket.MSG_WAITALL)
        if len(connack) < 4 or connack[0] != frames.CONNACK or connack[3]:
            raise ConnectionError(f"CONNACK expected, got {connack.hex() or 'nothing'}")
        sock.sendall(frames.DISCONNECT)


class BrokerProcess:
    """A broker as a child process; use as a context manager."""

    def __init__(self, command: Sequence[str], port: int, core: int | None, patience: float = START_TIMEOUT) -> None:
        """``patience``: seconds until it must answer a CONNECT."""
        self.port = port
        self._patience = patience
        self._command = list(command)
        self._core = core
        self._stack = ExitStack()
        self._output: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BrokerProcess:
        with ExitStack() as stack:
            output = self._output = stack.enter_context(tempfile.TemporaryFile())
            self._stack = stack.pop_all()
        # An interruption between the fork and the assignment would leave a child that nobody knows: let it wait.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
        try:
            try:
                self._child = self._start(output, unblocked)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            self._wait(lambda: _connect_once(self.port), f"no CONNACK after {self._patience:g} s")
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, output: IO[bytes], unblocked: set[signal.Signals | int]) -> subprocess.Popen[bytes]:
        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if self._core is not None:
                os.sched_setaffinity(0, {self._core})

        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for us: we end it when we have done with it
                preexec_fn=in_child,
            )
        except OSError as error:
            raise BrokerFailed(f"cannot start {self._command[0]}: {error}") from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id; BrokerFailed before the start and after the end."""
        if self._child is None:
            raise BrokerFailed("the broker is not running")
        return self._child.pid

    def check(self) -> None:
        """Raise BrokerFailed if the process has ended by itself; the message holds the end of its output."""
        if self._child is not None and self._child.poll() is not None:
            raise BrokerFailed(f"the broker ended with code {self._child.returncode}: {self._tail()}")

    def cpu(self) -> int:
        """Nanoseconds of user + system time the process has used so far, all its threads together."""
        try:
            return cpu_time(self.pid)
        except OSError as error:
            raise BrokerFailed(f"the broker ended by itself: {self._tail()}") from error

    def wait_listening(self, port: int) -> None:
        """Wait until a further port of the broker accepts connections; BrokerFailed if it does not."""
        self._wait(lambda: socket.create_connection((HOST, port), 2.0).close(), f"nobody listens on port {port}")

    def resident(self) -> int:
        """Bytes of resident memory, exact where the kernel offers it."""
        root = Path("/proc") / str(self.pid)
        try:
            for line in (root / "smaps_rollup").read_text().splitlines():
                if line.startswith("Rss:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        try:
            return int((root / "statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError) as error:
            raise BrokerFailed(f"the broker ended by itself: {self._tail()}") from error

    def settle(self) -> None:
        """Wait until the broker is idle, for at most SETTLE_LIMIT seconds."""
        deadline = time.monotonic() + SETTLE_LIMIT
        before = self.cpu()
        while time.monotonic() < deadline:
            time.sleep(SETTLE_STEP)
            now = self.cpu()
            if now - before < SETTLE_CPU:
                return
            before = now

    def output(self) -> str:
        """Return what the broker has printed so far; after `end`, all of it; after `stop`, an empty string."""
        if self._output is None or self._output.closed:
            return ""
        # Where the process writes next is where its file stands, and so ours: it must not move.
        number = self._output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def stop(self, patience: float = STOP_TIMEOUT) -> bool:
        """End the process: SIGTERM, then, after `patience` seconds, SIGKILL; always reaped. Harmless when it has ended.
        Return True if it needed no SIGKILL."""
        by_itself = self.end(patience)
        self._stack.close()
        return by_itself

    def end(self, patience: float = STOP_TIMEOUT) -> bool:
        """End the process like `stop`; its output stays readable."""
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            try:
                child.wait(patience)
            except subprocess.TimeoutExpired:
                return False
            finally:  # also when a second interruption comes here
                child.kill()
                child.wait()
        return True

    def _wait(self, attempt: Callable[[], None], failed: str) -> None:
        """Wait until an attempt raises no OSError any more; BrokerFailed if that takes too long."""
        deadline = time.monotonic() + self._patience
        while True:
            self.check()
            try:
                attempt()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"{failed} ({error}): {self._tail()}") from error
            time.sleep(0.02)

    def _tail(self) -> str:
        if self._output is None or self._output.closed:
            return "what it printed is gone"
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 2000))
        return self._output.read().decode(errors="replace").strip() or "it printed nothing"
