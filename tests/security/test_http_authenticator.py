"""The service over HTTP: what it is asked, what its answers mean, and what becomes of clients when there are none."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trustme

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import Origin, PeerCertificate
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import ASK, Attempt, Refusal, Verdict
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.http_authenticator import HttpAuthenticator
from canopy_mqtt.security.rules.rule import Rule
from canopy_mqtt.settings import HttpTable
from canopy_mqtt.settings.urls import shown
from tests.security.http_service import Service, service
from tests.support.waiting import until

PASSWORD = b"correct horse"


class Asks:
    """An authenticator, and what it told of its service."""

    def __init__(self, made: HttpAuthenticator, told: list[str]) -> None:
        self.made = made
        self.told = told

    async def __call__(self, attempt: Attempt) -> Verdict:
        """The verdict, as the chain comes by it."""
        found = self.made.at_once(attempt)
        return await self.made.authenticate(attempt) if found == ASK else found


Make = Callable[..., Awaitable[Asks]]


@pytest.fixture
async def there() -> AsyncIterator[Service]:
    async with service() as running:
        yield running


@pytest.fixture
async def make(there: Service) -> AsyncIterator[Make]:
    """Authenticators that ask the service, with keys of their tables as keywords."""
    async with AsyncExitStack() as stack:

        async def made(**keys: Any) -> Asks:
            told: list[str] = []
            table = HttpTable(type="http", **{"url": there.url, **keys})
            authenticator = await asyncio.to_thread(HttpAuthenticator.from_table, table, told.append)
            stack.push_async_callback(authenticator.close)
            return Asks(authenticator, told)

        yield made


def attempt(
    user: str | None = "ann", password: bytes | None = PASSWORD, client_id: str = "c", host: str = "192.0.2.1"
) -> Attempt:
    connect = Connect(client_id)
    connect.user_name = user
    connect.password = password
    certificate = PeerCertificate("CN=dev,O=x")
    return Attempt(connect, Origin(f"{host}:4711", host, "front", True, certificate))


def is_refused(found: Verdict, code: int = 0x86) -> bool:
    return isinstance(found, Refusal) and found.reason_code == code and PASSWORD.decode() not in found.text


class TestQuestion:
    async def test_what_is_asked(self, there: Service, make: Make) -> None:
        there.says(204)
        ask = await make(headers=["Authorization: Bearer s3cret", "X-Site:7"])
        await ask(attempt())
        assert there.asked == [
            {
                "client_id": "c",
                "user_name": "ann",
                "password": "correct horse",
                "address": "192.0.2.1:4711",
                "listener": "front",
                "certificate": "CN=dev,O=x",
            }
        ]
        (request,) = there.requests
        assert request.method == "POST"
        assert (request.headers["Authorization"], request.headers["X-Site"]) == ("Bearer s3cret", "7")

    async def test_a_password_that_is_no_text(self, there: Service, make: Make) -> None:
        there.says(204)
        await (await make())(attempt(password=b"\xff\x00"))
        assert (there.asked[0]["password"], there.asked[0]["password_base64"]) == (None, "/wA=")

    async def test_a_client_without_a_name(self, there: Service, make: Make) -> None:
        there.says(204)
        found = await (await make())(attempt(None, None))
        assert isinstance(found, Principal)
        assert found.user_name is None
        assert (there.asked[0]["user_name"], there.asked[0]["password"]) == (None, None)


class TestAnswers:
    async def test_one_that_lets_a_client_in(self, there: Service, make: Make) -> None:
        ends = time.time() + 60
        there.says(
            200,
            {
                "result": "allow",
                "user_name": "anna",
                "groups": ["staff"],
                "attributes": {"site": "7"},
                "expires_at": ends,
                "rules": [{"permission": "deny", "action": "publish", "topic": "a/#"}],
            },
        )
        found = await (await make())(attempt())
        assert isinstance(found, Principal)
        assert (found.user_name, found.groups, found.attributes) == ("anna", ("staff",), {"site": "7"})
        assert found.expires_at == ends
        (rule,) = found.rules
        assert isinstance(rule, Rule)
        assert (rule.topic_filter, rule.allow) == ("a/#", False)

    @pytest.mark.parametrize(("status", "body"), [(204, None), (200, {"result": "allow"})])
    async def test_without_more_the_client_is_whom_it_says(
        self, there: Service, make: Make, status: int, body: object
    ) -> None:
        there.says(status, body)
        found = await (await make())(attempt())
        assert isinstance(found, Principal)
        assert (found.user_name, found.groups, found.expires_at) == ("ann", (), 0.0)

    @pytest.mark.parametrize(("status", "body"), [(401, None), (403, b"no"), (200, {"result": "deny"})])
    async def test_one_that_does_not(self, there: Service, make: Make, status: int, body: object) -> None:
        there.says(status, body)
        assert is_refused(await (await make(on_error="allow"))(attempt()))

    @pytest.mark.parametrize(("status", "body"), [(404, None), (200, {"result": "ignore"})])
    async def test_one_that_leaves_the_client_to_the_next(
        self, there: Service, make: Make, status: int, body: object
    ) -> None:
        there.says(status, body)
        assert await (await make())(attempt()) is None


BAD: list[tuple[int, object]] = [
    (500, None),
    (302, None),
    (206, {"result": "allow"}),
    (200, None),
    (200, b"<html>"),
    (200, b'{"a":' * 20_000),
    (200, b'{"result": "deny", "result": "allow"}'),
    (200, [1]),
    (200, {"result": "yes"}),
    (200, {"result": True}),
    (200, {"result": "allow", "user_name": 5}),
    (200, {"result": "allow", "user_name": "a\0"}),
    (200, {"result": "allow", "user_name": "a\ud800"}),
    (200, {"result": "allow", "groups": ["a\ud800"]}),
    (200, {"result": "allow", "groups": "staff"}),
    (200, {"result": "allow", "groups": [5]}),
    (200, {"result": "allow", "attributes": ["a"]}),
    (200, {"result": "allow", "attributes": {"a": 5}}),
    (200, {"result": "allow", "expires_at": "soon"}),
    (200, {"result": "allow", "expires_at": -1}),
    (200, {"result": "allow", "expires_at": 10**400}),
    (200, b'{"result": "allow", "expires_at": NaN}'),
    (200, {"result": "allow", "rules": "a/#"}),
    (200, {"result": "allow", "rules": [{"topic": "a/#/b"}]}),
    (200, {"result": "allow", "fill": "x" * 70_000}),
]


class TestFailures:
    @pytest.mark.parametrize(("status", "body"), BAD, ids=[str(each) for each in range(len(BAD))])
    async def test_an_answer_that_is_none_lets_nobody_in(
        self, there: Service, make: Make, status: int, body: object
    ) -> None:
        there.says(status, body, headers={"Location": there.url} if status == 302 else None)
        ask = await make()
        assert is_refused(await ask(attempt()), 0x88)
        assert len(there.requests) == 1
        assert len(ask.told) == 1
        assert PASSWORD.decode() not in ask.told[0]

    @pytest.mark.parametrize("on_error", ["deny", "ignore", "allow"])
    async def test_what_a_service_that_is_not_there_means_is_a_setting(self, make: Make, on_error: str) -> None:
        found = await (await make(url="http://127.0.0.1:1/x", on_error=on_error))(attempt())
        if on_error == "deny":
            assert is_refused(found, 0x88)
        elif on_error == "ignore":
            assert found is None
        else:
            assert isinstance(found, Principal)
            assert (found.user_name, found.groups) == ("ann", ())

    async def test_one_that_does_not_answer_is_given_up(self, there: Service, make: Make) -> None:
        there.open.clear()
        ask = await make(timeout=0.05)
        assert is_refused(await ask(attempt()), 0x88)
        assert ask.told == [f"{shown(there.url)}: no answer within 0.05 seconds"]

    async def test_it_is_told_once_that_it_fails_and_once_that_it_is_back(self, there: Service, make: Make) -> None:
        there.says(500)
        ask = await make()
        for _ in range(20):
            await ask(attempt())
        there.says(204)
        for _ in range(20):
            await ask(attempt())
        assert ask.told == [
            f"{shown(there.url)}: it answers with status 500",
            f"{shown(there.url)}: the service answers again",
        ]

    async def test_a_service_with_another_certificate_is_not_asked(self, make: Make) -> None:
        authority = trustme.CA()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        async with service(tls) as there:
            there.says(204)
            assert is_refused(await (await make(url=there.url))(attempt()), 0x88)
            assert there.requests == []
            with authority.cert_pem.tempfile() as file:
                assert isinstance(await (await make(url=there.url, ca_file=file))(attempt()), Principal)

    async def test_a_file_that_cannot_be_used(self, make: Make, tmp_path: Any) -> None:
        for key in ("ca_file", "cert_file"):
            with pytest.raises(SecurityError, match=f"{tmp_path}"):
                await make(**{key: str(tmp_path)})


class TestBounds:
    async def test_no_more_requests_at_a_time_than_the_settings_say(self, there: Service, make: Make) -> None:
        there.says(204)
        there.open.clear()
        ask = await make(max_requests=3, max_waiting=5)
        tasks = [asyncio.create_task(ask(attempt(f"u{number}"))) for number in range(20)]
        await until(lambda: there.waiting == 3)
        await until(lambda: sum(task.done() for task in tasks) == 12)
        assert all(is_refused(task.result(), 0x89) for task in tasks if task.done())
        there.open.set()
        found = await asyncio.gather(*tasks)
        assert sum(isinstance(each, Principal) for each in found) == 8
        assert there.most_waiting == 3
        assert isinstance(await ask(attempt()), Principal)

    async def test_who_gives_up_waiting_leaves_the_place_to_others(self, there: Service, make: Make) -> None:
        there.says(204)
        there.open.clear()
        ask = await make(max_requests=1, max_waiting=1)
        tasks = [asyncio.create_task(ask(attempt())) for _ in range(2)]
        await until(lambda: there.waiting == 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        there.open.set()
        assert isinstance(await ask(attempt()), Principal)


class TestMemory:
    async def test_the_same_credentials_are_asked_about_once(self, there: Service, make: Make) -> None:
        there.says(200, {"result": "allow", "groups": ["staff"]})
        ask = await make(cache_time=60.0)
        for _ in range(5):
            found = await ask(attempt())
            assert isinstance(found, Principal)
            assert found.groups == ("staff",)
        assert len(there.requests) == 1
        for other in (
            attempt("bob"),
            attempt(password=b"wrong"),
            attempt(password=None),
            attempt(client_id="d"),
            attempt(host="192.0.2.2"),
        ):
            await ask(other)
        assert len(there.requests) == 6

    @pytest.mark.parametrize(
        ("settings", "answer"),
        [
            ({}, {"result": "allow"}),
            ({"cache_time": 1e-9}, {"result": "allow"}),
            ({"cache_time": 60.0}, {"result": "allow", "expires_at": 1}),
        ],
    )
    async def test_nothing_is_remembered_longer_than_settings_and_credentials_say(
        self, there: Service, make: Make, settings: dict[str, float], answer: dict[str, Any]
    ) -> None:
        there.says(200, answer)
        ask = await make(**settings)
        await ask(attempt())
        await ask(attempt())
        assert len(there.requests) == 2

    async def test_who_was_denied_is_asked_about_again(self, there: Service, make: Make) -> None:
        there.says(403)
        ask = await make(cache_time=60.0)
        await ask(attempt())
        there.says(204)
        assert isinstance(await ask(attempt()), Principal)

    async def test_it_is_bounded(self, there: Service, make: Make) -> None:
        there.says(204)
        ask = await make(cache_time=60.0, cache_entries=2)
        for user in ("a", "b", "a", "c", "a"):
            await ask(attempt(user))
        assert [each["user_name"] for each in there.asked] == ["a", "b", "c"]
        await ask(attempt("b"))
        assert len(there.asked) == 4

    async def test_no_password_is_kept(self, there: Service, make: Make) -> None:
        there.says(204)
        ask = await make(cache_time=60.0)
        await ask(attempt())
        kept: list[Any] = [ask.made._remembered]
        seen: set[int] = set()
        while kept:
            each = kept.pop()
            if id(each) not in seen and isinstance(each, (dict, list, tuple, str, bytes, Principal)):
                seen.add(id(each))
                assert each not in (PASSWORD, PASSWORD.decode())
                kept += gc.get_referents(each)

    async def test_a_reload_forgets(self, there: Service, make: Make) -> None:
        there.says(204)
        ask = await make(cache_time=60.0)
        await ask(attempt())
        assert await ask.made.renewed() is ask.made
        await ask(attempt())
        assert len(there.requests) == 2

    async def test_one_that_is_replaced_answers_whom_it_was_asked_for(self, there: Service, make: Make) -> None:
        """A reload that reads certificates again keeps nobody out who is just coming in."""
        there.says(204)
        there.open.clear()
        ask = await make(max_requests=1)
        coming = asyncio.create_task(ask(attempt()))
        await until(lambda: there.waiting == 1)
        closing = asyncio.create_task(ask.made.close())
        there.open.set()
        assert isinstance(await coming, Principal)
        await closing
        assert is_refused(await ask(attempt()), 0x88)

    async def test_an_address_with_many_connects_keeps_no_other_out(self, there: Service, make: Make) -> None:
        there.says(204)
        there.open.clear()
        ask = await make(max_requests=1, max_waiting=10)
        crowd = [asyncio.create_task(ask(attempt(f"u{each}", host="192.0.2.66"))) for each in range(50)]
        await until(lambda: sum(task.done() for task in crowd) == 39)
        alone = asyncio.create_task(ask(attempt("ann")))
        await until(lambda: sum(task.done() for task in crowd) == 40)
        there.open.set()
        assert isinstance(await alone, Principal)
        await asyncio.gather(*crowd)
        # Behind one that was asked about already, and one of the crowd.
        assert [each["user_name"] for each in there.asked].index("ann") <= 2
