"""`canopy ctl clients --recent` and `clients ID`: to whom something happened, also when it has left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.ledger import AGE, FULL_MESSAGES
from tests.ctl.conftest import SETTINGS, Ctl
from tests.e2e.wire import Peer
from tests.support.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """As for the other commands, but it tells of losses and refusals ten times a second."""
    async with Broker(Settings.model_validate(SETTINGS | {"queue": {"report_interval": 0.1}})) as started:
        yield started


async def test_who_lost_messages_is_known_when_it_has_left(broker: Broker, ctl: Ctl) -> None:
    peer = await Peer.join(broker.ports[0], "gone", user="alice")
    ledger = broker.router.sessions["gone"].ledger
    ledger.lost(FULL_MESSAGES, 40)
    ledger.lost(AGE, 2)
    peer.abort()
    await until(lambda: "gone" not in broker.router.sessions)
    await until(lambda: broker.monitor.losers.newest())
    stays = await Peer.join(broker.ports[0], "stays")
    broker.router.sessions["stays"].ledger.lost(AGE, 1)
    await until(lambda: len(broker.monitor.losers.newest()) == 2)

    found = json.loads((await ctl("--json", "clients", "--recent", "losers")).output)["data"]
    assert [(each["clientid"], each["username"], each["here"]) for each in found] == [
        ("stays", None, True),
        ("gone", "alice", False),
    ]
    assert found[1]["counts"] == {"full-messages": 40, "age": 2}
    assert found[1]["ip_address"] == "127.0.0.1"
    assert found[1]["first_at"] <= found[1]["last_at"]
    row = next(
        line for line in (await ctl("clients", "--recent", "losers")).output.splitlines() if "gone" in line.split()[0]
    )
    assert row.split()[:4] == ["gone", "alice", "127.0.0.1", "gone"]
    assert "42" in row
    assert "full-messages 40, age 2" in row
    stays.abort()


async def test_what_a_client_was_refused(broker: Broker, ctl: Ctl) -> None:
    peer = await Peer.join(broker.ports[0], "dev", version=4)
    await peer.publish("$SYS/x", b"x", qos=1)
    found = json.loads((await ctl("--json", "clients", "dev")).output)
    assert found["refused"] == {"publish": 1}
    assert found["last_refusal"]["topic"] == "$SYS/x"
    assert found["last_refusal"]["reason"] == "the topic is the broker's own"
    text = (await ctl("clients", "dev")).output
    assert "publish=1" in text
    assert "topic=$SYS/x" in text
    await until(lambda: broker.refusal_log.recent.newest())
    assert "the topic is the broker's own" in (await ctl("clients", "--recent", "refused")).output
    peer.abort()
