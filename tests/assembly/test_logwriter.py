"""The log's own thread: the broker never waits for the reader of its log, and wakes the thread seldom."""

from __future__ import annotations

import io
import json
import queue
import threading

import pytest

from canopy_mqtt.assembly.logwriter import BATCH, PAUSE, BackgroundWriter


class Stuck(io.StringIO):
    """A stream that takes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.asked.set()
        assert self.go.wait(10)
        return super().write(text)


def test_lines_come_out_in_order_and_whole() -> None:
    stream = io.StringIO()
    writer = BackgroundWriter(stream)
    for number in range(100):
        writer.write(f"line {number}\n")
    writer.close(10)
    assert stream.getvalue() == "".join(f"line {number}\n" for number in range(100))


def test_a_stream_that_stands_still_holds_up_nobody_and_the_loss_is_told() -> None:
    stream = Stuck()
    writer = BackgroundWriter(stream, limit=3)
    writer.write("first\n")
    assert stream.asked.wait(10)
    # The thread is stuck with the first line; these come back at once, and the last two find no room.
    for number in range(5):
        writer.write(f"{number}\n")
    stream.go.set()
    writer.close(10)
    lines = stream.getvalue().splitlines()
    assert lines[:4] == ["first", "0", "1", "2"]
    assert json.loads(lines[4])["count"] == 2


def test_a_stream_that_is_gone_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    writer = BackgroundWriter(stream)
    writer.write("nobody hears this\n")
    writer.close(10)


def test_close_does_not_wait_for_ever() -> None:
    stream = Stuck()
    writer = BackgroundWriter(stream)
    writer.write("stuck\n")
    assert stream.asked.wait(10)
    writer.close(0.01)
    stream.go.set()
    writer.close(10)
    assert stream.getvalue() == "stuck\n"


class Batches(io.StringIO):
    """A stream that gives away each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.writes.put(text)
        return len(text)


def test_after_a_line_others_wait_until_they_are_many() -> None:
    stream = Batches()
    writer = BackgroundWriter(stream, pause=600.0)
    writer.write("first\n")
    assert stream.writes.get(timeout=10) == "first\n"
    large = "x" * BATCH + "\n"
    for line in ("a\n", "b\n", large):
        writer.write(line)
    assert stream.writes.get(timeout=10) == f"a\nb\n{large}"
    # An end does not wait for the pause.
    writer.write("last\n")
    writer.close(10)
    assert stream.writes.get(timeout=10) == "last\n"
    assert stream.writes.empty()


def test_the_thread_sleeps_without_end_while_nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: queue.Queue[float | None] = queue.Queue()

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread().name == "canopy-log":
                sleeps.put(timeout)
            return super().wait(timeout)

    monkeypatch.setattr(threading, "Condition", Watched)
    stream = Batches()
    writer = BackgroundWriter(stream)
    monkeypatch.undo()
    assert sleeps.get(timeout=10) is None
    writer.write("a line\n")
    assert (sleeps.get(timeout=10), sleeps.get(timeout=10)) == (PAUSE, None)
    assert stream.writes.get(timeout=10) == "a line\n"
    writer.close(10)
    assert sleeps.empty()
