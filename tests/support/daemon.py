"""A `canopy serve` in a process of its own, for the tests that need the real one: started, told where it is, and ended.

Its log is read all the time, so that it never waits for a full pipe. It does not see the settings of this environment.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.forked import CANOPY, Forked
from tests.support.runs import MEASURED

COMMAND: Final = (sys.executable, "-P", "-m", "canopy_mqtt")
"""`canopy`, of the interpreter that runs the tests."""

PATIENCE: Final = 30.0
"""Seconds until something that should happen counts as not happening."""


def environment(**more: str) -> dict[str, str]:
    """The environment without settings of a broker, but for these."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("CANOPY_")}
    return {**found, **more}


def canopy(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a `canopy` that ends by itself and writes less than a pipe holds, and return how it ended."""
    process = Forked(CANOPY, words, environment())
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        out, errors = process.read()
    return subprocess.CompletedProcess([*words], code, out, errors)


class Daemon:
    """A running daemon that has said that it started. A context: whatever happens, it is gone afterwards.

    `started`: what it said; `port`: of its first listener; `lines`: its log.
    """

    def __init__(
        self,
        *arguments: str,
        prepare: Callable[[], None] | None = None,
        environ: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
        command: Sequence[str] | None = None,
        module: str = CANOPY,
    ) -> None:
        """`arguments`: of `canopy serve`; it listens on a free port. `prepare` is called in its process before.

        `command`: what is run in place of `canopy`; with `COMMAND`, Python itself is started, and not forked. `module`:
        what is forked, which its `environ` is for.
        """
        self.lines: list[str] = []
        self.patience = patience
        self._changed = threading.Condition()
        self._looked_at = 0
        self._over = False
        given = dict(environ or {})
        words = ["serve", "--listen", "mqtt://127.0.0.1:0", *arguments]
        # Other variables may be for the loader of libraries or for Python.
        plain = module != CANOPY or (all(name.startswith("CANOPY_") for name in given) and not MEASURED)
        self.process: subprocess.Popen[str] | Forked
        if plain and prepare is None and command is None:
            self.process = Forked(module, words, environment(**given))
        else:
            self.process = subprocess.Popen(
                [*(command or COMMAND), *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(**given),
                preexec_fn=prepare,
            )
        self._reader = threading.Thread(target=self._read, name="the daemon's log", daemon=True)
        self._reader.start()
        try:
            self.started: dict[str, Any] = self.until("started")[-1]
        except BaseException:
            self.close()
            raise
        self.urls: list[str] = self.started["listening"]
        # 0: a Unix socket.
        self.ports = [0 if "+unix:" in url else int(url.rsplit(":", 1)[1]) for url in self.urls]
        self.url, self.port = self.urls[0], self.ports[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def until(self, event: str) -> list[dict[str, Any]]:
        """Wait for this event, and return the log lines since the last look, up to it.

        Raises:
            AssertionError: the daemon has ended, or the event does not come.
        """
        told: list[dict[str, Any]] = []

        def found() -> bool:
            while self._looked_at < len(self.lines):
                told.append(json.loads(self.lines[self._looked_at]))
                self._looked_at += 1
                if told[-1]["event"] == event:
                    return True
            return self._over

        with self._changed:
            self._changed.wait_for(found, self.patience)
        if not told or told[-1]["event"] != event:
            raise AssertionError(f"no {event}: {self.lines}")
        return told

    def connect(self, packet: bytes) -> socket.socket:
        """A connection whose CONNECT was accepted."""
        connection = socket.create_connection(("127.0.0.1", self.port), self.patience)
        connection.sendall(packet)
        head = connection.recv(2, socket.MSG_WAITALL)
        assert head[0] == 0x20
        answer = connection.recv(head[1], socket.MSG_WAITALL)
        assert answer[1] == 0
        return connection

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, list[str]]:
        """Send the signal; the exit code, and what it logged from where the last look ended."""
        self.process.send_signal(number)
        code = self.process.wait(self.patience)
        self.close()
        return code, self.lines[self._looked_at :]

    def close(self) -> None:
        """Kill it if it still runs, and let go of it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(self.patience)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    # -- what the system says of it ------------------------------------------------------------------------------------

    @property
    def resident(self) -> int:
        """Bytes of memory that the process has now."""
        found = re.search(r"^VmRSS:\s+(\d+) kB", (self._folder / "status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def descriptors(self) -> int:
        """Files and sockets that the process has open now."""
        return len(os.listdir(self._folder / "fd"))

    @property
    def _folder(self) -> Path:
        return Path(f"/proc/{self.process.pid}")
