"""`canopy ctl status --room`: who holds how much, as an operator at a terminal sees it."""

from __future__ import annotations

import json

from canopy_mqtt import Broker
from tests.ctl.conftest import Ctl
from tests.e2e.wire import Peer


async def test_who_holds_most(broker: Broker, ctl: Ctl) -> None:
    """Each room with its bound, and the accounts that hold most of it."""
    peer = await Peer.join(broker.ports[0], "sensor-7", "a/+/b", "c")
    await peer.publish("t", b"x", retain=True)
    shown = await ctl("--json", "status", "--room", "3")
    found = {each["room"]: each for each in json.loads(shown.stdout)["data"]}
    assert list(found) == ["filters", "retained-messages", "retained", "sessions", "session-bytes"]
    [holder] = found["filters"]["largest"]
    assert holder["account"] == "address 127.0.0.1"
    # As if nobody else had levels in common with it.
    assert holder["held"] >= found["filters"]["held"] > 0
    assert found["filters"]["bound"] == found["filters"]["share"] == 1_610_612_736
    assert (found["retained-messages"]["held"], found["sessions"]["held"]) == (1, 1)
    assert {each["setting"] for each in found.values()} >= {"session.max_sessions", "retained.max_bytes"}
    shown = await ctl("status", "--room", "3")
    assert shown.exit_code == 0, shown.stderr
    for part in ("filters", "1,610,612,736", "fair share", "gave way", "address 127.0.0.1"):
        assert part in shown.stdout
    peer.abort()


async def test_a_user_name_does_nothing_to_the_terminal(broker: Broker, ctl: Ctl) -> None:
    """It is whatever an authenticator lets in."""
    room = broker.router.accounts.filters
    room.change(broker.router.accounts.named("user a\x1b[2J[red]b"), 1_000)
    shown = await ctl("status", "--room", "3")
    assert r"user a\x1b[2J[red]b" in shown.stdout
    assert "\x1b" not in shown.stdout
