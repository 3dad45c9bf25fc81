"""The receivers of one streaming query: one in this process, or several in processes of their own.

Owns: how several receivers share the filters (a shared subscription of MQTT 5.0, `$share/<client id>/<filter>`), each
with a session and a folder of the spool of its own, and how this process asks them.

Promises: a receiver's process ends, in good order, when this one does, however it dies: its input closes then. What it
is told stands in no command line and in no environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pipeline.errors import PipelineError
from pipeline.mqtt.options import StreamOptions, stream_options
from pipeline.mqtt.receiver import Receiver
from pipeline.mqtt.spool import Slice, Spool, SpoolError

LOCK_WAIT: Final = 10.0
"""Seconds that the process of an ended query has to leave the spool."""
PATIENCE: Final = 10.0
"""Seconds that a process has to end in good order."""
SHARED: Final = "$share/"


@dataclasses.dataclass(frozen=True)
class State:
    """How far one receiver is."""

    committed: int
    next: int
    lost: int
    session: int
    full: bool
    error: str


class Part(Protocol):
    """One receiver with its spool."""

    def state(self) -> State:
        """Now."""

    def slices(self, start: int, end: int) -> Sequence[Slice]:
        """As ``Spool.slices``."""

    def commit(self, end: int) -> None:
        """As ``Spool.commit``."""

    def settle(self, silence: float) -> bool:
        """As ``Receiver.settle``."""

    def stop(self) -> None:
        """Stop receiving, and let the spool go."""


class Here:
    """A receiver in a thread of this process; connects from now on.

    Raises:
        SpoolError: the spool cannot be used.
    """

    def __init__(self, options: StreamOptions) -> None:
        self.spool = Spool(options.spool, options.client_id, LOCK_WAIT)
        self.receiver = Receiver(options, self.spool)
        self.receiver.start()

    def state(self) -> State:
        spool, error = self.spool, self.receiver.error
        told = "" if error is None else str(error)
        return State(spool.committed, spool.next, spool.lost, spool.session, self.receiver.full, told)

    def slices(self, start: int, end: int) -> list[Slice]:
        return self.spool.slices(start, end)

    def commit(self, end: int) -> None:
        self.spool.commit(end)

    def settle(self, silence: float) -> bool:
        return self.receiver.settle(silence)

    def stop(self) -> None:
        self.receiver.stop()
        self.spool.close()


class Elsewhere:
    """A receiver in a process of its own, `number` of several. Answers when its spool is open.

    Raises:
        SpoolError: the spool cannot be used.
        PipelineError: the process does not start.
    """

    def __init__(self, said: Mapping[str, str], number: int) -> None:
        self._number = number
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        self.tell("begin", [dict(said), number])

    def tell(self, what: str, values: Sequence[Any] = ()) -> None:
        """Send a request; ``hear`` has its answer."""
        assert self._process.stdin is not None
        try:
            print(json.dumps([what, *values]), file=self._process.stdin, flush=True)
        except OSError:
            return

    def hear(self) -> Any:
        """The answer to the oldest request.

        Raises:
            SpoolError: the spool cannot be used any more, or does not have what is asked for.
            PipelineError: the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PipelineError(f"receiver {self._number} has ended; the query has to be started again")
        kind, value = json.loads(line)
        if kind == "spool":
            raise SpoolError(value)
        if kind == "error":
            raise PipelineError(value)
        return value

    def _asked(self, what: str, *values: Any) -> Any:
        self.tell(what, values)
        return self.hear()

    def state(self) -> State:
        return State(**self._asked("state"))

    def slices(self, start: int, end: int) -> list[Slice]:
        return [Slice(**each) for each in self._asked("slices", start, end)]

    def commit(self, end: int) -> None:
        self._asked("commit", end)

    def settle(self, silence: float) -> bool:
        return bool(self._asked("settle", silence))

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # It waits for a network that does not answer; what it wrote is whole, and the rest is sent again.
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def begun(said: Mapping[str, str], options: StreamOptions) -> list[Part]:
    """Start all receivers of a query.

    Raises:
        PipelineError: one of them cannot be started; then none is left.
    """
    if options.receivers == 1:
        return [Here(options)]
    started: list[Elsewhere] = []
    try:
        # All of them, before the first is waited for.
        started += [Elsewhere(said, number) for number in range(options.receivers)]
        for each in started:
            each.hear()
    except BaseException:
        for each in started:
            each.stop()
        raise
    return list(started)


def of_receiver(options: StreamOptions, number: int) -> StreamOptions:
    """The options of one of several receivers: its session, its folder, and its share of the filters."""
    if options.receivers == 1:
        return options
    share = f"{SHARED}{options.client_id}/"
    return dataclasses.replace(
        options,
        client_id=f"{options.client_id}-{number}",
        spool=options.spool / f"receiver-{number}",
        filters=tuple(each if each.startswith(SHARED) else share + each for each in options.filters),
    )


def serve() -> None:
    """A receiver's process: requests as lines of JSON, until the input closes."""
    part: Here | None = None
    try:
        for line in sys.stdin:
            what, *values = json.loads(line)
            try:
                answer: Any = None
                if part is None:
                    said, number = values
                    part = Here(of_receiver(stream_options(said), number))
                elif what == "state":
                    answer = dataclasses.asdict(part.state())
                elif what == "slices":
                    answer = [dataclasses.asdict(each) for each in part.slices(*values)]
                elif what == "commit":
                    part.commit(*values)
                elif what == "settle":
                    answer = part.settle(*values)
                reply = ["ok", answer]
            except PipelineError as error:
                reply = ["spool" if isinstance(error, SpoolError) else "error", str(error)]
            print(json.dumps(reply), flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        if part is not None:
            part.stop()


if __name__ == "__main__":
    serve()
