"""Keys behind a URL: fetched when they are needed, never more often than that, and old ones serve meanwhile."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator

import pytest
import trustme
from aiohttp import web

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import ASK, Attempt, Refusal, Verdict
from canopy_mqtt.security.http_client import FetchError, HttpClient
from canopy_mqtt.security.tokens.key_sets import FetchedKeys
from canopy_mqtt.security.tokens.token_authenticator import TokenAuthenticator
from canopy_mqtt.settings import JwtTable
from canopy_mqtt.settings.urls import shown
from tests.security.http_service import Service, service
from tests.security.key_material import jwk, token
from tests.support.waiting import until

ONE = {"keys": [jwk("ES256", "one")]}
TWO = {"keys": [jwk("ES256", "one"), jwk("ES256", "two")]}


@pytest.fixture
async def there() -> AsyncIterator[Service]:
    async with service() as running:
        yield running


class Keys(FetchedKeys):
    """Keys of a service, and what was told of it."""

    def __init__(self, url: str, *, refresh: float = 1e6, min_interval: float = 1e6, most: int = 65_536) -> None:
        self.told: list[str] = []
        super().__init__(HttpClient(5.0, most), url, refresh, min_interval, self.told.append)


@pytest.fixture
async def made() -> AsyncIterator[list[Keys]]:
    """Keys to close at the end."""
    opened: list[Keys] = []
    yield opened
    for each in opened:
        await each.close()


async def test_a_hundred_tokens_at_once_cost_one_fetch(there: Service, made: list[Keys]) -> None:
    there.says(200, ONE)
    made.append(keys := Keys(there.url))
    assert keys.known("one", "ES256") is None
    found = await asyncio.gather(*(keys.find("one", "ES256") for _ in range(100)))
    assert all(len(each) == 1 for each in found)
    assert len(there.requests) == 1
    assert keys.known("one", "ES256") is not None
    assert len(there.requests) == 1


async def test_unknown_keys_are_asked_for_no_more_often_than_the_settings_say(there: Service, made: list[Keys]) -> None:
    """Anybody can make tokens that name keys which do not exist."""
    there.says(200, ONE)
    made.append(keys := Keys(there.url))
    for kid in range(50):
        assert not await keys.find(str(kid), "ES256")
    assert len(there.requests) == 1


async def test_a_key_that_is_new_there_is_found(there: Service, made: list[Keys]) -> None:
    there.says(200, ONE)
    made.append(keys := Keys(there.url, min_interval=1e-9))
    assert not await keys.find("two", "ES256")
    there.says(200, TWO)
    assert len(await keys.find("two", "ES256")) == 1


async def test_old_keys_serve_while_new_ones_are_fetched_and_where_they_cannot_be(
    there: Service, made: list[Keys]
) -> None:
    there.says(200, ONE)
    made.append(keys := Keys(there.url, refresh=1e-9, min_interval=1e-9))
    await keys.find("one", "ES256")
    there.says(503)
    there.open.clear()
    assert keys.known("one", "ES256") is not None
    await until(lambda: len(there.requests) == 2)
    there.open.set()
    await until(lambda: keys.told)
    assert keys.told[0] == f"{shown(there.url)}: the keys cannot be fetched: it answers with status 503"
    assert keys.known("one", "ES256") is not None


async def test_a_key_that_was_taken_out_there_serves_no_more(there: Service, made: list[Keys]) -> None:
    there.says(200, TWO)
    made.append(keys := Keys(there.url, refresh=1e-9, min_interval=1e-9))
    assert len(await keys.find("two", "ES256")) == 1
    there.says(200, ONE)
    await until(lambda: keys.known("two", "ES256") is None)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, ONE, "it answers with status 404"),
        (302, ONE, "it answers with status 302"),
        (200, b"nonsense", "it is not JSON"),
        (200, b'{"keys": [], "keys": []}', "the key 'keys' stands twice"),
        (200, {"keys": []}, "it has no key for signatures"),
        (200, {"keys": [{"fill": "x" * 70_000}]}, "more than 65536 bytes"),
    ],
)
async def test_without_keys_nobody_comes_in(
    there: Service, made: list[Keys], status: int, body: object, why: str
) -> None:
    there.says(status, body, headers={"Location": "/elsewhere"} if status == 302 else None)
    made.append(keys := Keys(there.url))
    with pytest.raises(FetchError, match=why):
        await keys.find("one", "ES256")
    assert why in keys.told[0]
    assert len(there.requests) == 1


async def test_a_packed_answer_is_not_unpacked(there: Service, made: list[Keys]) -> None:
    """A few bytes could become gigabytes."""
    there.says(200, b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    made.append(keys := Keys(there.url))
    with pytest.raises(FetchError, match="packed"):
        await keys.find("one", "ES256")
    assert there.requests[0].headers["Accept-Encoding"] == "identity"


async def test_an_answer_that_never_ends_is_given_up(there: Service) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    there.answer = endless
    client = HttpClient(60.0, 100_000)
    with pytest.raises(FetchError, match="more than 100000 bytes"):
        await client.ask("GET", there.url)
    await client.close()


async def test_who_gives_up_waiting_leaves_the_fetch_to_the_others(there: Service, made: list[Keys]) -> None:
    there.says(200, ONE)
    there.open.clear()
    made.append(keys := Keys(there.url))
    first = asyncio.create_task(keys.find("one", "ES256"))
    await until(lambda: there.requests)
    second = asyncio.create_task(keys.find("one", "ES256"))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    there.open.set()
    assert len(await second) == 1


async def test_tokens_with_keys_of_a_service_over_tls() -> None:
    """From the table to the verdict; the service shows a certificate of an authority that the table names."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def verdicts(checks: TokenAuthenticator) -> Verdict:
        attempt = Attempt(Connect("c"), Origin())
        attempt.password = token("ES256", headers={"kid": "one"}).encode()
        assert checks.at_once(attempt) == ASK
        found = await checks.authenticate(attempt)
        await checks.close()
        return found

    async with service(tls) as there:
        there.says(200, json.dumps(ONE).encode())
        with authority.cert_pem.tempfile() as file:
            table = JwtTable(type="jwt", algorithms=["ES256"], jwks=there.url, jwks_ca_file=file)
            trusting = await asyncio.to_thread(TokenAuthenticator.from_table, table, lambda _: None)
        found = await verdicts(trusting)
        assert isinstance(found, Principal)
        told: list[str] = []
        table = JwtTable(type="jwt", algorithms=["ES256"], jwks=there.url)
        found = await verdicts(await asyncio.to_thread(TokenAuthenticator.from_table, table, told.append))
        assert isinstance(found, Refusal)
        assert found.reason_code == 0x88
        assert len(told) == 1
