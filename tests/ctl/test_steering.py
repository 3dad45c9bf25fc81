"""Clients, messages and the broker itself by `canopy ctl`, as somebody at a terminal uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt import Broker, Settings
from canopy_mqtt.command.ctl import app
from canopy_mqtt.core.codec.properties import SESSION_EXPIRY_INTERVAL
from canopy_mqtt.core.codec.reason_codes import ADMINISTRATIVE_ACTION
from canopy_mqtt.ctl import lists
from canopy_mqtt.ctl.messages import harmless
from tests.ctl.conftest import Ctl
from tests.e2e.wire import Peer
from tests.support.runs import for_each
from tests.support.waiting import until

Join: TypeAlias = Callable[..., Awaitable[Peer]]

DISCONNECT: Final = 14


@pytest.fixture
def join(broker: Broker) -> Iterator[Join]:
    """Has a client connect, as `Peer.join` does; its connection ends with the test."""
    peers: list[Peer] = []

    async def connect(*arguments: Any, **options: Any) -> Peer:
        peers.append(await Peer.join(broker.ports[0], *arguments, **options))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.abort()


async def told(ctl: Ctl, *arguments: str, code: int = 0) -> str:
    result = await ctl(*arguments)
    assert result.exit_code == code, result.output
    return result.stdout


async def test_clients_are_listed_and_shown(join: Join, ctl: Ctl) -> None:
    for name in ("a", "[red]b", "c\u202e"):
        await join(name)
    lines = (await told(ctl, "clients")).splitlines()
    assert lines[0].split()[:4] == ["client", "user", "state", "address"]
    assert [line.split()[0] for line in lines[1:]] == ["[red]b", "a", r"c\u202e"]
    found = json.loads(await told(ctl, "--json", "clients", "--like", "red"))
    assert [each["clientid"] for each in found["data"]] == ["[red]b"]
    shown = dict(line.split(None, 1) for line in (await told(ctl, "clients", "a")).splitlines() if " " in line)
    assert (shown["clientid"], shown["connected"], shown["ip_address"]) == ("a", "yes", "127.0.0.1")
    assert shown["port"].isdecimal()


async def test_what_a_limit_leaves_out_is_told(join: Join, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await join(f"c{number}")
    monkeypatch.setattr(lists, "PAGE", 2)
    result = await ctl("clients", "--limit", "3")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["c0", "c1", "c2"]
    assert "there are more" in result.stderr
    result = await ctl("clients", "--limit", "5")
    assert len(result.stdout.splitlines()) == 6
    assert result.stderr == ""


async def test_a_client_is_kicked_and_its_session_ended(broker: Broker, join: Join, ctl: Ctl) -> None:
    peer = await join("plant/a?#", ("t/#", 1), props=[(SESSION_EXPIRY_INTERVAL, 60)])
    await told(ctl, "kick", "plant/a?#")
    (last,) = await peer.closed()
    assert (last.kind, last.code) == (DISCONNECT, ADMINISTRATIVE_ACTION)
    assert (await told(ctl, "clients", "--away")).splitlines()[1].split()[0] == "plant/a?#"
    result = await ctl("kick", "plant/a?#")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    await told(ctl, "kick", "--session", "plant/a?#")
    assert broker.router.sessions == {}
    assert await told(ctl, "clients", "plant/a?#", code=1) == ""


async def test_subscriptions_are_listed(join: Join, ctl: Ctl) -> None:
    await join("a", ("plant/#", 1), "$share/g/x")
    rows = [line.split() for line in (await told(ctl, "subs", "a")).splitlines()]
    assert [(row[1], row[-1]) for row in rows[1:]] == [("0", "$share/g/x"), ("1", "plant/#")]
    found = json.loads(await told(ctl, "--json", "subs", "--group", "g"))
    assert [each["topic"] for each in found["data"]] == ["$share/g/x"]


async def test_who_is_banned_is_listed_until_the_ban_is_lifted(join: Join, ctl: Ctl) -> None:
    peer = await join("plant/a?#")
    await told(ctl, "ban", "client", "plant/a?#", "--for", "1h", "--reason", "[loud]")
    assert (await peer.closed())[-1].code == ADMINISTRATIVE_ACTION
    await told(ctl, "ban", "network", "10.0.0.0/8")
    rows = [line.split() for line in (await told(ctl, "ban")).splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [("client", "plant/a?#"), ("network", "10.0.0.0/8")]
    assert (rows[0][-1], rows[1][3]) == ("[loud]", "infinity")
    await told(ctl, "ban", "--lift", "client", "plant/a?#")
    await told(ctl, "ban", "--lift", "network", "10.0.0.0/8")
    assert (await ctl("ban", "--lift", "network", "10.0.0.0/8")).stderr == "canopy: there is no such ban\n"
    await join("plant/a?#")


async def test_messages_are_published_kept_and_cleared(broker: Broker, join: Join, ctl: Ctl, tmp_path: Path) -> None:
    await join("a", ("plant/#", 1))
    assert await told(ctl, "publish", "plant/1", "on", "--retain", "--property", "by=me=you") == (
        "for 1 subscriber, and retained\n"
    )
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff")
    await told(ctl, "publish", "plant/2", "--file", str(file), "--retain")
    result = await ctl("publish", "plant/3", "--file", "-", stdin=b"in")
    assert result.stdout == "for 1 subscriber\n"
    rows = [line.split() for line in (await told(ctl, "retained", "plant/#")).splitlines()]
    assert [(row[0], row[-1]) for row in rows[1:]] == [("2", "plant/1"), ("2", "plant/2")]
    assert (await ctl("retained", "--get", "plant/2")).stdout_bytes == b"\x00\xff"
    assert json.loads(await told(ctl, "--json", "retained", "--get", "plant/1"))["user_properties"] == [
        ["by", "me=you"]
    ]
    await told(ctl, "retained", "--clear", "plant/1")
    assert broker.router.retained.get("plant/1") is None
    result = await ctl("publish", "plant/+", "x")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


async def test_draining_begins_is_shown_and_ends(broker: Broker, ctl: Ctl) -> None:
    assert "yes" in (await told(ctl, "drain", "--within", "1h", "--to", "other:1883")).splitlines()[0]
    assert json.loads(await told(ctl, "--json", "drain", "--status"))["active"] is True
    shown = await told(ctl, "status", code=3)
    assert "ready" in shown
    await told(ctl, "drain", "--end")
    assert not broker.draining.active
    await told(ctl, "status")


async def test_a_reload_says_what_takes_a_restart(broker: Broker, ctl: Ctl) -> None:
    changed = broker.settings.model_copy(update={"mqtt": broker.settings.mqtt.model_copy(update={"max_qos": 1})})
    broker.process.read = lambda: changed
    assert "mqtt.max_qos" in await told(ctl, "reload")


async def test_the_level_of_a_host_program_is_its_own(ctl: Ctl) -> None:
    result = await ctl("log-level", "debug", "--for", "5m")
    assert (result.exit_code, result.stderr) == (
        1,
        "canopy: the log is that of the program that the broker is embedded in\n",
    )


async def test_links_that_there_are_not(ctl: Ctl) -> None:
    assert await told(ctl, "upstream") == "there are no links\n"


async def test_a_link_that_is_down_is_an_exit_code() -> None:
    settings = {
        "listen": ("mqtt://127.0.0.1:0",),
        "http": {"listen": ("http://127.0.0.1:0",)},
        "sys": {"interval": 0.0},
        "upstream": [{"name": "cloud", "url": "mqtt://127.0.0.1:9", "roots": ["a/#"]}],
    }
    async with Broker(Settings.model_validate(settings)) as broker:
        command = ["--url", broker.http[0], "upstream"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert (result.exit_code, result.stdout.splitlines()[1].split()[0]) == (3, "cloud")


async def test_a_link_shows_how_it_folds_filters() -> None:
    plain = {"listen": ("mqtt://127.0.0.1:0",), "sys": {"interval": 0.0}}
    async with Broker(Settings.model_validate(plain)) as there:
        link = {"name": "cloud", "url": f"mqtt://127.0.0.1:{there.ports[0]}", "aggregate": ["a/#"]}
        settings = plain | {"http": {"listen": ("http://127.0.0.1:0",)}, "upstream": [link]}
        async with (
            Broker(Settings.model_validate(settings)) as broker,
            broker.subscribe("a/1"),
            broker.subscribe("a/2"),
        ):
            assert broker.links is not None
            made = broker.links.links["cloud"]
            await until(lambda: made.connected)
            result = await asyncio.to_thread(CliRunner().invoke, app, ["--url", broker.http[0], "upstream"])
    heading, row = (line.split() for line in result.stdout.splitlines())
    assert dict(zip(heading, row, strict=False)) == {
        "link": "cloud", "state": "connected", "demanded": "2", "declared": "1", "queued": "0", "dropped": "0",
    }  # fmt: skip


async def test_a_link_is_reset() -> None:
    """It connects again at once, and not when its turn comes."""
    plain = {"listen": ("mqtt://127.0.0.1:0",), "sys": {"interval": 0.0}}
    async with Broker(Settings.model_validate(plain)) as there:
        link = {
            "name": "cloud",
            "url": f"mqtt://127.0.0.1:{there.ports[0]}",
            "retry_min": 3_600.0,
            "retry_max": 3_600.0,
        }
        settings = plain | {"http": {"listen": ("http://127.0.0.1:0",)}, "upstream": [link]}
        async with Broker(Settings.model_validate(settings)) as broker:
            assert broker.links is not None
            made = broker.links.links["cloud"]
            await until(lambda: made.connected)

            async def reset(name: str, connects: int) -> Result:
                command = ["--url", broker.http[0], "upstream", name, "--reset"]
                result = await asyncio.to_thread(CliRunner().invoke, app, command)
                await until(lambda: made.connects == connects and made.connected)
                return result

            assert (await reset("cloud", 2)).exit_code == 0
            # And one that waits to try again.
            assert made.connection is not None
            made.connection.abort("the network is gone")
            await until(lambda: made.state == "waiting")
            assert (await reset("cloud", 3)).exit_code == 0
            result = await reset("nobody", 3)
            assert (result.exit_code, result.stderr) == (1, "canopy: there is no such link\n")


async def test_the_api_itself(ctl: Ctl) -> None:
    found = json.loads(await told(ctl, "api", "GET", "/clients?limit=5"))
    assert found["meta"]["limit"] == 5
    body = json.dumps({"topic": "t", "payload": "ä", "retain": True})
    assert json.loads(await told(ctl, "api", "POST", "/publish", body)) == {"matched": 0, "retained": True}
    assert await told(ctl, "api", "DELETE", "/clients/ä b", code=1) == ""
    assert (await ctl("api", "POST", "/publish", "{")).stderr.startswith("canopy: the body is not JSON")
    assert (
        "the key 'topic' stands twice" in (await ctl("api", "POST", "/publish", '{"topic": "a", "topic": "b"}')).stderr
    )


@for_each(
    ("payload", "shown"),
    [
        (b"21.5", b"21.5\n"),
        (b"a\tb\nc\n", b"a\tb\nc\n"),
        (b"\x1b]0;owned\x07", b"\\x1b]0;owned\\x07\n"),
        (b"\x00\xff", b"\\x00\\xff\n"),
        ("\u202egnp \u2028 é".encode(), "\\u202egnp \\u2028 é\n".encode()),
    ],
)
def test_a_payload_cannot_steer_a_terminal(payload: bytes, shown: bytes) -> None:
    assert harmless(payload) == shown
