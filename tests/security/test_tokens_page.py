"""docs/security-tokens.md is true: its settings can be used, its programs make what the settings take."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Attempt, Refusal, Verdict
from canopy_mqtt.security.http_authenticator import HttpAuthenticator
from canopy_mqtt.security.tokens.token_authenticator import TokenAuthenticator
from canopy_mqtt.settings import HttpTable, JwtTable
from canopy_mqtt.settings.loader import load_settings
from tests.security.key_material import private_key, public_pem
from tests.support.runs import for_each

PAGE = (Path(__file__).resolve().parents[2] / "docs/security-tokens.md").read_text(encoding="utf-8")
TABLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ISSUER, SERVICE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def tables(text: str, folder: Path) -> Any:
    path = folder / "canopy.toml"
    path.write_text(text)
    return load_settings(path, environ={}).authenticator


def attempt(user: str, password: str, client_id: str = "c") -> Attempt:
    connect = Connect(client_id)
    connect.user_name = user
    connect.password = password.encode()
    return Attempt(connect, Origin())


@for_each("text", TABLES)
def test_each_example_can_be_used(text: str, tmp_path: Path) -> None:
    assert len(tables(text, tmp_path)) == 1


def test_a_token_of_the_example_lets_in(tmp_path: Path) -> None:
    pem = private_key("ES256").private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (tmp_path / "jwt-private.pem").write_bytes(pem)
    (tmp_path / "jwt-public.pem").write_bytes(public_pem("ES256"))
    (table,) = tables(TABLES[0].replace("/etc/canopy", str(tmp_path)), tmp_path)
    assert isinstance(table, JwtTable)
    command = [sys.executable, "-c", ISSUER]
    token = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    found = TokenAuthenticator.from_table(table, lambda _: None).at_once(attempt("", token, "press-4"))
    assert isinstance(found, Principal)
    assert (found.user_name, found.groups, len(found.rules)) == ("press-4", ("line-1",), 2)


async def test_the_service_of_the_example_decides(tmp_path: Path) -> None:
    program: dict[str, Any] = {"__name__": "example"}
    exec(compile(SERVICE, "docs/security-tokens.md", "exec"), program)
    runner = web.AppRunner(program["app"], access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    text = next(each for each in TABLES if "http" in each)
    (table,) = await asyncio.to_thread(tables, text.replace(":8080", f":{port}"), tmp_path)
    assert isinstance(table, HttpTable)
    asks = await asyncio.to_thread(HttpAuthenticator.from_table, table, lambda _: None)

    async def verdict(user: str, password: str) -> Verdict:
        return await asks.authenticate(attempt(user, password))

    try:
        good = await verdict("ann", "hunter2")
        assert isinstance(good, Principal)
        assert (good.groups, len(good.rules)) == (("staff",), 1)
        assert isinstance(await verdict("ann", "wrong"), Refusal)
        assert await verdict("bob", "hunter2") is None
    finally:
        await asks.close()
        await runner.cleanup()
