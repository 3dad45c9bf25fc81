"""Which broker `canopy ctl` asks: by options, the environment or the broker's settings; and what it confirms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt import Broker, Settings
from canopy_mqtt.assembly.process import Process
from canopy_mqtt.command.cli import app
from canopy_mqtt.settings.loader import ignored, load_settings
from tests.ctl.conftest import SETTINGS
from tests.e2e.wire import Peer
from tests.support.certificates import Authority

Canopy: TypeAlias = Callable[..., Awaitable[Result]]

TOKEN = "the-token-of-an-operator-0123456789"


@pytest.fixture
def canopy(monkeypatch: pytest.MonkeyPatch) -> Canopy:
    """Runs the whole command in a thread; `environ` is its environment besides."""

    async def run(*arguments: str, environ: dict[str, str] | None = None, stdin: str | None = None) -> Result:
        with monkeypatch.context() as patched:
            for name in ("CANOPY_URL", "CANOPY_TOKEN_FILE", "CANOPY_USER", "CANOPY_CA"):
                patched.delenv(name, raising=False)
            return await asyncio.to_thread(CliRunner().invoke, app, ["ctl", *arguments], env=environ, input=stdin)

    return run


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def https(tmp_path: Path, token: Path) -> dict[str, Any]:
    certificate, key = Authority(tmp_path).issue("127.0.0.1")
    return {
        "listen": ["https://127.0.0.1:0"], "certificate": certificate, "key": key, "operator_token_file": str(token),
    }  # fmt: skip


@pytest.fixture
async def guarded(https: dict[str, Any]) -> AsyncIterator[Broker]:
    """One that asks for a token, over TLS."""
    async with Broker(Settings.model_validate({**SETTINGS, "http": https})) as broker:
        yield broker


def written(file: Path, broker: Broker, http: dict[str, Any]) -> Path:
    """The settings of a broker that runs, with its port."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**http, "listen": broker.http}.items()]
    file.write_text("[http]\n" + "\n".join(lines) + "\n")
    return file


async def test_by_the_environment(guarded: Broker, canopy: Canopy, token: Path, https: dict[str, Any]) -> None:
    environ = {
        "CANOPY_URL": guarded.http[0], "CANOPY_TOKEN_FILE": str(token), "CANOPY_CA": https["certificate"],
    }  # fmt: skip
    assert (await canopy("status", environ=environ)).exit_code == 0
    result = await canopy("--url", "http://127.0.0.1:1", "status", environ=environ)
    assert result.stderr.startswith("canopy: http://127.0.0.1:1: no broker listens there")


async def test_a_user_by_the_environment(broker: Broker, canopy: Canopy) -> None:
    """The password comes from standard input."""
    environ = {"CANOPY_URL": broker.http[0], "CANOPY_USER": "ann"}
    assert (await canopy("status", environ=environ, stdin="secret\n")).exit_code == 0


async def test_by_the_settings_of_the_broker(
    guarded: Broker, canopy: Canopy, tmp_path: Path, https: dict[str, Any]
) -> None:
    """URL, token file and certificate. An option that is typed counts before the file, the file before variables."""
    file = str(written(tmp_path / "canopy.toml", guarded, https))
    assert (await canopy("--config", file, "status")).exit_code == 0
    assert (await canopy("status", "-c", file)).exit_code == 2
    assert (await canopy("status", "--config", file)).exit_code == 0
    wrong = tmp_path / "wrong"
    wrong.write_text("not-this-token-but-another\n")
    wrong.chmod(0o600)
    environ = {"CANOPY_URL": "http://127.0.0.1:1", "CANOPY_TOKEN_FILE": str(wrong), "CANOPY_CA": str(wrong)}
    assert (await canopy("--config", file, "status", environ=environ)).exit_code == 0
    assert "wrong user" in (await canopy("--config", file, "--token-file", str(wrong), "status")).stderr


async def test_settings_without_http(canopy: Canopy, tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text("[limits]\nmax_connections = 5\n")
    result = await canopy("--config", str(file), "status")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{file}: the broker does not listen for HTTP with these settings; add [http]" in result.stderr
    file.write_text("[limits]\nmax_conections = 5\n")
    assert "the nearest is limits.max_connections" in (await canopy("--config", str(file), "status")).stderr


def test_variables_of_the_command_are_no_settings() -> None:
    environ = dict.fromkeys(("CANOPY_URL", "CANOPY_TOKEN_FILE", "CANOPY_USER", "CANOPY_CA"), "x")
    assert load_settings(environ=environ) == Settings()
    assert ignored(environ) == []


@pytest.mark.parametrize(
    "line",
    [
        "--json clients",
        "clients --json",
        "clients --json --limit 3",
        "clients --limit 3 --json",
        "subs --json --url URL",
        "retained list --json",
        "traces --json",
        "status --url=URL --json",
    ],
)
async def test_common_options_anywhere(broker: Broker, canopy: Canopy, line: str) -> None:
    words = [word.replace("URL", broker.http[0]) for word in line.split()]
    result = await canopy(*words, environ={"CANOPY_URL": broker.http[0]})
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)


async def test_what_is_no_option_stays(broker: Broker, canopy: Canopy) -> None:
    """Behind `--` everything is what the command is given; and a command's own option is its own."""
    environ = {"CANOPY_URL": broker.http[0]}
    async with broker.subscribe("a") as messages:
        assert (await canopy("publish", "a", "--", "--json", environ=environ)).exit_code == 0
        assert (await anext(messages)).payload == b"--json"
    assert (await canopy("clients", "--user", "ann", environ=environ)).exit_code == 0


CONFIRMED = [
    ("kick dev", "ended the connection of dev"),
    ("kick --session dev", "ended the session of dev"),
    ("ban --lift user ann", "lifted the ban of user ann"),
    ("retained --clear kept", "cleared the retained message of kept"),
    ("log-level debug --for 90s", "the log level is debug for 1 min 30 s"),
    ("log-level info", "the log level is info for 10 min"),
    ("drain --end", "the broker accepts clients again"),
    ("upstream cloud --reset", "the link cloud connects again"),
]


@pytest.mark.parametrize("form", ["text", "json"])
async def test_each_change_is_confirmed(canopy: Canopy, form: str) -> None:
    link = {"name": "cloud", "url": "mqtt://127.0.0.1:1"}
    async with Broker(Settings.model_validate({**SETTINGS, "upstream": [link]})) as broker:
        environ = {"CANOPY_URL": broker.http[0]}
        broker.process = Process(None, lambda _: None)
        await broker.publish("kept", "1", retain=True)
        await canopy("ban", "user", "ann", environ=environ)
        await canopy("drain", "--within", "1h", environ=environ)
        for line, said in CONFIRMED:
            if line.startswith("kick"):
                await canopy("drain", "--end", environ=environ)
                peer = await Peer.join(broker.ports[0], "dev")
            result = await canopy(*line.split(), *(["--json"] if form == "json" else []), environ=environ)
            assert result.exit_code == 0, result.output
            assert (json.loads(result.stdout)["done"] if form == "json" else result.stdout.rstrip("\n")) == said
            if line.startswith("kick"):
                peer.abort()
