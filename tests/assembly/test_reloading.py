"""What a reload takes up: each setting of the list is in force as after a start with it, and no other is."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core_limits import NAMES
from canopy_mqtt.security.passwords.passwd import set_password
from canopy_mqtt.settings import defaults, flatten
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.reloadable import PARTS, SECTIONS, SWITCHES, TABLES
from canopy_mqtt.sockets import OWN_DESCRIPTORS
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.certificates import Authority
from tests.support.waiting import until

BASE: Final[Mapping[str, Any]] = {
    "listen": ["mqtt://127.0.0.1:0", "ws://127.0.0.1:0"],
    "shutdown": {"flush_timeout": 0.0},
    "alarms": {"interval": 60.0},
}

BASE_WITHOUT: Final = {name: value for name, value in BASE.items() if name != "listen"}

TAKEN: Final = frozenset(
    name
    for name in defaults()
    for section, _, key in [name.partition(".")]
    if section in SECTIONS or key in PARTS.get(section, ())
)

SPECIAL: Final[Mapping[str, Any]] = {
    "queue.rules": ({"client_id": "a*", "policy": "latest"},),
    "queue.subscriber_policies": ("latest",),
    "queue.policy": "drop-oldest",
    "queue.on_full": "tell-publisher",
    "session.takeover": "any-user",
    "store.on_failure": "refuse",
    "store.on_damage": "set-aside",
    "recorder.when_full": "hold",
    "mqtt.versions": ("5.0",),
    "mqtt.auto_id_prefix": "other-",
    "federation.link_users": ("edge-*",),
    "federation.link_client_ids": ("edge-*",),
    "tracing.directory": "/var/lib/canopy/traces",
    "log.level": "error",
    "alarms.room": 0.25,
    "alarms.disk_used": 0.25,
    "limits.max_connections": 100,
    "limits.max_publish_rate": 7.0,
    "limits.max_publish_bytes": 1_000,
    "session.max_expiry": 3_600,
    # What a reload leaves alone.
    "routing.trie": "compact",
    "recorder.table": "delta",
    "recorder.filters": ("a",),
    "store.synchronous": "normal",
    "store.path": "/var/lib/canopy/store",
    "store.url": "postgresql://db.example.org/canopy",
    "store.name": "plant",
    "federation.broker_id": "there",
    "presence.topic": "clients",
    "log.format": "json",
    "mqtt.max_qos": 1,
    "otel.endpoint": "http://127.0.0.1:4318/v1/traces",
    "hooks": ("my_company.mqtt:Hooks",),
    "recorder.directory": "/var/lib/canopy/record",
    "alarms.webhook": "https://example.org/",
}


def other(name: str) -> Any:
    """A value that the setting may have and that is not its default."""
    if name in SPECIAL:
        return SPECIAL[name]
    value = flatten(Settings.model_validate(BASE))[name]
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), name
    if isinstance(value, float):
        return value * 0.5 if value else 1.0
    return value - 1 if value > 1 else value + 1


def with_values(values: Mapping[str, Any]) -> Settings:
    """The settings with these, by their full names."""
    tree: dict[str, Any] = {name: dict(value) if isinstance(value, dict) else value for name, value in BASE.items()}
    for name, value in values.items():
        section, dot, key = name.partition(".")
        if dot:
            tree.setdefault(section, {})[key] = value
        else:
            tree[name] = value
    return Settings.model_validate(tree)


def in_force(broker: Broker) -> dict[str, Any]:
    """What a running broker goes by, from all who keep some of it."""
    router, rounds, monitor, admission = broker.router, broker.rounds, broker.monitor, broker.admission
    runs, totals, queue_limits = router.runs, router.counters.totals, broker.router.limits
    assert admission is not None
    assert broker.alarms is not None
    found: dict[str, Any] = {name: getattr(queue_limits, name) for name in NAMES if name != "rules"}
    found["rules"] = [(rule.client_id, rule.policy) for rule in queue_limits.rules]
    times = ("connect_timeout", "packet_timeout", "stall_timeout", "write_batch_bytes")
    found |= {f"rounds.{name}": getattr(rounds, name) for name in times}
    found |= {f"runs.{name}": getattr(runs, name) for name in ("most", "most_bytes", "most_payload")}
    found |= {
        "load": (totals.max_messages, totals.max_bytes),
        "shares": router.retained_store.shares.most,
        "partial": broker.connection_table.partial.limit,
        "handshakes": broker.handshakes.limit,
        "table": broker.connection_table.most,
        "admission": _admission(broker),
        "monitor": (monitor._slow_after, monitor._interval),
        "sys": broker._sys._interval,
        "alarms": (broker.alarms._settings, broker.alarms._observer.settings, broker.alarms.history.maxlen),
        "webhook": getattr(broker.alarms._notifier, "_settings", None),
        "upgrades": [listener.upgrades and listener.upgrades.most_bytes for listener in broker.listeners.open],
        "traces": broker.traces._settings,
        "log": broker.settings.log,
        "shutdown": broker.settings.shutdown,
        "hooks": broker.settings.limits.max_waiting_hooks,
    }
    return found


def _admission(broker: Broker) -> list[int]:
    """How many of some connections from one address it lets in, within a second."""
    admission = broker.admission
    assert admission is not None
    codes = [admission.arrive("192.0.2.1", 1e9) for _ in range(12)]
    for code in codes:
        if code == 0:
            admission.leave("192.0.2.1")
        elif code > 0:
            admission.leave_refused()
            admission.refused_gone()
    return codes


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(Settings.model_validate(BASE)) as made:
        yield made


async def test_each_setting_of_the_list_is_put_in_force(broker: Broker) -> None:
    standard = Settings.model_validate(BASE)
    before = in_force(broker)
    for name in sorted(TAKEN):
        values = {name: other(name)}
        assert await broker.reload(with_values(values)) == [], name
        assert flatten(broker.settings)[name] == flatten(with_values(values))[name]
        assert in_force(broker) != before, name
        assert await broker.reload(standard) == []
        assert in_force(broker) == before, name


async def test_a_reload_leads_where_a_start_does(broker: Broker) -> None:
    values = {name: other(name) for name in TAKEN}
    assert await broker.reload(with_values(values)) == []
    async with Broker(with_values(values)) as fresh:
        assert in_force(broker) == in_force(fresh)
        assert broker.settings == fresh.settings


async def test_a_cluster_takes_a_restart(broker: Broker) -> None:
    cluster = {"name": "plant", "node": "a", "listen": "mqtt+unix:///run/a.sock"}
    lines = await broker.reload(with_values({f"cluster.{key}": value for key, value in cluster.items()}))
    assert [line.partition(":")[0] for line in lines] == [f"cluster.{key}" for key in cluster]
    assert broker.cluster is None


async def test_every_other_setting_takes_a_restart_and_says_so(broker: Broker) -> None:
    # Those of a cluster that make one belong together.
    together = {f"cluster.{key}" for key in ("name", "node", "listen", "nodes", "ca_file", "cert_file", "key_file")}
    tables = {"listen", "upstream", "authenticator", "listener", "rule", *together}
    for name in flatten(broker.settings):
        if name in TAKEN or name in tables or name.partition(".")[0] in (*TABLES, "http"):
            continue
        values = {name: other(name)}
        before = flatten(broker.settings)[name]
        (line,) = await broker.reload(with_values(values))
        assert line.startswith(f"{name}: "), line
        assert line.endswith(" takes a restart")
        assert flatten(broker.settings)[name] == before


async def test_a_webhook_that_changes_ends_the_one_before(broker: Broker) -> None:
    await broker.reload(with_values({"alarms.webhook": "http://127.0.0.1:1/"}))
    assert broker.alarms is not None
    before: Any = broker.alarms._notifier
    before.send({"alarm": "x", "state": "raised"})
    await broker.reload(with_values({}))
    assert broker.alarms._notifier is None
    assert before._stopped
    assert before._task is None


@pytest.mark.parametrize("name", sorted(SWITCHES))
async def test_an_interval_is_not_switched_off(broker: Broker, name: str) -> None:
    (line,) = await broker.reload(with_values({name: 0.0}))
    assert line.startswith(f"{name}: ")
    assert line.endswith("0.0 takes a restart")


async def test_a_limit_without_descriptors_changes_nothing(broker: Broker) -> None:
    """A broker that was started with it would not have begun to serve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = soft - OWN_DESCRIPTORS + 1
    before = in_force(broker)
    with pytest.raises(SettingsError, match=f"limits.max_connections = {many} needs"):
        await broker.reload(with_values({"limits.max_connections": many, "log.level": "error"}))
    assert in_force(broker) == before


@pytest.fixture
async def peers() -> AsyncIterator[list[Peer]]:
    """Connections to close at the end."""
    opened: list[Peer] = []
    yield opened
    for peer in opened:
        peer.abort()


async def test_who_is_connected_counts_against_a_new_limit(broker: Broker, peers: list[Peer]) -> None:
    port = broker.ports[0]
    peers += [await Peer.join(port, f"c{number}") for number in range(2)]
    await broker.reload(with_values({"limits.max_connections_per_address": 2}))
    peers.append(await Peer.open("127.0.0.1", port))
    await peers[2].send(wire.connect("c2"))
    assert (await peers[2].recv()).code == 0x97
    peers.pop().abort()
    # One goes, and there is room again.
    await peers[0].disconnect()
    await until(lambda: len(broker.connections) == 1)
    peers.append(await Peer.join(port, "c3"))


async def test_a_client_that_is_connected_keeps_its_queue(broker: Broker, peers: list[Peer]) -> None:
    """It may subscribe as the bounds are now; its queue has its own until it connects again."""
    port = broker.ports[0]
    peers.append(await Peer.join(port, "c", "a"))
    await broker.reload(with_values({"limits.max_subscriptions_per_client": 1, "queue.live_messages": 5}))
    assert await peers[0].subscribe("b") == (0x97,)
    before = broker.router.sessions["c"].send_buffer
    assert before is not None
    assert before.max_messages == Settings().queue.live_messages
    peers.append(await Peer.join(port, "c"))
    after = broker.router.sessions["c"].send_buffer
    assert after is not None
    assert after.max_messages == 5


async def test_a_client_that_is_connected_publishes_as_fast_as_a_reload_allows(
    broker: Broker, peers: list[Peer]
) -> None:
    """It is held from then on, also for minutes; and the reload that takes the limit away lets it go on."""
    peer = await Peer.join(broker.ports[0], "c")
    peers.append(peer)
    await broker.reload(with_values({"limits.max_publish_rate": 0.001, "limits.publish_patience": 0.0}))
    for packet_id in range(1, 4):
        peer.writer.write(wire.publish("t", b"x", qos=1, packet_id=packet_id))
    (connection,) = broker.connections
    await until(lambda: connection.protocol.held_until > 0.0)
    assert [(await peer.recv()).kind for _ in range(2)] == [wire.PUBACK] * 2
    await broker.reload(Settings.model_validate(BASE))
    assert (await peer.recv()).kind == wire.PUBACK


async def test_the_next_sys_topics_come_after_the_new_interval(peers: list[Peer]) -> None:
    async with Broker(with_values({"sys.interval": 3_600.0})) as broker:
        peers.append(await Peer.join(broker.ports[0], "c", "$SYS/broker/uptime"))
        await peers[0].message()
        await broker.reload(with_values({"sys.interval": 0.2}))
        # Retained before, it comes now because it changed.
        assert not (await peers[0].message()).retain
        peers.pop().abort()


class TestListeners:
    """Listeners that come and go with a reload."""

    @staticmethod
    def settings(*tables: dict[str, Any], **sections: Any) -> Settings:
        return Settings.model_validate({**BASE, "listen": ["mqtt://127.0.0.1:0"], "listener": tables, **sections})

    async def test_one_comes_and_one_goes_and_clients_stay(self, peers: list[Peer]) -> None:
        one, other = {"name": "one", "url": "mqtt://127.0.0.1:0"}, {"name": "other", "url": "mqtt://127.0.0.1:0"}
        async with Broker(self.settings(one)) as broker:
            stays, goes = broker.ports
            peers.append(await Peer.join(goes, "old", "a"))
            new = self.settings(other)
            assert await broker.reload(new) == []
            assert broker.settings == new
            assert broker.ports[0] == stays
            with pytest.raises(ConnectionRefusedError):
                await Peer.open("127.0.0.1", goes)
            peers.append(await Peer.join(broker.ports[1], "new"))
            await peers[1].publish("a", b"x")
            assert (await peers[0].message()).payload == b"x"
            # Without `listen`, whose default does not count beside tables.
            assert await broker.reload(Settings.model_validate({**BASE_WITHOUT, "listener": [other]})) == []
            assert len(broker.ports) == 1
            assert "listen" not in broker.settings.model_fields_set
            while peers:
                peers.pop().abort()

    async def test_a_port_in_use_changes_nothing(self, broker: Broker) -> None:
        before, ports = in_force(broker), broker.ports
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port, busy = free.getsockname()[1], taken.getsockname()[1]
            free.close()
            new = self.settings(
                {"url": f"mqtt://127.0.0.1:{port}"}, {"url": f"mqtt://127.0.0.1:{busy}"}, log={"level": "error"}
            )
            with pytest.raises(SettingsError, match=f"cannot listen on mqtt://127.0.0.1:{busy}: the port is in use"):
                await broker.reload(new)
        assert (in_force(broker), broker.ports) == (before, ports)
        # The one that was bound already is free again.
        with socket.create_server(("127.0.0.1", port)):
            pass

    async def test_what_fails_later_leaves_no_listener_behind(self, broker: Broker, tmp_path: Path) -> None:
        path = tmp_path / "mqtt.sock"
        users = {"type": "password-file", "path": str(tmp_path / "none")}
        with pytest.raises(SettingsError, match="none: cannot be read"):
            await broker.reload(self.settings({"url": f"mqtt+unix://{path}"}, authenticator=[users]))
        assert not path.exists()
        assert len(broker.ports) == 2

    @pytest.mark.parametrize("step", ["prepare", "apply"])
    async def test_a_broker_that_stops_meanwhile_leaves_none_open(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
    ) -> None:
        path = tmp_path / "mqtt.sock"
        securing = broker.securing
        assert securing is not None
        original = getattr(securing, step)

        async def stopped_meanwhile(given: Any) -> Any:
            stopping.append(asyncio.create_task(broker.stop()))
            await until(lambda: not broker.listening)
            return await original(given)

        stopping: list[asyncio.Task[None]] = []
        monkeypatch.setattr(securing, step, stopped_meanwhile)
        await broker.reload(self.settings({"url": f"mqtt+unix://{path}"}))
        await stopping[0]
        assert broker.listening == []
        assert not path.exists()

    async def test_a_unix_socket_comes_and_goes(self, broker: Broker, tmp_path: Path) -> None:
        path = tmp_path / "mqtt.sock"
        assert await broker.reload(self.settings({"url": f"mqtt+unix://{path}"})) == []
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.close()
        assert await broker.reload(self.settings()) == []
        assert not path.exists()

    async def test_nobody_comes_in_before_it_is_known_who_may(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        securing = broker.securing
        assert securing is not None
        apply = securing.apply
        refused: list[int] = []

        async def watched(prepared: Any) -> int:
            with pytest.raises(ConnectionRefusedError):
                await Peer.open("127.0.0.1", broker.ports[1])
            refused.append(broker.ports[1])
            return await apply(prepared)

        monkeypatch.setattr(securing, "apply", watched)
        strict = {"name": "strict", "url": "mqtt://127.0.0.1:0", "allow_anonymous": False}
        await broker.reload(self.settings(strict))
        assert refused == broker.ports[1:]
        peer = await Peer.open("127.0.0.1", broker.ports[1])
        await peer.send(wire.connect("c"))
        assert (await peer.recv()).code == 0x87
        peer.abort()

    async def test_one_in_the_place_of_another_takes_a_restart(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        async with Broker(self.settings({"name": "a", "url": url})) as broker:
            assert await broker.reload(self.settings({"name": "b", "url": url, "max_connections": 5})) == [
                'listener "a" stays open; to close it takes a restart',
                'listener "b": to open it takes a restart',
            ]
            assert [listener.name for listener in broker.listeners.open] == ["mqtt://127.0.0.1:0", "a"]
            assert [table.label for table in broker.settings.listener] == ["a"]

    @pytest.fixture
    def tls(self, tmp_path: Path) -> dict[str, str]:
        """A certificate and its key."""
        certificate, key = Authority(tmp_path).issue("localhost")
        return {"certificate": certificate, "key": key}

    async def test_nor_can_one_take_the_port_that_the_system_chose_for_another(self, broker: Broker) -> None:
        before, (port, _) = list(broker.listening), broker.ports
        lines = await broker.reload(with_values({"listen": [f"mqtt://127.0.0.1:{port}", "ws://127.0.0.1:0"]}))
        assert [line.partition(":")[0] for line in lines] == ["listen"]
        assert broker.listening == before

    async def test_one_with_a_certificate(self, broker: Broker, tls: dict[str, str]) -> None:
        assert await broker.reload(self.settings({"name": "tls", "url": "mqtts://127.0.0.1:0", "tls": tls})) == []
        assert broker.listeners.open[1].certificates is not None
        with pytest.raises(SettingsError, match=r'"other".*: /none: cannot be read'):
            await broker.reload(
                self.settings({"name": "other", "url": "mqtts://127.0.0.1:0", "tls": {**tls, "key": "/none"}})
            )
        assert [listener.name for listener in broker.listeners.open] == ["mqtt://127.0.0.1:0", "tls"]


class TestWhoMayComeIn:
    """`mqtt.allow_anonymous` is put in force with whoever asks, and where nobody does."""

    async def code(self, broker: Broker, peers: list[Peer], **who: Any) -> int:
        """The answer to another client."""
        peers.append(await Peer.open("127.0.0.1", broker.ports[0]))
        await peers[-1].send(wire.connect(f"c{len(peers)}", **who))
        found = (await peers[-1].recv()).code
        assert found is not None
        return found

    async def test_where_nobody_asks(self, broker: Broker, peers: list[Peer]) -> None:
        assert await self.code(broker, peers) == 0
        await broker.reload(with_values({"mqtt.allow_anonymous": False}))
        assert await self.code(broker, peers) == 0x87
        await broker.reload(with_values({}))
        assert await self.code(broker, peers) == 0

    async def test_with_an_authenticator_who_has_no_name_has_to_go(
        self, broker: Broker, peers: list[Peer], users: dict[str, str]
    ) -> None:
        anybody = {"type": "anonymous"}
        await broker.reload(with_values({"authenticator": [users, anybody]}))
        assert await self.code(broker, peers) == 0
        assert await self.code(broker, peers, user="ann", password=b"secret") == 0
        await broker.reload(with_values({"authenticator": [users, anybody], "mqtt.allow_anonymous": False}))
        assert (await peers[0].wait_for(wire.DISCONNECT)).code == 0x87
        assert await self.code(broker, peers) == 0x87
        assert await self.code(broker, peers, user="ann", password=b"secret") == 0
        assert "c2" in broker.router.sessions

    @pytest.fixture
    def users(self, tmp_path: Path) -> dict[str, str]:
        """An authenticator that knows ann."""
        file = tmp_path / "passwd"
        set_password(file, "ann", "secret", "sha512", create=True)
        return {"type": "password-file", "path": str(file)}

    async def test_where_clients_are_sent_while_it_is_drained_stays(self, broker: Broker) -> None:
        broker.router.limits.server_reference = "b.example:1883"
        await broker.reload(with_values({"limits.max_topic_levels": 7}))
        assert broker.router.limits.max_topic_levels == 7
        assert broker.router.limits.server_reference == "b.example:1883"
