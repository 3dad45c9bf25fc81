"""A real Prometheus (Debian's) reads /metrics of a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import canopy_mqtt.admin.server  # noqa: F401  it takes a while, and not while the broker starts
from canopy_load.brokers.process import free_port
from canopy_mqtt.observe.figures.catalogue import FIGURES
from tests.admin.conftest import Serve
from tests.e2e.wire import Peer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian: prometheus) is absent"),
]

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: canopy
    static_configs: [{{targets: ["{target}"]}}]
"""


async def test_it_reads_all_figures(serve: Serve, ask: aiohttp.ClientSession, tmp_path: Path) -> None:
    broker = await serve()
    peer = await Peer.join(broker.ports[0], "c")
    for _ in range(3):
        await peer.publish("t", b"x", qos=1)
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(target=broker.http[0].removeprefix("http://")), "utf-8")
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )

    async def query(text: str) -> list[dict[str, Any]]:
        async with ask.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": text}) as answer:
            found: list[dict[str, Any]] = (await answer.json())["data"]["result"]
            return found

    try:
        async with asyncio.timeout(60):
            received: list[dict[str, Any]] = []
            while not received:
                # Until it listens there is no connection.
                with contextlib.suppress(aiohttp.ClientError):
                    received = await query('canopy_messages_received_total{qos="1"}')
                await asyncio.sleep(0.1)
        assert received[0]["value"][1] == "3"
        assert (await query('up{job="canopy"}'))[0]["value"][1] == "1"
        assert (await query("canopy_clients_connected"))[0]["value"][1] == "1"
        names = {each["metric"]["__name__"] for each in await query('{job="canopy"}')}
        reading = broker.figures.read()
        for figure in FIGURES:
            if figure.exported and figure.samples(reading):
                total = "_total" if figure.kind.value == "counter" else ""
                assert figure.metric + total in names
        assert "canopy_event_loop_lag_seconds_bucket" in names
    finally:
        process.terminate()
        await process.wait()
        peer.abort()
