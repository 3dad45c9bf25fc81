"""The alarms over HTTP."""

from __future__ import annotations

import aiohttp

from canopy_mqtt.observe.alarms.alarms import Alarm
from tests.admin.conftest import Serve


async def test_those_that_are_raised_and_those_that_were(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve(alarms={"interval": 0.0})
    assert broker.alarms is not None
    raised = Alarm("upstream-down", "cloud", 61.0, "s", 60.0, "refused", since=1_000.0)
    was = [Alarm("loop-lag", "", 0.5, "s", 0.2, "", since=float(at), until=at + 10.0) for at in (100, 200)]
    broker.alarms.active["upstream-down", "cloud"] = raised
    broker.alarms.history.extend(was)
    url = broker.http[0] + "/api/v5/alarms"
    async with ask.get(url) as answer:
        (found,) = (await answer.json())["data"]
    assert (found["name"], found["deactivate_at"]) == ("upstream-down/cloud", None)
    assert found["message"] == "an upstream broker is unreachable: refused"
    assert found["activate_at"] == "1970-01-01T00:16:40.000+00:00"
    async with ask.get(url, params={"activated": "false"}) as answer:
        assert [(each["name"], each["duration"]) for each in (await answer.json())["data"]] == [
            ("loop-lag", 10_000)
        ] * 2
    async with ask.delete(url) as answer:
        assert answer.status == 204
    assert (len(broker.alarms.history), len(broker.alarms.active)) == (0, 1)
