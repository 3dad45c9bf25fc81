"""Receivers on executors: a Spark job of as many tasks, each of which receives into the spool until it is told to end.

Owns: what driver and tasks tell each other, by small files beside a receiver's segments; nobody listens on a port.

Promises: the spool's lock (flock) fences: of two tasks with one number, only one has the spool and the session. A task
that is killed is started again by Spark, and when Spark gives up, by a new job; it takes the client identifier over
with its session, so the broker sends again what was not acknowledged. A refusal that does not heal ends all.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import MisuseError, PipelineError
from pipeline.mqtt.options import StreamOptions, stream_options
from pipeline.mqtt.parts import LOCK_WAIT, PATIENCE, Here, Part, State, of_receiver
from pipeline.mqtt.receiver import LONGEST_WAIT
from pipeline.mqtt.spool import Slice, SpoolError, held, kept, slices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK: Final = 0.1
"""Seconds between two looks at the other side's files."""
START_WAIT: Final = 120.0
"""Seconds that a query waits for a receiver's subscription, where it waits for what is there now."""
AGAIN: Final = 1.0
"""Seconds before a job that failed is started again."""

DONE: Final = "done.json"
"""The query's: rows before this number it has done with."""
TOLD: Final = "receiver.json"
"""The task's: whether it has subscribed, and what ended it for good."""
ENDING: Final = "ending.json"
"""The driver's: the runs that are to end."""

_log = logging.getLogger("pipeline.mqtt")


class OnExecutor:
    """What the query knows of a receiver on an executor, by its folder.

    Raises:
        SpoolError: another query reads this folder, or it cannot be used.
    """

    def __init__(self, options: StreamOptions) -> None:
        self.folder = options.spool
        self._most = options.spool_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = held(self.folder, "query.lock", LOCK_WAIT)
        except OSError as error:
            raise SpoolError(f"{self.folder}: cannot be used as a spool ({error.strerror or error})") from error

    def state(self) -> State:
        segments = kept(self.folder)
        # After the segments: what is gone by now, it says is committed.
        said = _said(self.folder / "state.json")
        committed = max(int(said.get("committed", 0)), int(_said(self.folder / DONE).get("end", 0)))
        end = max([committed, *(each.end for each in segments)])
        full = sum(each.size for each in segments) >= self._most
        error = str(_said(self.folder / TOLD).get("error", ""))
        return State(committed, end, int(said.get("lost", 0)), int(said.get("session", 0)), full, error)

    def slices(self, start: int, end: int) -> list[Slice]:
        state = self.state()
        return slices(self.folder, kept(self.folder), state.committed, state.next, start, end)

    def commit(self, end: int) -> None:
        if end > int(_said(self.folder / DONE).get("end", 0)):
            _tell(self.folder / DONE, {"end": end})

    def settle(self, silence: float) -> bool:
        """As ``Receiver.settle``; raises PipelineError where no receiver has subscribed."""
        limit = time.monotonic() + START_WAIT
        while not (said := _said(self.folder / TOLD)).get("subscribed") and not said.get("error"):
            if time.monotonic() > limit:
                raise PipelineError(
                    f"{self.folder}: no receiver has subscribed in {START_WAIT:.0f} s; canopy_spark.receive starts them"
                )
            time.sleep(TICK)
        begun = since = time.monotonic()
        before = self.state()
        while time.monotonic() < min(since + silence, begun + LONGEST_WAIT * silence):
            if before.full:
                return False
            time.sleep(min(TICK, silence))
            now = self.state()
            if now.next != before.next:
                since = time.monotonic()
            before = now
        return True

    def stop(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def watched(options: StreamOptions) -> list[Part]:
    """All receivers of a query whose job another one starts.

    Raises:
        SpoolError: another query reads one of the folders.
    """
    parts: list[Part] = []
    try:
        for number in range(options.receivers):
            parts.append(OnExecutor(of_receiver(options, number)))
    except BaseException:
        for each in parts:
            each.stop()
        raise
    return parts


class Receivers:
    """The job with the receivers of one query; they receive from now on, until ``stop``."""

    def __init__(self, spark: SparkSession, said: Mapping[str, str]) -> None:
        self.options = stream_options(said)
        if not self.options.on_executors:
            raise MisuseError("option 'receivers_on' is 'driver', where the query starts them: set 'executors'")
        self.error: Exception | None = None
        """What ended them before ``stop``."""
        self._spark = spark
        self._said = dict(said)
        self._run = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._folders = [of_receiver(self.options, number).spool for number in range(self.options.receivers)]
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TOLD).unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._serve, name="mqtt-receivers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is pending, acknowledge it, disconnect, end the job. The sessions stay at the broker."""
        self._stopping.set()
        self._end_all()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            # A task that never had a slot, or whose network does not answer: what it wrote is whole.
            self._spark.interruptTag(self._run)
            self._thread.join()

    def _end_all(self) -> None:
        for folder in self._folders:
            _tell(folder / ENDING, {"run": self._run})

    def _serve(self) -> None:
        self._spark.addTag(self._run)
        while not self._stopping.is_set():
            try:
                count = self.options.receivers
                task = _task(self._said, self._run)
                self._spark.range(0, count, 1, count).mapInArrow(task, "number long").collect()
            except Exception as error:
                # Whatever Spark raises where tasks failed.
                if self._stopping.is_set():
                    return
                _log.warning("the receivers' job failed (%s); it is started again", type(error).__name__)
            for folder in self._folders:
                why = _said(folder / TOLD).get("error")
                if why:
                    self.error = PipelineError(str(why))
                    self._end_all()
                    return
            self._stopping.wait(AGAIN)


def _task(said: Mapping[str, str], run: str) -> Any:
    def received(batches: Iterator[Any]) -> Iterator[Any]:
        for rows in batches:
            for number in rows.column(0).to_pylist():
                serve(said, number, run)
            yield rows

    return received


def serve(said: Mapping[str, str], number: int, run: str) -> None:
    """Receive, in a task, until the run is to end, or what cannot heal has happened: it is told in `receiver.json`.

    Raises:
        SpoolError: the spool is another's.
    """
    options = of_receiver(stream_options(said), number)
    folder = options.spool
    part = Here(options)
    try:
        told: dict[str, Any] = {}
        while _said(folder / ENDING).get("run") != run:
            part.commit(int(_said(folder / DONE).get("end", 0)))
            now = {"subscribed": part.receiver.subscribed, "error": part.state().error}
            if now != told:
                told = now
                _tell(folder / TOLD, told)
            if told["error"]:
                for each in range(options.receivers):
                    _tell(of_receiver(stream_options(said), each).spool / ENDING, {"run": run})
            time.sleep(TICK)
    finally:
        part.stop()


def _said(path: Path) -> dict[str, Any]:
    """A small file of JSON; empty where there is none."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise SpoolError(f"{path}: is no file of the receivers' ({error})") from error


def _tell(path: Path, said: Mapping[str, Any]) -> None:
    # Only that a run ends several may say at once. Of the others the lock leaves one writer, which after a kill writes
    # over the draft that is there.
    whose = f".{uuid.uuid4().hex[:8]}" if path.name == ENDING else ""
    draft = path.with_name(f".{path.name}{whose}.part")
    try:
        with draft.open("w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise SpoolError(f"{path}: cannot be written ({error.strerror or error})") from error
