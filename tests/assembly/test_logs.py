"""Logs: two forms, one stream, and nothing for what lies below the level."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.assembly import logs
from canopy_mqtt.core import causes
from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_log import ConnectionLog
from canopy_mqtt.settings import Log
from tests.support.logged import connection as made_connection


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


@pytest.fixture(scope="module")
def connection() -> Connection:
    return made_connection(accepted=True)


class TestLinesAboutClients:
    """Lines that `ConnectionLog` builds itself are those that structlog would have written, byte for byte."""

    TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)
    SECONDS = st.floats(0, 1e9)

    def written(self, log_level: str = "debug") -> tuple[io.StringIO, ConnectionLog]:
        """Where the log of a daemon goes, and its lines about clients."""
        stream = io.StringIO()
        logs.configure(cast(Any, log_level), "json", stream)
        log = ConnectionLog(lambda: structlog.get_logger("canopy"))
        log.write = logs.json_write()
        log.bound(Log(client_bytes=0, client_warnings=0))
        return stream, log

    def twins(self, stream: io.StringIO) -> tuple[str, str]:
        """The only two lines, without their times."""
        first, second = stream.getvalue().splitlines(keepends=True)
        stamp = re.compile(r'"timestamp": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z"}\n$')
        assert stamp.search(first)
        return stamp.sub("", first), stamp.sub("", second)

    @given(
        texts=st.tuples(TEXTS, st.none() | TEXTS, TEXTS, TEXTS),
        version=st.sampled_from([(3, "3.1"), (4, "3.1.1"), (5, "5.0"), (9, "9")]),
        keep_alive=st.integers(0, 65_535),
        flags=st.tuples(st.booleans(), st.booleans()),
        expiry=st.integers(0, NEVER),
        link=st.booleans(),
    )
    def test_of_a_client_that_connects(
        self,
        connection: Connection,
        texts: tuple[str, str | None, str, str],
        version: tuple[int, str],
        keep_alive: int,
        flags: tuple[bool, bool],
        expiry: int,
        link: bool,
    ) -> None:
        protocol = connection.protocol
        session = protocol.session
        assert session is not None
        protocol.client_id, user_name, connection.origin.text, connection.terms.name = texts
        protocol.user_name = user_name
        protocol.version, protocol.keep_alive, session.expiry_interval = version[0], keep_alive, expiry
        (protocol.clean_start, protocol.session_present), session.link_peer = flags, "below" if link else ""
        stream, log = self.written()
        log.opened(connection)
        fields = dict(zip(("client_id", "user_name", "address", "listener"), texts, strict=True))
        refused = {"link": "federation.link_users and link_client_ids do not name it"} if link else {}
        structlog.get_logger("canopy").info(
            "client connected",
            **fields,
            version=version[1],
            keep_alive=keep_alive,
            clean_start=flags[0],
            session_present=flags[1],
            **refused,
            session_expiry="never" if expiry == NEVER else expiry,
            will=False,
        )
        built, expected = self.twins(stream)
        assert built == expected

    @given(
        texts=st.tuples(TEXTS, st.none() | TEXTS, TEXTS, TEXTS),
        detail=TEXTS,
        end=st.sampled_from(
            [
                ("info", "client disconnected", causes.CONNECTION_LOST),
                ("info", "client evicted", causes.KEEP_ALIVE),
                ("warning", "client evicted", causes.STALLED),
                ("warning", "client broke the protocol", causes.PROTOCOL_ERROR),
            ]
        ),
        times=st.tuples(SECONDS, SECONDS),
        received=st.integers(0, 2**62),
        accepted=st.booleans(),
    )
    def test_of_an_end(
        self,
        connection: Connection,
        texts: tuple[str, str | None, str, str],
        detail: str,
        end: tuple[str, str, str],
        times: tuple[float, float],
        received: int,
        accepted: bool,
    ) -> None:
        protocol = connection.protocol
        level, event, cause = end
        if not accepted and cause == causes.CONNECTION_LOST:
            level, event = "debug", "connection ended before CONNECT was accepted"
        protocol.client_id, user_name, connection.origin.text, connection.terms.name = texts
        protocol.user_name = user_name
        protocol.close_cause, protocol.close_text, protocol.accepted = cause, detail, accepted
        connection.opened_at, protocol.messages_received = times[0], received
        stream, log = self.written()
        log.ended(connection, times[1])
        fields = dict(zip(("client_id", "user_name", "address", "listener"), texts, strict=True))
        counts = {"seconds": round(times[1] - times[0], 3), "messages_received": received, "messages_sent": 0}
        log_line = getattr(structlog.get_logger("canopy"), level)
        more = {"detail": detail} if detail else {}
        log_line(event, **fields, cause=cause, **more, **(counts if accepted else {}))
        built, expected = self.twins(stream)
        assert built == expected

    @given(st.integers(0, 4_000_000_000 * 10**9))
    def test_their_time(self, connection: Connection, nanoseconds: int) -> None:
        stream, log = self.written()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: nanoseconds)
            log.opened(connection)
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1_000)
        (line,) = lines(stream)
        assert line["timestamp"] == moment.isoformat().replace("+00:00", "Z")

    def test_they_keep_their_place_and_the_level(self, connection: Connection) -> None:
        stream, log = self.written("info")
        other = structlog.get_logger("canopy")
        log.opened(connection)
        other.info("one")
        log.http_refused("192.0.2.1", "192.0.2.1:5", "")
        logs.set_level("warning")
        log.bound(Log())
        log.opened(connection)
        other.warning("two")
        log.http_refused("192.0.2.1", "192.0.2.1:6", "")
        logs.set_level("error")
        log.bound(Log())
        log.http_refused("192.0.2.1", "192.0.2.1:7", "")
        events = [line["event"] for line in lines(stream)]
        assert events == ["client connected", "one", "http credentials refused", "two", "http credentials refused"]

    def test_the_console_keeps_structlog(self, connection: Connection) -> None:
        stream = io.StringIO()
        logs.configure("info", "console", stream)
        assert logs.json_write() is None
        log = ConnectionLog(lambda: structlog.get_logger("canopy"))
        log.bound(Log())
        connection.protocol.client_id = "a\n\ud800"
        log.opened(connection)
        assert r"client_id='a\n\ud800'" in stream.getvalue()
