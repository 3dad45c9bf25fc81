"""mqtt.js over TCP and WebSocket: what the scenarios in `tests/e2e/js/interop.mjs` must see, in 3.1.1 and 5.0."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from tests.e2e.clients.conftest import Served, Unique
from tests.e2e.clients.python.drivers import within
from tests.support.certificates import Authority

SCRIPTS = Path(__file__).resolve().parents[2] / "js"
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.skipif(not NODE, reason="node is not installed"),
    pytest.mark.skipif(
        not (SCRIPTS / "node_modules" / "mqtt").is_dir(), reason="mqtt.js is not installed: npm ci in tests/e2e/js"
    ),
]

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
Scenario = Callable[[str, int], Awaitable[Any]]


SCENARIOS = (
    "qualities", "retained", "will", "session", "takeover", "unsubscribing", "shared", "big", "properties",
)  # fmt: skip
"""Each has a test here; `properties` are those of 5.0."""


async def run(url: str, version: int, name: str, *scenarios: str, **environment: str) -> dict[str, Any]:
    """Run scenarios in one process of Node, one after the other; return what each saw."""
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        *(str(SCRIPTS / "interop.mjs"), url, str(version), name, *scenarios),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        out, err = await within(f"the end of {scenarios}", process.communicate(), 40)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, int], dict[str, Any]]:
    """What the scenarios saw, by scheme and version: all of them run at the first question."""
    return {}


@pytest.fixture(params=["mqtt", "ws"])
def see(
    daemon: Served, unique: Unique, runs: dict[tuple[str, int], dict[str, Any]], request: pytest.FixtureRequest
) -> Scenario:
    """Return what a scenario saw."""
    scheme: str = request.param
    port = {"mqtt": daemon.port, "ws": daemon.web_port}[scheme]

    async def told(scenario: str, version: int) -> Any:
        if (scheme, version) not in runs:
            asked = [each for each in SCENARIOS if version == 5 or each != "properties"]
            runs[scheme, version] = await run(f"{scheme}://127.0.0.1:{port}", version, unique("js"), *asked)
        return runs[scheme, version][scenario]

    return told


@VERSIONS
async def test_each_quality_of_service(see: Scenario, version: int) -> None:
    assert await see("qualities", version) == [
        [granted, published, min(granted, published), "grüße 🌍"] for granted in range(3) for published in range(3)
    ]


@VERSIONS
async def test_retained_messages(see: Scenario, version: int) -> None:
    assert await see("retained", version) == [["new", True], ["", False], ["fence", False]]


@VERSIONS
async def test_the_will(see: Scenario, version: int) -> None:
    assert await see("will", version) == "lost"


@VERSIONS
async def test_a_kept_session(see: Scenario, version: int) -> None:
    before, after, seen = await see("session", version)
    assert (before, after) == (False, True)
    assert [int(one) for one in seen if int(one) % 2] == list(range(1, 20, 2))
    assert [int(one) for one in seen if not int(one) % 2] == list(range(0, 20, 2))


@VERSIONS
async def test_a_second_connection_takes_over(see: Scenario, version: int) -> None:
    assert await see("takeover", version) == (0x8E if version == 5 else None)


@VERSIONS
async def test_unsubscribing(see: Scenario, version: int) -> None:
    assert await see("unsubscribing", version) == ["before", "fence"]


@VERSIONS
async def test_a_shared_subscription(see: Scenario, version: int) -> None:
    shares = await see("shared", version)
    assert sorted(shares[0] + shares[1]) == list(range(20))
    assert all(share == sorted(share) and len(share) >= 5 for share in shares)


@VERSIONS
async def test_a_payload_of_nearly_a_megabyte(see: Scenario, version: int) -> None:
    assert await see("big", version) == [1_048_000, 2]


async def test_websocket_over_tls(unique: Unique, tmp_path: Path) -> None:
    """With the certificate looked at, as browsers do."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    web = {"url": "wss://127.0.0.1:0", "tls": {"certificate": certificate, "key": key}}
    async with Broker(Settings.model_validate({"listener": [web]})) as broker:
        seen = await run(broker.listening[0], 5, unique("js"), "big", NODE_EXTRA_CA_CERTS=authority.file)
    assert seen == {"big": [1_048_000, 2]}


async def test_properties(see: Scenario) -> None:
    found = await see("properties", 5)
    assert 0 < found.pop("messageExpiryInterval") <= 60
    assert found == {
        "contentType": "text/plain",
        "responseTopic": "answers",
        "correlationData": "42",
        "payloadFormatIndicator": True,
        "subscriptionIdentifier": 7,
        "userProperties": {"a": ["1", "2"], "b": "ñ"},
    }
