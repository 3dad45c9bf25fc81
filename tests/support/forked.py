"""Starts daemons and load generators without their imports: a process that has them forks one for each start.

A start costs 0.5 to 1 s of a core otherwise, nearly all of it for imports. Each `Forked` is a process of its own, with
its own environment, streams and exit code, and can be killed. What a fork cannot show (a library that is loaded before
Python, a function that is called before it, measured lines) needs a real start: see `tests.support.daemon`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[2]
CANOPY: Final = "canopy_mqtt.command.cli"
WORKER: Final = "canopy_load.engine.worker"
"""Modules whose `main` can be run."""

LATER: Final = {
    CANOPY: ("canopy_mqtt.command.serve", "canopy_mqtt.assembly.app", "canopy_mqtt.store.sqlite.store", "uvloop")
}
"""What they import when they need it first."""

RECORDER: Final = ("canopy_mqtt.record.files.folder", "pandas")
"""What is imported, too, for arguments that have the word: 1.5 s of a core."""

PATIENCE: Final = 10.0
"""Seconds that everything forked has to end when the tests are over."""

_REQUEST: Final = 1 << 18
"""Bytes that a request may have: arguments and environment."""

_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None


class Forked:
    """A process, with what tests use of `subprocess.Popen`; both streams are pipes of text, or ours."""

    def __init__(
        self, module: str, arguments: Sequence[str], environ: Mapping[str, str], *, inherits: int | None = None
    ) -> None:
        """`inherits`: a descriptor that it has too, whose number there is its last argument; its streams are ours."""
        request = {"module": module, "arguments": [*arguments], "environ": dict(environ), "folder": os.getcwd()}
        self._status, status_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        out_end, errors_end = 1, 2
        if inherits is None:
            out, out_end = os.pipe()
            errors, errors_end = os.pipe()
            self.stdout = open(out, encoding="utf-8")  # noqa: SIM115 (closed by its user, as Popen's is)
            self.stderr = open(errors, encoding="utf-8")  # noqa: SIM115
        with open(os.devnull, "rb") as nothing:
            ends = [status_end.fileno(), nothing.fileno(), out_end, errors_end]
            ends += [] if inherits is None else [inherits]
            socket.send_fds(_begun(), [json.dumps(request).encode()], ends)
        status_end.close()
        if inherits is None:
            os.close(out_end)
            os.close(errors_end)
        self.returncode: int | None = None
        self.pid = int(self._line())

    def _line(self) -> str:
        """The next of the two lines: its number; its exit code, or minus the number of the signal that ended it."""
        said = b""
        while not said.endswith(b"\n"):
            piece = self._status.recv(1)
            if not piece:
                raise AssertionError("who forks is gone")
            said += piece
        return said.decode()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._line())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("canopy", timeout or 0) from None
            self._status.close()
        return self.returncode

    def read(self) -> tuple[str, str]:
        """What is left in the two pipes, which are closed then."""
        assert self.stdout is not None
        assert self.stderr is not None
        with self.stdout as out, self.stderr as errors:
            return out.read(), errors.read()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Door:
    """Lets scripts run `canopy` as a forked process: `command` is the words that stand for it there. A context."""

    def __init__(self) -> None:
        self._begun = _begun()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Linux chooses an abstract address.
        self._listener.bind("")
        self._listener.listen()
        name = self._listener.getsockname()[1:].decode()
        self.command = shlex.join([sys.executable, "-IS", str(ROOT / "tests/support/asking.py"), name, CANOPY])
        self._thread = threading.Thread(target=self._serve, name="forks for scripts", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Pass on what is asked, with the connection: whoever asks is told there how it ends."""
        while True:
            try:
                asks, _ = self._listener.accept()
            except OSError:
                return
            with asks:
                said, ends, *_ = socket.recv_fds(asks, _REQUEST, 3)
                socket.send_fds(self._begun, [said], [asks.fileno(), *ends])
                for end in ends:
                    os.close(end)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def close() -> None:
    """End what forks for this process, if it was begun."""
    global _server
    if _server is not None:
        process, asks = _server
        asks.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # A test has left something running. What it says of that stands in its own report.
            process.kill()
            process.wait()
        _server = None


def _begun() -> socket.socket:
    """The connection to what forks for this process."""
    global _server
    if _server is None:
        asks, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answers:
            # From where a relative path of PYTHONPATH leads to the tests, wherever this one works.
            command = [sys.executable, "-P", "-m", "tests.support.forked"]
            process = subprocess.Popen(command, stdin=answers.fileno(), cwd=ROOT)
        _server = process, asks
    return _server[1]


def main() -> None:
    """Fork for each request on standard input, until that is closed."""
    with socket.socket(fileno=os.dup(0)) as asks:
        while True:
            said, ends, *_ = socket.recv_fds(asks, _REQUEST, 5)
            if not said:
                break
            request = json.loads(said)
            recorder = RECORDER if any("record" in argument for argument in request["arguments"]) else ()
            names = (request["module"], *LATER.get(request["module"], ()), *recorder)
            if missing := [name for name in names if name not in sys.modules]:
                for name in missing:
                    import_module(name)
                gc.collect()
                gc.freeze()
            if os.fork() == 0:
                asks.close()
                _attend(request, *ends)
            for end in ends:
                os.close(end)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    # Their time counts as this process's.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _attend(request: dict[str, Any], status: int, *ends: int) -> NoReturn:
    """Fork what was asked for, and tell its number and, when it has ended, its exit code.

    It is killed when the other end of `status` is gone.
    """
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run(request, *ends)
    for end in ends:
        os.close(end)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{pid}\n".encode())
    ended, watched = os.pidfd_open(pid), select.poll()
    watched.register(ended, select.POLLIN)
    watched.register(status, 0)  # which is told of a hang-up only
    if ended not in dict(watched.poll()):
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{code}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any], *ends: int) -> NoReturn:
    """Be what was asked for; the first three descriptors are its streams."""
    if request.get("session"):
        # It has no terminal but its streams.
        os.setsid()
    for number, descriptor in enumerate(ends[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # As Python makes them: by lines at a terminal.
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115 (until the end)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    folders = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    sys.argv = [request["module"], *request["arguments"], *map(str, ends[3:])]
    code = 1
    try:
        code = sys.modules[request["module"]].main() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
