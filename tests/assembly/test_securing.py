"""The security room in a whole broker: who comes in over TCP, what a reload changes, and what is logged and counted."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from canopy_mqtt import Broker, Settings, StartupError
from canopy_mqtt.core.hooks import AccessControl, AuthExchange, AuthMethod
from canopy_mqtt.security import Attempt, Authenticator, Principal, Refusal, Verdict
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.security.passwords.password_file import edit
from canopy_mqtt.settings.errors import SettingsError
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.waiting import until

EXPIRY = ((wire.SESSION_EXPIRY, 3600),)
FAST = {"failure_delay": 0.0, "hashing_threads": 1}


class Brokers:
    """Makes brokers on free ports, and clients of theirs; both end with the test."""

    def __init__(self) -> None:
        self.running: list[Broker] = []
        self.peers: list[Peer] = []

    def settings(self, *tables: Any, **sections: Any) -> Settings:
        listen = {} if "listener" in sections else {"listen": ("mqtt://127.0.0.1:0",)}
        return Settings(
            **{
                **listen,
                "authenticator": tables,
                "security": FAST,
                "sys": {"interval": 0.0},
                "shutdown": {"flush_timeout": 0.0},
                **sections,
            }
        )

    async def start(self, *tables: Any, authenticators: Any = (), **sections: Any) -> Broker:
        broker = Broker(self.settings(*tables, **sections), authenticators=authenticators)
        await broker.start()
        self.running.append(broker)
        return broker

    async def connect(self, broker: Broker, client_id: str = "c", version: int = 5, **options: Any) -> Peer:
        """A client that has its CONNACK, whatever that says."""
        peer = await Peer.open("127.0.0.1", broker.ports[0], version)
        self.peers.append(peer)
        await peer.send(wire.connect(client_id, keep_alive=0, version=version, **options))
        peer.connack = await peer.expect(wire.CONNACK)
        return peer

    def hang_up(self) -> None:
        """All clients go."""
        for peer in self.peers:
            peer.abort()

    async def code(self, broker: Broker, user: str | None = None, password: bytes | None = None, **options: Any) -> int:
        return (await self.connect(broker, user=user, password=password, **options)).connack.code


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    made.hang_up()
    for broker in made.running:
        await broker.stop()


@pytest.fixture
def told() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as entries:
        yield entries


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "passwd"
    made.write_text("".join(f"{user}:{make(b'hunter2', 'pbkdf2-sha512', 1)}\n" for user in ("alice", "bob")))
    return made


def passwords(file: Path) -> dict[str, Any]:
    return {"type": "password-file", "name": "staff", "path": str(file)}


async def test_a_password_file_without_users(
    brokers: Brokers, tmp_path: Path, told: list[MutableMapping[str, Any]]
) -> None:
    """It can be used, and nobody comes in by it: the log says so at the start."""
    file = tmp_path / "passwd"
    file.write_text("# nobody yet\n")
    file.chmod(0o600)
    broker = await brokers.start(passwords(file))
    assert await brokers.code(broker, "alice", b"hunter2") == 0x86
    (line,) = [each["detail"] for each in told if each["event"] == "suspicious setting"]
    assert line == f'authenticator "staff": {file}: there is no user in it; canopy passwd {file} USER'


async def test_a_password_file(brokers: Brokers, file: Path, told: list[MutableMapping[str, Any]]) -> None:
    broker = await brokers.start(passwords(file))
    assert await brokers.code(broker, "alice", b"hunter2") == 0
    session = broker.router.sessions["c"]
    assert (session.principal.user_name, session.principal.authenticator) == ("alice", "staff")
    for version, refused, anonymous in ((5, 0x86, 0x87), (4, 4, 5)):
        assert await brokers.code(broker, "alice", b"wrong", version=version) == refused
        assert await brokers.code(broker, "mallory", b"hunter2", version=version) == refused
        assert await brokers.code(broker, version=version) == anonymous
    lines = [line for line in told if line["event"] == "client refused"]
    assert [line["detail"] for line in lines[:3]] == [
        "staff: wrong password",
        "no authenticator knows the user",
        "a user name is needed",
    ]
    assert {line["listener"] for line in lines} == {"mqtt://127.0.0.1:0"}
    assert all(line["address"].startswith("127.0.0.1:") and line["client_id"] == "c" for line in lines)
    assert "hunter2" not in str(told)
    assert "wrong'" not in str(told)


async def test_users_who_were_removed_while_the_broker_was_stopped(
    brokers: Brokers, file: Path, tmp_path: Path, told: list[MutableMapping[str, Any]]
) -> None:
    """Their sessions and wills are gone at the start, in whatever state a kill left them; all others stay."""

    def store(folder: str) -> dict[str, Any]:
        return {"path": str(tmp_path / folder), "synchronous": "off", "will_grace": 0}

    anonymous = {"type": "anonymous", "name": "anyone"}
    broker = await brokers.start(passwords(file), anonymous, store=store("running"))
    watcher = await brokers.connect(broker, "watcher", user="bob", password=b"hunter2", props=EXPIRY, clean=False)
    await watcher.subscribe(("w/#", 1))
    for user in ("alice", "bob", None):
        stays: dict[str, Any] = {"props": EXPIRY, "clean": False}
        kinds: tuple[tuple[str, dict[str, Any]], ...] = (("clean", {}), ("stays", stays))
        for client_id, more in kinds:
            name = f"{client_id}-{user}"
            will = wire.Will("w/" + name, name.encode(), 1)
            password = None if user is None else b"hunter2"
            await brokers.connect(broker, name, user=user, password=password, will=will, **more)
    # With a delay that runs.
    late = wire.Will("w/late", b"late", 1, properties=((wire.WILL_DELAY, 60),))
    (await brokers.connect(broker, "late", user="alice", password=b"hunter2", will=late, props=EXPIRY)).abort()
    await until(lambda: broker.router.sessions["late"].send_buffer is None)
    assert broker.store is not None
    await broker.store.flush()
    # As a kill leaves it.
    await asyncio.to_thread(shutil.copytree, tmp_path / "running", tmp_path / "left")
    await asyncio.to_thread(edit, file, "alice", None)
    broker = await brokers.start(passwords(file), anonymous, store=store("left"))
    assert set(broker.router.sessions) == {"watcher", "stays-bob", "stays-None"}
    watcher = await brokers.connect(broker, "watcher", user="bob", password=b"hunter2", props=EXPIRY, clean=False)
    found = {(await watcher.message()).payload for _ in range(4)}
    assert found == {b"clean-bob", b"stays-bob", b"clean-None", b"stays-None"}
    assert await watcher.fence() == []
    (line,) = [each for each in told if each["event"] == "users were removed while the broker was stopped"]
    assert (line["sessions"], line["wills"]) == (2, 3)
    assert broker.securing is not None
    counts = dict(broker.securing.counts())
    assert (counts["dismissed/sessions"], counts["dismissed/wills"]) == (2, 3)


async def test_a_file_that_cannot_be_used_stops_the_start(brokers: Brokers, file: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", file):
        await asyncio.to_thread(file.write_text, "alice\n")
        with pytest.raises(StartupError, match=r"cannot be read|line 1: not USER:HASH") as caught:
            await brokers.start(passwords(path))
        assert str(caught.value).startswith(f'authenticator "staff": {path}: ')


async def test_each_listener_checks_by_its_own(brokers: Brokers, file: Path) -> None:
    anonymous = {"type": "anonymous"}
    urls = [
        {"url": "mqtt://127.0.0.1:0", "name": "staff only", "authenticators": ["staff"]},
        {"url": "mqtt://127.0.0.1:0", "name": "everybody"},
        {"url": "mqtt://127.0.0.1:0", "name": "no strangers", "allow_anonymous": False},
    ]
    broker = await brokers.start(passwords(file), anonymous, listener=urls)
    codes = []
    for port in broker.ports:
        peer = await Peer.open("127.0.0.1", port, 5)
        brokers.peers.append(peer)
        await peer.send(wire.connect("x", keep_alive=0))
        codes.append((await peer.expect(wire.CONNACK)).code)
    assert codes == [0x87, 0, 0x87]


async def test_no_authenticator_asks_nothing(brokers: Brokers) -> None:
    """A broker without any of this has no access control at all: nothing of it is on the way of a message."""
    broker = await brokers.start()
    assert broker.router.access_control is None
    assert await brokers.code(broker) == 0
    assert await brokers.code(broker, "anybody", b"x", client_id="d") == 0
    assert broker.securing is not None
    assert list(broker.securing.counts()) == []


async def test_guessing_bans_an_address(brokers: Brokers, file: Path, told: list[MutableMapping[str, Any]]) -> None:
    broker = await brokers.start(passwords(file), security={**FAST, "ban_after": 3, "ban_exempt": []})
    for guess in (b"a", b"b", b"c"):
        assert await brokers.code(broker, "alice", guess) == 0x86
    assert await brokers.code(broker, "alice", b"hunter2") == 0x8A
    assert await brokers.code(broker, "alice", b"hunter2", version=4) == 5
    assert broker.securing is not None
    assert dict(broker.securing.counts()) == {
        "admitted": 0,
        "refused": 3,
        "failures": 3,
        "authenticating": 0,
        "hashing/waiting": 0,
        "hashing/refused": 0,
        "bans/total": 1,
        "bans/current": 1,
        "bans/refused": 2,
        "dismissed/sessions": 0,
        "dismissed/wills": 0,
    }
    assert [line["banned"] for line in told if line["event"] == "banned for guessing"] == ["address 127.0.0.1"]
    refused = [line["detail"] for line in told if line["event"] == "client refused"]
    assert refused[-1] == "banned for guessing: address 127.0.0.1"


async def test_sys_tells_of_it(brokers: Brokers, file: Path) -> None:
    broker = await brokers.start(passwords(file), sys={"interval": 60.0})
    peer = await brokers.connect(broker, user="alice", password=b"hunter2")
    await peer.subscribe("$SYS/broker/security/#")
    topics = {(await peer.message()).topic for _ in range(9)}
    assert "$SYS/broker/security/bans/current" in topics


class Proof(AuthMethod):
    """An authentication method whose clients never prove anything."""

    def begin(self) -> AuthExchange:
        return AuthExchange()


class Proofs(Authenticator):
    name = "proofs"

    def methods(self) -> dict[str, AuthMethod]:
        return {"proof": Proof()}


async def test_failed_proofs_count_as_guesses(brokers: Brokers) -> None:
    broker = await brokers.start(authenticators=[Proofs()], security={**FAST, "ban_after": 2, "ban_exempt": []})
    method = ((0x15, "proof"),)
    assert [await brokers.code(broker, props=method) for _ in range(3)] == [0x87, 0x87, 0x8A]


class TestReload:
    async def test_a_changed_file(self, brokers: Brokers, file: Path) -> None:
        broker = await brokers.start(passwords(file))
        alice = await brokers.connect(broker, "a", user="alice", password=b"hunter2")
        bob = await brokers.connect(broker, "b", user="bob", password=b"hunter2")
        away = await brokers.connect(broker, "away", user="bob", password=b"hunter2", props=((0x11, 3600),))
        await away.disconnect()
        await until(lambda: broker.router.sessions["away"].send_buffer is None)
        await asyncio.to_thread(edit, file, "bob", None)
        await asyncio.to_thread(edit, file, "alice", make(b"new", "sha512"))
        assert await broker.reload(broker.settings) == []
        # Whose user is gone is disconnected, and so is what it left behind; a new password is asked for next time.
        (packet,) = await bob.closed()
        assert (packet.kind, packet.code) == (wire.DISCONNECT, 0x87)
        await alice.fence()
        assert set(broker.router.sessions) == {"a"}
        assert await brokers.code(broker, "bob", b"hunter2", client_id="b") == 0x86
        assert await brokers.code(broker, "alice", b"hunter2", client_id="d") == 0x86
        assert await brokers.code(broker, "alice", b"new", client_id="d") == 0

    async def test_a_bad_file_changes_nothing(self, brokers: Brokers, file: Path) -> None:
        broker = await brokers.start(passwords(file))
        alice = await brokers.connect(broker, "a", user="alice", password=b"hunter2")
        before = broker.settings
        await asyncio.to_thread(file.write_text, "nonsense\n")
        new = brokers.settings(passwords(file), security={**FAST, "ban_after": 1})
        with pytest.raises(SettingsError, match="line 1: not USER:HASH"):
            await broker.reload(new)
        assert broker.settings == before
        await alice.fence()
        assert await brokers.code(broker, "bob", b"hunter2") == 0

    async def test_the_first_authenticator(self, brokers: Brokers, file: Path) -> None:
        """Who came while nothing was asked has not proved anything."""
        broker = await brokers.start()
        stranger = await brokers.connect(broker, "s", user="alice")
        half_open = await Peer.open("127.0.0.1", broker.ports[0], 5)
        brokers.peers.append(half_open)
        await until(lambda: len(broker.connections) == 2)
        assert await broker.reload(brokers.settings(passwords(file))) == []
        (packet,) = await stranger.closed()
        assert packet.code == 0x87
        await half_open.send(wire.connect("h", user="alice", password=b"hunter2"))
        assert (await half_open.expect(wire.CONNACK)).code == 0
        assert await brokers.code(broker) == 0x87

    async def test_a_listener_keeps_its_authenticators(self, brokers: Brokers, file: Path) -> None:
        listener = {"url": "mqtt://127.0.0.1:0", "name": "in", "authenticators": ["staff"]}
        broker = await brokers.start(passwords(file), listener=[listener])
        with pytest.raises(
            SettingsError, match='listener "in": authenticators: none is called "staff"; there are: none'
        ):
            await broker.reload(brokers.settings(listener=[{"url": "mqtt://127.0.0.1:0", "name": "in"}]))
        assert await brokers.code(broker, "alice", b"hunter2") == 0

    async def test_an_authenticator_goes(self, brokers: Brokers, file: Path) -> None:
        broker = await brokers.start(passwords(file), {"type": "anonymous"})
        alice = await brokers.connect(broker, "a", user="alice", password=b"hunter2")
        nobody = await brokers.connect(broker, "n")
        assert await broker.reload(brokers.settings(passwords(file))) == []
        (packet,) = await nobody.closed()
        assert packet.code == 0x87
        await alice.fence()

    async def test_other_bounds(self, brokers: Brokers, file: Path) -> None:
        broker = await brokers.start(passwords(file))
        new = brokers.settings(passwords(file), security={**FAST, "client_ids": ["{user}-*"]})
        assert await broker.reload(new) == []
        assert await brokers.code(broker, "alice", b"hunter2") == 0x85
        assert await brokers.code(broker, "alice", b"hunter2", client_id="alice-1") == 0


class Badges(Authenticator):
    """An embedding program's own."""

    name = "badges"

    def __init__(self) -> None:
        self.closed = False

    async def authenticate(self, attempt: Attempt) -> Verdict:
        await asyncio.sleep(0)
        if attempt.user_name is None or not attempt.user_name.startswith("badge-"):
            return None
        if attempt.password == b"secret":
            return Principal(attempt.user_name, ("staff",))
        return Refusal(0x8C, "no such badge")

    async def close(self) -> None:
        self.closed = True


class TestEmbedded:
    async def test_it_is_asked_first(self, brokers: Brokers, file: Path) -> None:
        badges = Badges()
        broker = await brokers.start(passwords(file), authenticators=[badges])
        assert await brokers.code(broker, "badge-1", b"secret") == 0
        assert broker.router.sessions["c"].principal.groups == ("staff",)
        assert await brokers.code(broker, "badge-1", b"x") == 0x8C
        assert await brokers.code(broker, "alice", b"hunter2", client_id="d") == 0
        brokers.hang_up()
        await broker.stop()
        assert badges.closed

    async def test_its_access_control_wins(self, brokers: Brokers, file: Path) -> None:
        settings = brokers.settings(passwords(file))
        async with Broker(settings, access_control=AccessControl()) as broker:
            assert broker.securing is None
            assert await brokers.code(broker) == 0
            brokers.hang_up()
        with pytest.raises(ValueError, match="authenticators or access_control, not both"):
            Broker(settings, access_control=AccessControl(), authenticators=[Badges()])


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed")
@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_files_and_clients_of_mosquitto(brokers: Brokers, tmp_path: Path, version: str) -> None:
    file = tmp_path / "passwd"

    async def run(*arguments: str) -> int:
        process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.DEVNULL)
        try:
            return await asyncio.wait_for(process.wait(), 30)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    assert await run("mosquitto_passwd", "-c", "-b", str(file), "alice", "hunter2") == 0
    assert await run("mosquitto_passwd", "-H", "sha512", "-b", str(file), "bob", "hunter2") == 0
    broker = await brokers.start(passwords(file))
    to = (
        "mosquitto_pub",
        "-h",
        "127.0.0.1",
        "-p",
        str(broker.ports[0]),
        "-V",
        version,
        "-t",
        "t",
        "-m",
        "x",
        "-q",
        "1",
    )
    for user, password, good in (("alice", "hunter2", True), ("bob", "hunter2", True), ("bob", "hunter", False)):
        assert (await run(*to, "-u", user, "-P", password) == 0) is good
    assert await run(*to) != 0


async def test_many_that_come_back_are_not_hashed_again(brokers: Brokers, file: Path) -> None:
    broker = await brokers.start(passwords(file))
    for _ in range(2):
        codes = await asyncio.gather(
            *(brokers.code(broker, "alice", b"hunter2", client_id=f"device-{at}") for at in range(50))
        )
        assert codes == [0] * 50
    assert broker.securing is not None
    first = broker.securing.access._shared.pool.done
    assert await brokers.code(broker, "alice", b"hunter2") == 0
    assert broker.securing.access._shared.pool.done == first <= 50
