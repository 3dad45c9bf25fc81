"""Brokers whose settings name authenticators of tokens, services and SCRAM: from the CONNECT to what a client hears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from canopy_mqtt import Broker, Settings
from canopy_mqtt.security.chain import MAX_LINES
from canopy_mqtt.security.scram.key_file import credential_line
from tests.e2e import wire
from tests.e2e.wire import AUTH, CONNACK, DISCONNECT, PUBACK, Packet, Peer
from tests.security.http_service import service
from tests.security.key_material import SECRET, token, unsigned
from tests.security.scram_client import ScramClient
from tests.support.waiting import until

JWT: dict[str, Any] = {"type": "jwt", "algorithms": ["HS256"], "secret": SECRET}

Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Brokers with these authenticators; sections of settings as keywords."""
    async with AsyncExitStack() as stack:

        async def started(*tables: dict[str, Any], **sections: Any) -> Broker:
            given = {"authenticator": tables, "security": {"failure_delay": 0.0}, **sections}
            if "listener" not in given:
                given["listen"] = ["mqtt://127.0.0.1:0"]
            return await stack.enter_async_context(Broker(Settings.model_validate(given)))

        yield started


@pytest.fixture
async def peers() -> AsyncIterator[list[Peer]]:
    """Connections to close at the end."""
    opened: list[Peer] = []
    yield opened
    for peer in opened:
        peer.abort()


async def connected(
    broker: Broker,
    peers: list[Peer],
    password: str | bytes | None = None,
    user: str | None = "ann",
    *,
    version: int = 5,
    props: wire.Properties = (),
) -> Packet:
    """The answer to a CONNECT; the connection is the last of `peers`."""
    peers.append(await Peer.open("127.0.0.1", broker.ports[0], version))
    data = password.encode() if isinstance(password, str) else password
    await peers[-1].send(wire.connect(f"c{len(peers)}", version=version, user=user, password=data, props=props))
    return await peers[-1].recv()


class TestTokens:
    @pytest.mark.parametrize("version", [4, 5])
    async def test_a_good_one_comes_in_and_others_do_not(self, start: Start, peers: list[Peer], version: int) -> None:
        """0x86, which is 4 in 3.1.1: no signature, another key, expired, for another audience."""
        broker = await start(JWT)
        assert (await connected(broker, peers, token(), version=version)).code == 0
        assert broker.router.sessions["c1"].principal.user_name == "ann"
        now = int(time.time())
        for bad in (
            unsigned({"alg": "none"}, {"sub": "ann", "exp": now + 60}),
            token(key="k" * 64),
            token(exp=now - 60),
            token(aud="somebody else"),
            "no token at all",
            None,
        ):
            assert (await connected(broker, peers, bad, version=version)).code == (0x86 if version == 5 else 4)

    async def test_the_user_is_whom_the_token_names(self, start: Start, peers: list[Peer]) -> None:
        broker = await start(JWT)
        assert (await connected(broker, peers, token(sub="bob"), "root")).code == 0
        assert broker.router.sessions["c1"].principal.user_name == "bob"
        broker = await start({**JWT, "same_user": True})
        assert (await connected(broker, peers, token(sub="bob"), "root")).code == 0x86

    async def test_its_rules_come_before_those_of_the_settings(self, start: Start, peers: list[Peer]) -> None:
        rules = [{"filters": ["shared/#", "secret"]}]
        broker = await start(JWT, rule=rules)
        acl = [{"permission": "deny", "topic": "secret"}, {"action": "publish", "topic": "own/#"}]
        assert (await connected(broker, peers, token(acl=acl))).code == 0
        topics = ("own/x", "shared/x", "secret", "other")
        assert await peers[-1].subscribe(*topics) == (0x87, 0, 0x87, 0x87)
        codes = []
        for packet_id, topic in enumerate(topics, 100):
            await peers[-1].send(wire.publish(topic, b"x", qos=1, packet_id=packet_id))
            codes.append((await peers[-1].wait_for(PUBACK)).code)
        assert [code in (0x00, 0x10) for code in codes] == [True, True, False, False]
        assert codes[2:] == [0x87, 0x87]

    async def test_its_end_is_that_of_the_connection(self, start: Start, peers: list[Peer]) -> None:
        broker = await start(JWT)
        assert (await connected(broker, peers, token(exp=time.time() + 1.2))).code == 0
        ended = await peers[-1].recv()
        assert (ended.kind, ended.code) == (DISCONNECT, 0x87)

    async def test_no_token_stands_in_the_log(
        self, start: Start, peers: list[Peer], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also where it comes as the user name, refused or not."""
        broker = await start({**JWT, "token_in": "user-name"})
        good, bad = token(), token(exp=int(time.time()) - 60)
        assert (await connected(broker, peers, None, good)).code == 0
        assert (await connected(broker, peers, None, bad)).code == 0x86
        told = caplog.text + "".join(capfd.readouterr())
        assert "refused" in told
        assert good.rpartition(".")[2] not in told
        assert bad.rpartition(".")[2] not in told


class TestService:
    async def test_what_it_says_is_what_happens(self, start: Start, peers: list[Peer]) -> None:
        async with service() as there:
            broker = await start({"type": "http", "url": there.url})
            there.says(200, {"result": "allow", "groups": ["staff"]})
            assert (await connected(broker, peers, "secret")).code == 0
            assert broker.router.sessions["c1"].principal.groups == ("staff",)
            there.says(403)
            assert (await connected(broker, peers, "secret")).code == 0x86
            there.says(404)
            assert (await connected(broker, peers, "secret")).code == 0x86
            there.says(500)
            assert (await connected(broker, peers, "secret")).code == 0x88
            assert (await connected(broker, peers, "secret", version=4)).code == 3
            assert there.asked[0]["password"] == "secret"

    async def test_who_has_it_fail_again_and_again_does_not_fill_the_log(self, start: Start, peers: list[Peer]) -> None:
        async with service() as there:
            with capture_logs() as told:
                broker = await start({"type": "http", "url": there.url})
                for _ in range(MAX_LINES):
                    for status, code in ((500, 0x88), (403, 0x86)):
                        there.says(status)
                        assert (await connected(broker, peers, "secret")).code == code
            lines = [line["detail"] for line in told if line["event"] == "an authenticator is not available"]
            assert len(lines) == MAX_LINES
            assert "status 500" in lines[0]
            assert "answers again" in lines[1]

    async def test_the_next_is_asked_about_whom_it_does_not_know(self, start: Start, peers: list[Peer]) -> None:
        async with service() as there:
            there.says(404)
            broker = await start({"type": "http", "url": there.url}, JWT)
            assert (await connected(broker, peers, token())).code == 0
            assert (await connected(broker, peers, "secret")).code == 0x86

    async def test_the_broker_serves_others_while_it_is_waited_for(self, start: Start, peers: list[Peer]) -> None:
        async with service() as there:
            there.open.clear()
            broker = await start(JWT, {"type": "http", "url": there.url})
            slow = await Peer.open("127.0.0.1", broker.ports[0])
            peers.append(slow)
            await slow.send(wire.connect("slow", user="bob", password=b"secret"))
            await until(lambda: there.waiting == 1)
            assert (await connected(broker, peers, token())).code == 0
            there.says(204)
            there.open.set()
            assert (await slow.recv()).code == 0


async def proves(broker: Broker, peers: list[Peer], user: str, password: str) -> Packet:
    """What an exchange by SCRAM comes to."""
    client = ScramClient(user, password)
    method: wire.Property = (wire.AUTH_METHOD, "SCRAM-SHA-256")
    answer = await connected(broker, peers, None, None, props=[method, (wire.AUTH_DATA, client.first())])
    if answer.kind != AUTH:
        return answer
    data = answer.get(wire.AUTH_DATA)
    assert isinstance(data, bytes)
    await peers[-1].send(wire.auth(0x18, [method, (wire.AUTH_DATA, client.final(data))]))
    return await peers[-1].expect(CONNACK)


class TestScram:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "scram"
        path.write_text("\n".join(credential_line(user, "pencil", 4096) for user in ("ann", "bob")) + "\n")
        return path

    def table(self, path: Path) -> dict[str, Any]:
        return {"type": "scram-sha-256", "path": str(path)}

    async def test_a_reload_ends_users_that_are_gone(self, start: Start, peers: list[Peer], path: Path) -> None:
        broker = await start(self.table(path))
        for user in ("ann", "bob"):
            assert (await proves(broker, peers, user, "pencil")).code == 0
        await asyncio.to_thread(path.write_text, credential_line("ann", "new", 4096) + "\n")
        await broker.reload(broker.settings)
        ended = await peers[1].recv()
        assert (ended.kind, ended.code) == (DISCONNECT, 0x87)
        assert "c1" in broker.router.sessions
        assert (await proves(broker, peers, "ann", "pencil")).code == 0x86
        assert (await proves(broker, peers, "ann", "new")).code == 0

    async def test_guessing_bans_before_the_next_exchange(self, start: Start, peers: list[Peer], path: Path) -> None:
        security = {"failure_delay": 0.0, "ban_after": 3, "ban_exempt": []}
        broker = await start(self.table(path), security=security)
        for guess in range(3):
            assert (await proves(broker, peers, "ann", f"guess {guess}")).code == 0x86
        banned = await proves(broker, peers, "ann", "pencil")
        assert (banned.kind, banned.code) == (CONNACK, 0x8A)

    async def test_guessing_on_an_open_connection_bans_too(self, start: Start, peers: list[Peer], path: Path) -> None:
        """Whoever has an account could else guess at those of others for as long as it likes."""
        security = {"failure_delay": 0.0, "ban_after": 3, "ban_exempt": []}
        broker = await start(self.table(path), security=security)
        for guess in range(3):
            assert (await proves(broker, peers, "ann", "pencil")).code == 0
            client, method = ScramClient("bob", f"guess {guess}"), (wire.AUTH_METHOD, "SCRAM-SHA-256")
            await peers[-1].send(wire.auth(0x19, [method, (wire.AUTH_DATA, client.first())]))
            data = (await peers[-1].expect(AUTH)).get(wire.AUTH_DATA)
            assert isinstance(data, bytes)
            await peers[-1].send(wire.auth(0x18, [method, (wire.AUTH_DATA, client.final(data))]))
            assert (await peers[-1].expect(DISCONNECT)).code == 0x86
        assert (await proves(broker, peers, "ann", "pencil")).code == 0x8A

    @pytest.mark.parametrize(("stays", "code"), [(True, 0x00), (False, 0x86)])
    async def test_who_is_taken_back_during_the_exchange_does_not_slip_in(
        self, start: Start, peers: list[Peer], path: Path, stays: bool, code: int
    ) -> None:
        broker = await start(self.table(path))
        client, method = ScramClient("bob", "pencil"), (wire.AUTH_METHOD, "SCRAM-SHA-256")
        begun = await connected(broker, peers, None, None, props=[method, (wire.AUTH_DATA, client.first())])
        if not stays:
            await asyncio.to_thread(path.write_text, credential_line("ann", "pencil", 4096) + "\n")
        await broker.reload(broker.settings)
        data = begun.get(wire.AUTH_DATA)
        assert isinstance(data, bytes)
        await peers[-1].send(wire.auth(0x18, [method, (wire.AUTH_DATA, client.final(data))]))
        assert (await peers[-1].expect(CONNACK)).code == code

    async def test_a_listener_without_it_lets_nobody_in_by_it(
        self, start: Start, peers: list[Peer], path: Path
    ) -> None:
        listener = [{"url": "mqtt://127.0.0.1:0", "authenticators": ["jwt"]}]
        broker = await start(JWT, self.table(path), listener=listener)
        for password in ("pencil", "wrong"):
            # Nor does anybody find out by it whether a password is right.
            refused = await proves(broker, peers, "ann", password)
            assert (refused.kind, refused.code) == (CONNACK, 0x8C)
        assert (await connected(broker, peers, token())).code == 0
