"""The broker's refusals are visible: in the log, of the client, in the list of those refused last, and in a trace."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.settings.loader import load_settings
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.waiting import until

# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")

ACL = """\
user alice
topic read home/#
topic write home/alice/#
user bob
topic readwrite home/#
"""

RULES = """\
listen = ["mqtt://127.0.0.1:0"]
[http]
listen = ["http://127.0.0.1:0"]
[shutdown]
flush_timeout = 0.0
[[rule]]
user = "alice"
filters = "home/secret"
action = ["publish", "receive"]
effect = "deny"
[[rule]]
action = "subscribe"
filters = "no/#"
effect = "deny"
[[rule]]
filters = "#"
"""

Start: TypeAlias = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Start]:
    """Starts brokers with these rules, further text for their settings file, and these `--set`s."""
    caplog.set_level(logging.INFO, "canopy")
    async with AsyncExitStack() as stack:

        async def begin(text: str, *sets: str, hooks: list[Any] | None = None) -> Broker:
            settings = await asyncio.to_thread(_read, tmp_path / "canopy.toml", text, sets)
            return await stack.enter_async_context(Broker(settings, hooks=hooks or []))

        yield begin


def _read(file: Path, text: str, sets: tuple[str, ...]) -> Settings:
    file.write_text(text)
    return load_settings(file, sets, environ={})


def lines(caplog: pytest.LogCaptureFixture, event: str = "request refused") -> list[dict[str, Any]]:
    return [
        {"level": record.levelname.lower(), **record.__dict__["fields"]}
        for record in caplog.records
        if record.__dict__.get("event") == event
    ]


async def get(broker: Broker, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{broker.http[0]}/api/v5{path}") as answer:
        assert answer.status == 200
        return await (answer.json() if "json" in answer.content_type else answer.text())


@pytest.fixture
def with_acl(tmp_path: Path) -> str:
    """Settings with a file of mosquitto's rules."""
    (tmp_path / "acl").write_text(ACL)
    before, _, _ = RULES.partition("[[rule]]")
    return f'{before}[access]\nacl_file = "{tmp_path / "acl"}"\n'


async def test_a_refused_publish_of_3_1_1_is_in_the_log_with_its_rule(
    start: Start, with_acl: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its PUBACK has no code for that. One line for a client and interval, and the first within a second."""
    broker = await start(with_acl, "queue.report_interval=600.0")
    peer = await Peer.join(broker.ports[0], "dev", version=4, user="alice")
    await peer.publish("home/other", b"x", qos=1)
    await until(lambda: lines(caplog))
    for number in range(50):
        await peer.publish(f"home/{number}", b"x", qos=1)
    expected = {
        "level": "warning",
        "client_id": "dev",
        "user_name": "alice",
        "address": "127.0.0.1",
        "action": "publish",
        "topic": "home/other",
        "reason": f"{tmp_path / 'acl'}: no line allows it",
        "reason_code": "0x87",
        "count": 1,
    }
    (line,) = lines(caplog)
    assert {name: line[name] for name in expected} == expected

    found = await get(broker, "/clients/dev")
    assert found["refused"] == {"publish": 51}
    assert found["last_refusal"]["topic"] == "home/49"
    assert found["last_refusal"]["reason"] == expected["reason"]
    peer.abort()
    await until(lambda: "dev" not in broker.router.sessions)
    # Those that no line has told of are told at the latest when the broker stops; and it is known who it was.
    await broker.stop()
    first, rest = lines(caplog)
    assert (first["count"], rest["count"], rest["topic"]) == (1, 50, "home/49")


async def test_a_rule_of_the_settings_has_its_line(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    broker = await start(RULES)
    peer = await Peer.join(broker.ports[0], "dev", user="alice")
    assert await peer.publish("home/secret", b"x", qos=1) == reason_codes.NOT_AUTHORIZED
    assert await peer.subscribe(("no/1", 1), ("yes", 1), ("$share/g/no/2", 0)) == (0x87, 1, 0x87)
    await until(lambda: len(lines(caplog)) == 2)
    publish, subscribe = lines(caplog)
    assert publish["reason"].endswith("canopy.toml: line 6: rule[0]")
    assert subscribe["reason"].endswith("canopy.toml: line 11: rule[1]")
    assert (subscribe["action"], subscribe["topic"], subscribe["count"]) == ("subscribe", "$share/g/no/2", 2)

    peer.abort()
    await until(lambda: "dev" not in broker.router.sessions)
    (gone,) = (await get(broker, "/refused"))["data"]
    assert (gone["clientid"], gone["username"], gone["here"]) == ("dev", "alice", False)
    assert gone["counts"] == {"publish": 1, "subscribe": 2}


@pytest.mark.parametrize(
    ("sets", "filters", "code", "reason"),
    [
        (["limits.max_subscriptions_per_client=1"], ["a", "b"], 0x97, "limits.max_subscriptions_per_client"),
        (["limits.max_topic_levels=2"], ["a/b/c"], 0x8F, "limits.max_topic_levels"),
        (["limits.max_client_bytes=1"], ["a"], 0x97, "limits.max_client_bytes"),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
async def test_what_limits_refuse_names_the_setting(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    version: int,
    sets: list[str],
    filters: list[str],
    code: int,
    reason: str,
) -> None:
    """A SUBACK of 3.1.1 says 0x80, whatever the reason."""
    broker = await start(RULES, *sets)
    peer = await Peer.join(broker.ports[0], "dev", version=version)
    codes = await peer.subscribe(*filters)
    assert codes[-1] == (code if version == 5 else 0x80)
    await until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert (line["topic"], line["reason_code"]) == (filters[-1], f"0x{code:02X}")
    assert reason in line["reason"]
    peer.abort()


@pytest.mark.parametrize(
    ("sets", "topic", "size", "reason"),
    [
        (["limits.max_payload_size=10"], "a", 11, "limits.max_payload_size"),
        (["limits.max_topic_levels=2"], "a/b/c", 1, "limits.max_topic_levels"),
        ([], "$SYS/x", 1, "the topic is the broker's own"),
    ],
)
async def test_a_publish_that_is_refused_otherwise_names_why(
    start: Start, caplog: pytest.LogCaptureFixture, sets: list[str], topic: str, size: int, reason: str
) -> None:
    broker = await start(RULES, *sets)
    peer = await Peer.join(broker.ports[0], "dev", version=4)
    await peer.publish(topic, bytes(size), qos=1)
    await until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert (line["topic"], line["reason"]) == (topic, reason)
    peer.abort()


async def test_a_message_that_finds_no_room_to_be_retained(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Subscribers get it, its publisher is told that all is well, and later ones wonder."""
    broker = await start(RULES, "retained.max_messages=1")
    peer = await Peer.join(broker.ports[0], "dev")
    await peer.publish("a", b"x", qos=1, retain=True)
    await peer.publish("b", b"x", qos=1, retain=True)
    await until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert (line["action"], line["topic"], line["reason"]) == ("retain", "b", "retained.max_messages")
    peer.abort()


async def test_deliveries_that_a_subscriber_may_not_have(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Live ones and retained ones, of the subscriber that misses them, and of nobody else."""
    broker = await start(RULES)
    writer = await Peer.join(broker.ports[0], "writer")
    await writer.publish("home/secret", b"kept", qos=1, retain=True)
    barred = await Peer.join(broker.ports[0], "barred", "home/#", user="alice")
    other = await Peer.join(broker.ports[0], "other", "home/#")
    await other.message()
    for _ in range(5):
        await writer.publish("home/secret", b"x", qos=1)
        await other.message()
    await writer.publish("home/open", b"x", qos=1)
    await barred.message()

    def counted() -> int:
        return sum(line["count"] for line in lines(caplog, "delivery refused"))

    session = broker.router.sessions["barred"]
    await until(lambda: session.ledger.refused is not None and sum(session.ledger.refused.counts) == 6)
    assert broker.router.counters.denied_deliveries == 6
    assert {line["client_id"] for line in lines(caplog, "delivery refused")} == {"barred"}
    await broker.stop()
    assert counted() == 6
    assert {line["level"] for line in lines(caplog, "delivery refused")} == {"info"}
    assert lines(caplog, "delivery refused")[0]["reason"].endswith("line 6: rule[0]")
    for peer in (writer, barred, other):
        peer.abort()


async def test_a_will_that_is_refused_with_its_connect(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The client hears that it is not authorized, and for what; the rule is the operator's."""
    broker = await start(RULES)
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(wire.connect("dev", user="alice", will=wire.Will("home/secret", b"x")))
    assert (await peer.expect(wire.CONNACK)).code == reason_codes.NOT_AUTHORIZED
    await until(lambda: lines(caplog, "client refused"))
    (line,) = lines(caplog, "client refused")
    assert line["detail"].startswith('its will to "home/secret" is refused by ')
    assert line["detail"].endswith("line 6: rule[0]")
    peer.abort()


class Picky:
    """A plug-in that refuses one filter."""

    def subscribe(self, client: Principal, topic_filter: str, qos: int) -> int:
        """See docs/hooks.md."""
        del client
        return 0x87 if topic_filter == "picked" else qos


async def test_a_plug_in_is_named(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    broker = await start(RULES, hooks=[Picky()])
    peer = await Peer.join(broker.ports[0], "dev")
    assert await peer.subscribe("picked", "other") == (0x87, 0)
    await until(lambda: lines(caplog))
    assert lines(caplog)[0]["reason"] == "plug-in Picky"
    peer.abort()


@pytest.mark.parametrize("kind", ["clientid", "topic"])
async def test_a_trace_says_what_was_refused(start: Start, kind: str) -> None:
    broker = await start(RULES)
    peer = await Peer.join(broker.ports[0], "dev", version=4, user="alice")
    trace = broker.traces.start(kind, "dev" if kind == "clientid" else "home/#", "t")  # type: ignore[arg-type]
    await until(lambda: broker.traces._tracers)
    await peer.publish("home/secret", b"x", qos=1)
    await peer.publish("elsewhere", b"x", qos=1)
    text = await get(broker, "/trace/t/download?format=text")
    published, refused, acknowledged = [
        line for line in text.splitlines() if "dev" in line and "connected" not in line
    ][:3]
    assert "<- PUBLISH" in published
    assert 'refused: publish "home/secret", 0x87, by ' in refused
    assert refused.endswith("line 6: rule[0]")
    assert "-> PUBACK" in acknowledged
    assert text.count("refused:") == 1
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{broker.http[0]}/api/v5/trace/t/download?format=jsonl") as answer:
            rows = [row for row in (await answer.text()).splitlines() if '"event": "refused"' in row]
        assert len(rows) == 1
        async with session.get(f"{broker.http[0]}/api/v5/trace/t/download?format=pcapng") as answer:
            assert b'refused: publish "home/secret", 0x87, by ' in await answer.read()
    broker.traces.stop(trace.name)
    await until(lambda: broker.router.counters.refusals.listener is None)
    peer.abort()


async def test_one_address_cannot_fill_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Its lines are those of warnings about clients: ten in ten seconds, and the rest is one."""
    broker = await start(RULES)
    for number in range(40):
        peer = await Peer.join(broker.ports[0], f"dev{number}", version=4, user="alice")
        await peer.publish("home/secret", b"x", qos=1)
        peer.abort()
    await broker.stop()
    assert len(lines(caplog)) <= 20
    left = sum(line["requests_refused"] for line in lines(caplog, "warnings about clients left out"))
    assert len(lines(caplog)) + left == 40
