"""`docs/embedding.md` is true: its programs run, and what it says of logs and of the package's names holds."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from canopy_mqtt import Broker, Settings, SettingsError, StartupError
from canopy_mqtt.guards import hook_guards
from canopy_mqtt.guards.log import NAME, Log
from canopy_mqtt.net.server import Server

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "embedding.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def standard_logging() -> Iterator[None]:
    """As in a host that has not heard of structlog."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    if before is not None:
        structlog.configure(**before)


SHOWN = [
    r"listening on \['mqtt://127\.0\.0\.1:\d+'\] ports \[\d+\]",
    r"site/7/temperature b'21.5' None\nsite/8/temperature b'19.0' text/plain",
    "",
    "",
    "INFO canopy stopped",
]
"""What each of them prints or logs."""


@pytest.mark.parametrize(
    ("program", "shown"),
    list(zip(PROGRAMS, SHOWN, strict=True)),
    ids=["least", "inprocess", "authenticators", "access-control", "logs"],
)
def test_the_programs_of_the_guide_run(program: str, shown: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert re.search(shown, done.stdout + done.stderr)
    assert "Traceback" not in done.stderr


def test_the_error_of_the_guide_is_the_one_that_is_raised() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(limits={"max_conections": 100})
    assert f"`{caught.value}`" in GUIDE.read_text()


def test_names_of_the_guide_exist() -> None:
    text = GUIDE.read_text()
    for hook in hook_guards.HOOKS:
        assert f"`{hook}`" in text
    arguments = set(Broker.__init__.__kwdefaults__ or {})
    assert arguments == {"authenticators", "hooks", "store", *(Server.__init__.__kwdefaults__ or {})}
    for argument in arguments:
        assert f"| `{argument}` |" in text


async def test_what_a_prompt_completes_is_what_the_guide_names() -> None:
    broker = Broker(Settings(listen=["mqtt://127.0.0.1:0"]))
    assert repr(broker) == "<Broker not running>"
    async with broker:
        assert repr(broker) == f"<Broker mqtt://127.0.0.1:{broker.ports[0]}>"
        assert dir(broker) == sorted(set(re.findall(r"\bbroker\.(\w+)", GUIDE.read_text())))
        assert [name for name in dir(broker) if not hasattr(broker, name)] == []
    assert repr(broker) == "<Broker not running>"


async def test_a_port_that_is_in_use_is_told_in_one_line() -> None:
    async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])) as first:
        with pytest.raises(StartupError, match="the port is in use") as caught:
            await Broker(Settings(listen=[f"mqtt://127.0.0.1:{first.ports[0]}"])).start()
        assert "\n" not in str(caught.value)


# ----------------------------------------------------------------------------------------------------------------- logs


async def test_standard_logging_hears_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    handlers = list(logging.getLogger().handlers)
    caplog.set_level(logging.INFO, logger=NAME)
    async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])):
        pass
    assert (NAME, logging.INFO, "stopped") in caplog.record_tuples
    # The host's logging is the host's.
    assert logging.getLogger().handlers == handlers
    assert [type(handler) for handler in logging.getLogger(NAME).handlers] == [logging.NullHandler]
    assert logging.getLogger(NAME).propagate


def test_lines_have_fields_and_cannot_be_broken(caplog: pytest.LogCaptureFixture) -> None:
    Log().warning("client refused", client_id="a\n\x1b[31mERROR", cause="refused")
    (record,) = caplog.records
    assert record.getMessage() == r"client refused client_id='a\n\x1b[31mERROR' cause='refused'"
    assert record.__dict__["event"] == "client refused"
    assert record.__dict__["fields"]["cause"] == "refused"


def test_an_error_has_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("x")
    Log().error("internal error", exc_info=error)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_levels_are_the_hosts(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    logging.getLogger(NAME).setLevel(logging.ERROR)
    try:
        assert not log.is_enabled_for(logging.DEBUG)
        log.warning("not shown")
    finally:
        logging.getLogger(NAME).setLevel(logging.NOTSET)
    assert not caplog.records


def test_structlog_goes_first_where_it_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[tuple[str, Any]] = []

    class Logger:
        def info(self, *args: Any, **fields: Any) -> None:
            lines.append((args[0] if args else fields.pop("event"), fields))

    structlog.configure(processors=[lambda _, __, event: event], logger_factory=lambda *_: Logger())
    Log().info("stopped", connections=1)
    assert lines == [("stopped", {"connections": 1})]
    assert not caplog.records


def test_a_log_that_raises_harms_nobody() -> None:
    def fault(*_: Any) -> Any:
        raise RuntimeError("a fault of the host's")

    structlog.configure(processors=[fault])
    log = Log()
    log.info("stopped")
    log.error("internal error", exc_info=RuntimeError("x"))
    assert log.failed == 2
