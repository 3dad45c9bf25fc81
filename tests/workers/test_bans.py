"""Bans of all workers: failures count together, and what is banned at one is banned at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from canopy_mqtt import Broker
from canopy_mqtt.security.bans import USER, Ban
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.settings import Security, Settings
from canopy_mqtt.workers.kept_bans import KeptBans
from canopy_mqtt.workers.shared_bans import BansOfAll
from tests.e2e import wire
from tests.workers.crew import Crew

BANNED, WRONG = 0x8A, 0x86
HERE = "192.0.2.1"


class Workers:
    """The bans of some workers, which the supervisor's table has told of each other."""

    def __init__(self, brokers: list[Broker], security: Security) -> None:
        self.kept = KeptBans(security, self.tell)
        self.each = [BansOfAll(broker, number, self.said(number)) for number, broker in enumerate(brokers)]
        self.brokers = brokers
        for number in range(len(brokers)):
            self.start(number)

    def said(self, number: int) -> Callable[..., None]:
        heard = self.kept.heard(number)
        return lambda what, *given: heard[what](*given)

    def start(self, number: int) -> None:
        self.each[number].start()
        what, *given = self.kept.all()
        self.each[number].says[what](*given)

    def tell(self, *said: object, but: int = -1) -> None:
        what, *given = said
        for number, worker in enumerate(self.each):
            if number != but:
                worker.says[str(what)](*given)

    def fail(self, number: int, secret: bytes, host: str = HERE) -> None:
        securing = self.brokers[number].securing
        assert securing is not None
        securing.access.chain.login_failed(host, "user", secret)

    def banned(self) -> list[bool]:
        """Whether the address is banned for guessing, at each worker."""
        found = []
        for broker in self.brokers:
            assert broker.securing is not None
            found.append(bool(broker.securing.access.chain.brute_force.banned(HERE, time.monotonic())))
        return found


@pytest.fixture
async def workers(stack: AsyncExitStack) -> Workers:
    security = {"ban_after": 3, "ban_exempt": []}
    settings = Settings(listen=("mqtt://127.0.0.1:0",), security=security)
    brokers = [await stack.enter_async_context(Broker(settings)) for _ in range(2)]
    return Workers(brokers, settings.security)


async def test_a_worker_that_starts_knows_the_bans_in_force(workers: Workers) -> None:
    for secret in (b"a", b"b", b"c"):
        workers.fail(0, secret)
    workers.brokers[0].bans.add(Ban(USER, "u", 0.0, 0.0, "op", ""), 0.0)
    workers.brokers[0].bans.add(Ban(USER, "v", 0.0, 0.0, "op", ""), 0.0)
    workers.brokers[0].bans.lift(USER, "v")
    workers.each[1] = BansOfAll(workers.brokers[1], 1, workers.said(1))
    workers.start(1)
    assert workers.banned() == [True, True]
    assert [each.who for each in workers.brokers[1].bans.all()] == ["u"]


async def test_a_ban_that_is_lifted_at_one_is_lifted_at_all(workers: Workers) -> None:
    for secret in (b"a", b"b", b"c"):
        workers.fail(0, secret)
    securing = workers.brokers[1].securing
    assert securing is not None
    assert securing.access.chain.brute_force.lift(HERE)
    assert workers.banned() == [False, False]
    workers.fail(0, b"d")
    assert workers.banned() == [False, False]


async def test_other_settings_hold(workers: Workers) -> None:
    workers.kept.change(Security(ban_after=1))
    workers.fail(1, b"a")
    assert workers.banned() == [True, True]


async def test_an_address_is_banned_at_all_workers_of_a_broker(stack: AsyncExitStack, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"u:{make(b'right', 'pbkdf2-sha512', 1)}\n")
    crew = Crew(stack, 3)
    settings = ("security.ban_after=4", "security.ban_exempt=[]", "security.failure_delay=0")
    table = f'authenticator=[{{type = "password-file", path = "{users}"}}]'
    await crew.start("--set", table, *(word for each in settings for word in ("--set", each)))

    async def answer(worker: int, password: str) -> int:
        peer = await crew.knock(next(crew.names(worker)), user="u", password=password.encode())
        return (await peer.expect(wire.CONNACK)).code

    # The same wrong password is one, whichever worker sees it.
    assert [await answer(worker, "wrong 0") for worker in range(3)] == [WRONG] * 3
    assert [await answer(number % 3, f"wrong {number}") for number in range(1, 4)] == [WRONG] * 3
    line = await crew.line("banned for guessing")
    assert line["banned"] == "address 127.0.0.1"
    # It is told to each before its next connection.
    assert [await answer(worker, "right") for worker in range(3)] == [BANNED] * 3
    assert len(crew.told("banned for guessing")) == 1
    await crew.kill(1)
    assert await answer(1, "right") == BANNED
