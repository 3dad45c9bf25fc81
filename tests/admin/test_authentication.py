"""Who may ask over HTTP, and from where."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from pydantic import ValidationError
from structlog.testing import capture_logs

from canopy_mqtt import Broker, Settings
from canopy_mqtt.admin.authentication import Authentication, Caller, Credentials, read_credentials
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.password_file import edit
from canopy_mqtt.settings import Http
from tests.admin.conftest import Serve
from tests.e2e import wire
from tests.support.runs import for_each
from tests.support.waiting import until

STATUS = "/api/v5/status"
TOKEN = "0123456789abcdef0123456789abcdef"
OTHER = "00112233445566778899aabbccddeeff"
# The password is "secret"; two rounds, so that it takes no time.
HASHED = "$7$2$c2FsdHNhbHQ=$"


def hashed(password: str) -> str:
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), b"saltsalt", 2, 64)
    return HASHED + base64.b64encode(digest).decode()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Settings of a broker with the users alice (an operator) and bob, and a token for each role."""
    users = tmp_path / "users"
    for name in ("alice", "bob"):
        edit(users, name, hashed("secret"), create=True)
    (tmp_path / "viewers").write_text(f"# Prometheus\n{TOKEN}\n")
    (tmp_path / "operators").write_text(f"{OTHER}\n")
    for name in ("viewers", "operators"):
        (tmp_path / name).chmod(0o600)  # else the broker warns of it
    return {
        "password_file": str(users),
        "operators": ("al*",),
        "viewer_token_file": str(tmp_path / "viewers"),
        "operator_token_file": str(tmp_path / "operators"),
    }


async def get(ask: aiohttp.ClientSession, broker: Broker, path: str = STATUS, **given: Any) -> tuple[int, str]:
    async with ask.get(broker.http[0] + path, **given) as answer:
        return answer.status, await answer.text()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def role(credentials: Credentials, headers: Mapping[str, str]) -> Caller:
    access = Authentication(credentials)
    try:
        return await access.identify(make_mocked_request("GET", "/", headers=headers), local=False)
    finally:
        await access.close()


class TestCredentials:
    @pytest.mark.parametrize("headers", [basic("alice", "secret"), basic("bob", "secret"), bearer(TOKEN)])
    async def test_who_may_look_does(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any], headers: dict[str, str]
    ) -> None:
        broker = await serve(files)
        assert (await get(ask, broker, headers=headers))[0] == 200

    @pytest.mark.parametrize(
        "headers",
        [
            basic("alice", "wrong"),
            basic("nobody", "secret"),
            bearer(TOKEN[:-1]),
            bearer(""),
            {"Authorization": "Basic !!!"},
            {"Authorization": "Basic YWxpY2U="},
            {"Authorization": "Digest x"},
            {"Authorization": "Bearer " + "x" * 5_000},
        ],
    )
    async def test_who_is_not_known_may_not(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any], headers: dict[str, str]
    ) -> None:
        broker = await serve(files)
        status, text = await get(ask, broker, headers=headers)
        assert status == 401
        assert "secret" not in text

    async def test_without_credentials_a_browser_is_told_to_ask_for_some(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        broker = await serve(files)
        async with ask.get(broker.http[0] + STATUS) as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")

    @pytest.mark.parametrize(
        ("headers", "wanted"),
        [
            (basic("alice", "secret"), "operator"),
            (basic("bob", "secret"), "viewer"),
            (bearer(TOKEN), "viewer"),
            (bearer(OTHER), "operator"),
        ],
    )
    async def test_the_role_is_the_one_of_the_settings(
        self, files: dict[str, Any], headers: dict[str, str], wanted: str
    ) -> None:
        credentials = await asyncio.to_thread(read_credentials, Http(listen=("http://127.0.0.1",), **files))
        assert (await role(credentials, headers)).role == wanted

    async def test_a_password_that_was_good_is_not_hashed_again(self, files: dict[str, Any]) -> None:
        access = Authentication(await asyncio.to_thread(read_credentials, Http(listen=("http://127.0.0.1",), **files)))
        for _ in range(3):
            await access.identify(make_mocked_request("GET", "/", headers=basic("alice", "secret")), local=False)
        assert access._pool.done == 1
        await access.close()

    async def test_health_is_for_everybody(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        broker = await serve(files)
        for path in ("/healthz", "/readyz"):
            assert await get(ask, broker, path, headers={"Host": "probe.example"} | bearer("no")) == (200, "ok\n")

    async def test_a_reload_reads_the_files_again(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        broker = await serve(files)
        await asyncio.to_thread(Path(files["viewer_token_file"]).write_text, OTHER[::-1])
        await broker.reload(broker.settings)
        assert (await get(ask, broker, headers=bearer(TOKEN)))[0] == 401
        assert (await get(ask, broker, headers=bearer(OTHER[::-1])))[0] == 200

    async def test_a_reload_says_that_public_metrics_take_a_restart(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        broker = await serve(files | {"public_metrics": True})
        http = broker.settings.http.model_copy(update={"public_metrics": False})
        lines = await broker.reload(broker.settings.model_copy(update={"http": http}))
        assert (await get(ask, broker, "/metrics"))[0] == 200
        assert lines == ["http.public_metrics: true stays in force; false takes a restart"]

    @for_each(
        ("text", "why"),
        [("short", "line 1: a token has at least"), ("", "no token in it"), (f"{TOKEN}\n{TOKEN}", "line 2: the token")],
    )
    def test_a_file_of_tokens_that_is_none_is_told(self, tmp_path: Path, text: str, why: str) -> None:
        path = tmp_path / "tokens"
        path.write_text(text)
        with pytest.raises(SecurityError, match=why) as caught:
            read_credentials(Http(viewer_token_file=str(path)))
        assert str(path) in str(caught.value)
        assert TOKEN not in str(caught.value)


class TestGuessing:
    """Wrong credentials by HTTP count with those of CONNECTs."""

    async def test_an_address_that_guesses_is_banned_here_and_for_mqtt(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        security = {"failure_delay": 0.0, "ban_after": 4, "ban_exempt": ()}
        with capture_logs() as lines:
            broker = await serve(files, security=security, mqtt={"allow_anonymous": False})
            for headers in (basic("alice", "a"), basic("alice", "b"), basic("alice", "b"), bearer("c"), bearer("d")):
                assert (await get(ask, broker, headers=headers))[0] == 401
            # Not answered, whether it is right or not.
            for headers in (basic("alice", "secret"), bearer(OTHER), bearer("e")):
                with pytest.raises(aiohttp.ClientError):
                    await get(ask, broker, headers=headers)
            assert (await get(ask, broker, "/healthz"))[0] == 200
        refused = [line for line in lines if line["event"] == "http credentials refused"]
        assert [line["user_name"] for line in refused] == ["alice"] * 3 + [""] * 2
        [banned] = [line for line in lines if line["event"] == "banned for guessing"]
        assert banned["banned"] == "address 127.0.0.1"
        assert [line for line in lines if "secret" in str(line) or OTHER in str(line)] == []
        assert broker.securing is not None
        counts = dict(broker.securing.counts())
        assert (counts["failures"], counts["bans/total"]) == (5, 1)
        # The client asks again where a connection that it has used before is closed.
        assert counts["bans/refused"] >= 3
        with pytest.raises(AssertionError):
            await wire.Peer.join(broker.ports[0], "device")
        assert broker.securing.access.chain.brute_force.lift("127.0.0.1")
        assert (await get(ask, broker, headers=bearer(OTHER)))[0] == 200

    async def test_an_address_that_guessed_by_mqtt_is_banned_here(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        broker = await serve(files, security={"ban_after": 1, "ban_exempt": ()})
        assert broker.securing is not None
        broker.securing.access.chain.login_failed("127.0.0.1", "user", b"password")
        with pytest.raises(aiohttp.ClientError):
            await get(ask, broker, headers=bearer(OTHER))

    async def test_one_that_waits_for_a_refusal_keeps_nobody_out(
        self, serve: Serve, ask: aiohttp.ClientSession, files: dict[str, Any]
    ) -> None:
        """The answer comes after `security.failure_delay`, which here is as good as never."""
        broker = await serve(files | {"max_connections": 2}, security={"failure_delay": 60.0})
        guesses = [asyncio.ensure_future(get(ask, broker, headers=bearer(f"guess {at}"))) for at in range(2)]
        assert broker.securing is not None
        guessing = broker.securing.access.chain.brute_force
        await until(lambda: guessing.failures == 2)
        assert not any(guess.done() for guess in guesses)
        async with aiohttp.ClientSession() as operator:
            assert (await get(operator, broker, headers=bearer(OTHER)))[0] == 200
        for guess in guesses:
            guess.cancel()
        await asyncio.wait(guesses)


class TestWhere:
    """A broker without users and tokens believes whoever is on its machine, and no page that is not its own."""

    async def test_it_answers_under_its_own_names_and_under_no_other(
        self, serve: Serve, ask: aiohttp.ClientSession
    ) -> None:
        broker = await serve({"hosts": ("*.example",)})
        for host in ("localhost:80", "127.0.0.1", "[::1]:8080", "canopy.example"):
            assert (await get(ask, broker, headers={"Host": host}))[0] == 200, host
        for host in ("evil.test", "localhost.evil.test", "127.0.0.1.evil.test", ""):
            assert (await get(ask, broker, headers={"Host": host}))[0] == 403, host

    @pytest.mark.parametrize(
        "headers", [{"Origin": "http://evil.test"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
    )
    async def test_a_page_of_another_site_changes_nothing(self, files: dict[str, Any], headers: dict[str, str]) -> None:
        access = Authentication(await asyncio.to_thread(read_credentials, Http(listen=("http://127.0.0.1",), **files)))
        given = bearer(OTHER) | {"Host": "127.0.0.1:8080"}
        with pytest.raises(ApiError) as caught:
            await access.identify(make_mocked_request("DELETE", "/", headers=given | headers), local=True)
        assert caught.value.status == 403
        own = given | {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
        assert (await access.identify(make_mocked_request("DELETE", "/", headers=own), local=False)).role == "operator"
        await access.close()

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    async def test_a_page_of_another_site_leads_here_and_loads_nothing(
        self, serve: Serve, ask: aiohttp.ClientSession, site: str
    ) -> None:
        broker = await serve()
        told = {"Sec-Fetch-Site": site}
        for path in (STATUS, "/events"):
            assert (await get(ask, broker, path, headers=told | {"Sec-Fetch-Mode": "no-cors"}))[0] == 403
        assert (await get(ask, broker, headers=told | {"Sec-Fetch-Mode": "navigate"}))[0] == 200

    @for_each("url", ["http://0.0.0.0:8080", "http://[::]:8080", "http://broker.example"])
    def test_an_address_that_others_reach_takes_credentials(self, url: str) -> None:
        with pytest.raises(ValidationError, match="a loopback address"):
            Settings(http=Http(listen=(url,)))
        assert Http(listen=(url,), viewer_token_file="tokens").listen == (url,)

    async def test_whoever_may_open_the_unix_socket_is_an_operator(
        self, serve: Serve, tmp_path: Path, files: dict[str, Any]
    ) -> None:
        path = tmp_path / "admin.sock"
        await serve(files | {"listen": (f"http+unix://{path}",)})
        assert (await asyncio.to_thread(path.stat)).st_mode & 0o777 == 0o600
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            session.get("http://canopy" + STATUS) as answer,
        ):
            assert answer.status == 200
