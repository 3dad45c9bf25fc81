"""The log's own thread: who logs never waits for who reads."""

from __future__ import annotations

import io
import json
import threading

from broker.process.logwriter import BackgroundWriter


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
