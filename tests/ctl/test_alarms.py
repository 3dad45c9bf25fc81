"""`canopy ctl alarms` and `canopy ctl status --figures`, as somebody at a terminal uses them."""

from __future__ import annotations

import json

from canopy_mqtt import Broker
from canopy_mqtt.core.ledger import AGE
from canopy_mqtt.observe.alarms.alarms import Alarm
from tests.ctl.conftest import Ctl


async def test_what_is_wrong(broker: Broker, ctl: Ctl) -> None:
    found = await ctl("alarms")
    assert (found.stdout, found.exit_code) == ("no alarm is raised\n", 0), found.stderr
    assert broker.alarms is not None
    raised = Alarm("upstream-down", "cloud", 61.0, "s", 60.0, "refused\x1b[2J [/red]", since=1_000.0)
    broker.alarms.active["upstream-down", "cloud"] = raised
    found = await ctl("alarms")
    assert found.exit_code == 3, found.stderr
    line = found.stdout.splitlines()[1].split()
    assert line[:2] == ["upstream-down/cloud", "1970-01-01T00:16:40"]
    assert r"refused\x1b[2J [/red]" in found.stdout
    found = await ctl("--json", "alarms", "--history")
    assert (json.loads(found.stdout), found.exit_code) == ({"data": []}, 0), found.stderr


async def test_what_is_counted(broker: Broker, ctl: Ctl) -> None:
    broker.router.counters.dropped[AGE] = 12_345
    found = await ctl("status", "--figures", "messages.dropped.age")
    assert found.stdout.split() == ["messages.dropped.age", "12,345"], found.stderr
    found = await ctl("--json", "status", "--figures", "connections*")
    assert json.loads(found.stdout)["connections"] == 0, found.stderr
