"""`canopy ctl alarms` and `canopy ctl figures`, as somebody at a terminal uses them."""

from __future__ import annotations

import json

from broker.core.counters import AGE
from broker.observe.alarms.alarms import Alarm
from canopy import Broker
from tests.ctl.conftest import Start


async def test_what_is_wrong(broker: Broker, canopy_ctl: Start) -> None:
    running = await canopy_ctl("alarms")
    told, complaints = await running.communicate()
    assert (told, running.returncode) == (b"no alarm is raised\n", 0), complaints
    assert broker.alarms is not None
    raised = Alarm("upstream-down", "cloud", 61.0, "s", 60.0, "refused\x1b[2J [/red]", since=1_000.0)
    broker.alarms.active["upstream-down", "cloud"] = raised
    running = await canopy_ctl("alarms")
    told, complaints = await running.communicate()
    assert running.returncode == 3, complaints
    line = told.decode().splitlines()[1].split()
    assert line[:2] == ["upstream-down/cloud", "1970-01-01T00:16:40"]
    assert rb"refused\x1b[2J [/red]" in told
    running = await canopy_ctl("--json", "alarms", "--history")
    told, complaints = await running.communicate()
    assert (json.loads(told), running.returncode) == ({"data": []}, 0), complaints


async def test_what_is_counted(broker: Broker, canopy_ctl: Start) -> None:
    broker.router.counters.dropped[AGE] = 12_345
    running = await canopy_ctl("figures", "messages.dropped.age")
    told, complaints = await running.communicate()
    assert told.decode().split() == ["messages.dropped.age", "12,345"], complaints
    running = await canopy_ctl("--json", "figures", "connections*")
    told, complaints = await running.communicate()
    assert json.loads(told)["connections"] == 0, complaints
