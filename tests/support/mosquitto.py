"""A mosquitto in a process of its own, for the tests that hold Canopy beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from canopy_load.brokers.process import BrokerProcess, free_port
from canopy_load.brokers.registry import program

MOSQUITTO: Final = program("mosquitto")
"""The program; None where there is none (Debian: apt-get install mosquitto)."""

needed: Final = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


@contextmanager
def mosquitto(folder: Path, *lines: str) -> Iterator[int]:
    """The port of one that accepts clients; `lines` are more of its settings. Skips where it is not installed."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text("\n".join([f"listener {port} 127.0.0.1", "allow_anonymous true", *lines, ""]), encoding="utf-8")
    with BrokerProcess([MOSQUITTO, "-c", str(config)], port, None):
        yield port
