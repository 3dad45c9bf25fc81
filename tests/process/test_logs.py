"""Logs: two forms, one stream, and nothing for what lies below the level."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from broker.process import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging is process-wide: give it back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_where_no_terminal_is() -> None:
    stream = io.StringIO()
    logs.configure("info", "auto", stream)
    structlog.get_logger().info("connected", client="c1", address=("127.0.0.1", 5), payload=b"\xff")
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {
        "event": "connected",
        "level": "info",
        "client": "c1",
        "address": ["127.0.0.1", 5],
        "payload": "b'\\xff'",
    }


def test_one_event_is_one_line_whatever_a_client_calls_itself() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    structlog.get_logger().info("connected", client='a\nb"c\u2028')
    assert stream.getvalue().count("\n") == 1
    assert lines(stream)[0]["client"] == 'a\nb"c\u2028'


def test_fields_stand_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client first, and not its address."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.configure("info", "auto", stream)
    structlog.get_logger().info("client connected", client_id="c1", user_name="u", address="127.0.0.1:5")
    assert stream.getvalue().rstrip().endswith("client_id='c1' user_name='u' address='127.0.0.1:5'")


def test_a_client_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.configure("info", "console", stream)
    structlog.get_logger().info("connected", client="\x1b[2J\nforged")
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_console_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    logs.configure("info", "auto", stream)
    structlog.get_logger().info("connected", client="c1")
    assert "\x1b[" in stream.getvalue()
    assert "connected" in stream.getvalue()


def test_no_colours_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.configure("info", "auto", stream)
    structlog.get_logger().info("connected", client="c1")
    assert "\x1b[" not in stream.getvalue()
    assert "client='c1'" in stream.getvalue()


def test_console_can_be_asked_for() -> None:
    stream = io.StringIO()
    logs.configure("info", "console", stream)
    structlog.get_logger().info("connected", client="c1")
    assert "client='c1'" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_a_traceback_is_part_of_its_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    try:
        raise LookupError("lost")
    except LookupError:
        structlog.get_logger().exception("failed")
    (line,) = lines(stream)
    assert "LookupError: lost" in str(line["exception"])


def test_warnings_of_asyncio_come_out_in_the_same_form() -> None:
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    logging.getLogger("asyncio").debug("Using selector")
    logging.getLogger("asyncio").warning("took %s seconds", 3)
    (line,) = lines(stream)
    assert line["event"] == "took 3 seconds"
    assert line["logger"] == "asyncio"
    assert line["level"] == "warning"


def test_the_level_of_loggers_in_use_can_be_changed() -> None:
    stream = io.StringIO()
    logs.configure("warning", "json", stream)
    log = structlog.get_logger("canopy")
    bound = log.bind(link="cloud")
    log.info("one")
    logs.set_level("debug")
    log.debug("two")
    bound.debug("three")
    assert log.is_enabled_for(logging.DEBUG)
    logs.set_level("error")
    log.warning("four")
    logging.getLogger("asyncio").warning("five")
    assert [line["event"] for line in lines(stream)] == ["two", "three"]
    assert not log.is_enabled_for(logging.WARNING)
