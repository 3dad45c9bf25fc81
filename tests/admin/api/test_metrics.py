"""The figures over HTTP: what Prometheus reads is what `$SYS` and the API say."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from canopy_mqtt import Broker
from canopy_mqtt.core.ledger import AGE, DROP_CAUSES
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.observe.figures.figure import Kind
from tests.admin.conftest import Serve


async def text(ask: aiohttp.ClientSession, broker: Broker, accept: str = "") -> tuple[str, str]:
    async with ask.get(broker.http[0] + "/metrics", headers={"Accept": accept}) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.text()


def found(told: str) -> dict[str, float]:
    """Values by name and label."""
    return {
        sample.name + "".join(f"|{value}" for value in sample.labels.values()): sample.value
        for family in plain(told)
        for sample in family.samples
    }


async def test_all_three_agree(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    counters = broker.router.counters
    counters.messages_received, counters.received_qos1, counters.received_qos2 = 100, 30, 7
    counters.dropped[AGE] = 3
    content_type, told = await text(ask, broker)
    assert content_type.startswith("text/plain; version=0.0.4")
    values = found(told)
    assert [values[f"canopy_messages_received_total|{qos}"] for qos in (0, 1, 2)] == [63, 30, 7]
    assert sum(values[f"canopy_messages_dropped_total|{cause}"] for cause in DROP_CAUSES) == 3
    async with ask.get(broker.http[0] + "/api/v5/metrics") as answer:
        api = await answer.json()
    assert [api[f"messages.received.{qos}"] for qos in (0, 1, 2)] == [63, 30, 7]
    async with ask.get(broker.http[0] + "/api/v5/stats") as answer:
        stats = await answer.json()
    assert (stats["connections"], values["canopy_connections"]) == (0, 0)
    shown = broker._sys.values(broker.loop.time())
    assert (shown["publish/messages/received"], shown["messages/dropped/age"]) == ("100", "3")


async def test_every_figure_that_this_broker_has_is_exported(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    families = {family.name for family in plain((await text(ask, broker))[1])}
    reading = broker.figures.read()
    expected = {
        figure.metric
        for figure in FIGURES
        if (figure.exported and figure.samples(reading)) or figure.name == "event_loop_lag"
    }
    assert families == expected


async def test_open_metrics_where_it_is_asked_for(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    broker.lag_monitor.lags.add(0.003)
    content_type, told = await text(ask, broker, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert told.endswith("# EOF\n")
    families = list(open_metrics(told))  # type: ignore[no-untyped-call]
    lag = next(family for family in families if family.name == "canopy_event_loop_lag_seconds")
    assert lag.type == "histogram"
    assert {sample.labels["le"]: sample.value for sample in lag.samples if sample.name.endswith("_bucket")}[
        "0.0025"
    ] <= broker.lag_monitor.lags.count - 1


@pytest.mark.parametrize("version", ["x", "9" * 5_000])
async def test_a_strange_wish_is_no_fault_of_ours(serve: Serve, ask: aiohttp.ClientSession, version: str) -> None:
    broker = await serve()
    headers = {"Accept": f"application/openmetrics-text; version={version}"}
    async with ask.get(broker.http[0] + "/metrics", headers=headers) as answer:
        assert answer.status == 200
    assert broker.faults.counts == {}


async def test_a_scrape_walks_over_no_clients(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: the tables of sessions, connections and peers are asked for their lengths alone."""
    broker = await serve()

    class Counted(dict[str, object]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("walked over")

        items = values = keys = __iter__  # type: ignore[assignment]

    router = broker.router
    monkeypatch.setattr(router, "sessions", Counted(router.sessions))
    monkeypatch.setattr(router.peers, "send_buffers", Counted())
    reading = broker.figures.read()
    for figure in FIGURES:
        if figure.exported and figure.kind is not Kind.HISTOGRAM:
            figure.samples(reading)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is absent")
async def test_prometheus_has_no_fault_to_find(serve: Serve, ask: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Names, kinds, units and texts, as promtool judges them."""
    store = {"path": str(tmp_path / "store")}
    upstream = [{"name": "up", "url": "mqtt://127.0.0.1:1"}]
    broker = await serve(store=store, upstream=upstream, security={"watch_files": False})
    _, told = await text(ask, broker)
    process = await asyncio.create_subprocess_exec(
        "promtool", "check", "metrics", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    found, _ = await process.communicate(told.encode())
    assert (found, process.returncode) == (b"", 0)


async def test_the_document_knows_them(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    async with ask.get(broker.http[0] + "/api/v5/openapi.json") as answer:
        document = await answer.json()
    assert {"/api/v5/stats", "/api/v5/metrics"} <= document["paths"].keys()
