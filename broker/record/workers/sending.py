"""The events of one worker on their way to the process that records for all (`gathering`).

Owns the worker's end of the socket: a stream of Arrow batches with the worker's own numbers, and what goes beside each:
the last number up to it, or a time up to which all has been sent. Blocks; the recorder's thread is where it runs.

Promises: the last number that was given stands in the worker's page. The connections and subscriptions of the other
workers are left out: they are not clients.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from broker.core.routing.remote.loop_detection import NODES
from broker.record.files.folder import Left, RecorderError, reason
from broker.record.schema import SCHEMA
from broker.record.workers.pages import Page

LAST: Final = b"last"
UNTIL: Final = b"until"
OVER: Final = b"over"
"""What goes beside a batch: a number of the worker's, a time (ns), and that it is the last one."""

About: TypeAlias = Mapping[bytes, bytes]

BUFFER: Final = 262_144
_DROP: Final[Any] = pa.scalar("drop")


class Sending:
    """Where a worker's recorder puts what it would else write into a folder."""

    def __init__(self, sock: socket.socket | None, page: str) -> None:
        """`sock`: None where nobody records. `page`: the path of the worker's page."""
        self._sock = sock
        self._path = page
        self._page: Page | None = None
        self._file: BinaryIO | None = None
        self._stream: Any = None
        self._last = 0

    # -- as a folder ---------------------------------------------------------------------------------------------------

    def open(self) -> Left:
        """Begin. Raises RecorderError."""
        if self._sock is None:
            raise RecorderError("the recorder of all workers has given up, or was not started")
        try:
            self._page = Page(Path(self._path))
        except (OSError, ValueError) as error:
            raise RecorderError(f"{self._path}: {error}") from error
        return Left(0, None, "")

    @property
    def memo(self) -> Any:
        """Where the last number is noted."""
        return None if self._page is None else self._page.memo

    def close(self, ended: int | None) -> None:
        """Let everything go."""
        del ended
        if self._page is not None:
            self._page.close()
            self._page = None
        self._let_go()

    # -- as what is written to -----------------------------------------------------------------------------------------

    @property
    def _totals(self) -> tuple[int, int, int]:
        return (0, 0, 0) if self._page is None else self._page.totals

    @property
    def segments(self) -> int:
        """Finished segments of all workers, which the first one tells; 0 at the others."""
        return self._totals[0]

    @property
    def events(self) -> int:
        """Events in them."""
        return self._totals[1]

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return self._totals[2]

    def begin(self, run_id: str) -> None:
        """Begin to send. Raises OSError."""
        del run_id
        assert self._sock is not None
        self._file = cast("BinaryIO", self._sock.makefile("wb", BUFFER))
        self._stream = pa.ipc.new_stream(self._file, SCHEMA)

    def write(self, batch: Any) -> None:
        """Send rows. Raises OSError."""
        self._last = batch.column("seq")[-1].as_py()
        others = pc.and_(
            pc.fill_null(pc.starts_with(batch.column("client_id"), NODES), False),
            pc.not_equal(batch.column("kind"), _DROP),
        )
        if pc.any(others).as_py():
            batch = batch.filter(pc.invert(others))
        self._send(batch, {LAST: b"%d" % self._last})

    def told_until(self, recv_ns: int) -> None:
        """Say up to when all was sent. Raises OSError."""
        self._send(_NOTHING, {LAST: b"%d" % self._last, UNTIL: b"%d" % recv_ns})

    def patience(self) -> None:
        """It waits for nothing."""

    def tend(self) -> None:
        """It has nothing that grows old."""

    def finish(self) -> None:
        """Say that it was all. Raises OSError."""
        self._send(_NOTHING, {LAST: b"%d" % self._last, OVER: b""})
        self._let_go()

    def abandon(self) -> None:
        """Send nothing any more."""
        self._let_go()

    def why_not(self, error: Exception) -> str:
        """Why nothing is sent any more, in one line."""
        if isinstance(error, OSError):
            return "the recorder of all workers has given up: its own line says why"
        return f"{type(error).__name__}: {reason(error)}"

    def _send(self, batch: Any, about: About) -> None:
        assert self._file is not None
        self._stream.write_batch(batch, custom_metadata=pa.KeyValueMetadata(about))
        self._file.flush()

    def _let_go(self) -> None:
        sock, self._sock = self._sock, None
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if sock is not None:
                # What could not be sent yet is not waited for.
                sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()
        if sock is not None:
            sock.close()


_NOTHING: Final[Any] = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in SCHEMA], schema=SCHEMA)
