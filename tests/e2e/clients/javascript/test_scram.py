"""SCRAM-SHA-256 with a client that nobody here wrote: mqtt.js, with the hashes of Node."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.security.scram.key_file import credential_line
from tests.e2e.clients.javascript.test_mqttjs import NODE, SCRIPTS
from tests.e2e.clients.javascript.test_mqttjs import pytestmark as pytestmark
from tests.e2e.clients.python.drivers import within


@pytest.mark.parametrize(
    ("user", "password", "told"),
    [("ann", "pencil", [0, True]), ("ann", "wrong", [0x86, False]), ("eve", "pencil", [0x86, False])],
)
async def test_mqttjs_proves_that_it_knows_the_password(
    tmp_path: Path, user: str, password: str, told: list[object]
) -> None:
    """And the broker proves it to mqtt.js, in its CONNACK."""
    path = tmp_path / "scram"
    await asyncio.to_thread(path.write_text, credential_line("ann", "pencil") + "\n")
    table = {"type": "scram-sha-256", "path": str(path)}
    settings = Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "authenticator": [table]})
    async with Broker(settings) as broker:
        url = f"mqtt://127.0.0.1:{broker.ports[0]}"
        process = await asyncio.create_subprocess_exec(
            *(str(NODE), str(SCRIPTS / "scram.mjs"), url, user, password),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await within("the end of the exchange", process.communicate(), 40)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, err.decode()
    assert json.loads(out) == told
