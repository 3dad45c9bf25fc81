"""What is posted, how often, and what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from canopy_mqtt.guards.log import Log
from canopy_mqtt.observe.alarms.webhook import ATTEMPTS, Webhook
from canopy_mqtt.settings import Alarms
from tests.support.waiting import until


class Service:
    """Takes alarms; the first answers are `statuses`, all others 204."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.held = asyncio.Event()
        self.held.set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        await self.held.wait()
        status = self.statuses.pop(0) if self.statuses else 204
        self.got.append(await request.json())
        return web.Response(status=status, headers={"Location": "/elsewhere"})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/secret", made.take)
    app.router.add_route("*", "/elsewhere", made.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/secret"
    yield made
    await runner.cleanup()


def hook(service: Service, **alarms: Any) -> Webhook:
    made = Webhook(Alarms(webhook=service.url, **alarms), "edge", Log())
    made.pause = 0.001
    return made


def alarm(number: int) -> dict[str, Any]:
    return {"alarm": "drop-rate", "state": "raised", "value": number}


async def test_each_in_order(service: Service) -> None:
    made = hook(service)
    for number in range(5):
        made.send(alarm(number))
    await until(lambda: made.delivered == 5)
    assert service.got == [alarm(number) | {"broker": "edge"} for number in range(5)]
    await made.stop()


async def test_tried_again_until_it_is_taken(service: Service) -> None:
    service.statuses = [500, 503, 302]
    made = hook(service)
    made.send(alarm(1))
    await until(lambda: made.delivered == 1)
    # No redirect was followed: that would have been a fifth.
    assert len(service.got) == 4
    await made.stop()


async def test_given_up_after_so_many_attempts_without_telling_the_url(service: Service) -> None:
    service.statuses = [500] * ATTEMPTS
    with capture_logs() as lines:
        made = Webhook(Alarms(webhook=service.url), "edge", Log())
        made.pause = 0.001
        made.send(alarm(1))
        made.send(alarm(2))
        await until(lambda: made.delivered == 1)
    assert (made.left_out, len(service.got)) == (1, ATTEMPTS + 1)
    assert "secret" not in str(lines)
    assert [line["reason"] for line in lines] == ["status 500"]
    await made.stop()


async def test_of_too_many_the_oldest_are_left_out(service: Service) -> None:
    service.held.clear()
    made = hook(service, history=3)
    for number in range(10):
        made.send(alarm(number))
    assert (len(made._waiting), made.left_out) == (3, 7)
    service.held.set()
    await until(lambda: made.delivered == 3)
    assert [each["value"] for each in service.got] == [7, 8, 9]
    await made.stop()


async def test_stopping_waits_for_nobody(service: Service) -> None:
    service.held.clear()
    made = hook(service)
    made.send(alarm(1))
    await asyncio.sleep(0)
    await asyncio.wait_for(made.stop(), 5)
    made.send(alarm(2))
    assert made._task is None
    service.held.set()


async def test_nobody_is_there() -> None:
    made = Webhook(Alarms(webhook="http://127.0.0.1:1/x"), "edge", Log())
    made.pause = 0.001
    made.send(alarm(1))
    await until(lambda: made.left_out == 1)
    await made.stop()
