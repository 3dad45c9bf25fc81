"""Room is fair between principals: no user and no address takes it from the others, connected or gone."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.accounts import FILTERS, RETAINED, SESSION_SIZE, SESSIONS, Account
from canopy_mqtt.core.codec.packets import NEVER, V5, V311, Connect, Will
from canopy_mqtt.core.hooks import AccessControl, Origin, Ticket
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.retained_shares import RetainedMessage, account_name
from canopy_mqtt.core.routing.session_table import lacking_session_room
from tests.core.harness import Client, Network, limits
from tests.core.recount import check_accounts
from tests.support.runs import examples

QUOTA_EXCEEDED = 0x97


class Door(AccessControl):
    """Vouches for the user names of all clients that have one."""

    epoch = 0

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        """Everybody comes in."""
        del origin
        authenticator = "" if connect.user_name is None else "users"
        ticket.principal = Principal(connect.user_name, authenticator=authenticator)
        return 0


def town(**changes: int) -> Network:
    """A broker that knows its users."""
    network = Network(limits(**changes))
    network.router.access_control = Door()
    return network


def come(network: Network, name: str, who: str, version: int = V5, will: Will | None = None) -> Client:
    """A client whose session outlives its connection. `who`: a user, or an address (with a dot)."""
    client = network.idle(name, version)
    user = None
    if "." in who or ":" in who:
        client.host = who
    else:
        user = who
    client.connect(clean=False, user_name=user, expiry=NEVER if version == V5 else None, will=will)
    return client


def account(network: Network, name: str) -> Account:
    """The account of that name."""
    return network.router.accounts.by_name[name]


def deep(client: Client, count: int, first: int = 0) -> list[int]:
    """Subscribe to filters that share nothing, one after the other, until one is refused; the codes."""
    codes: list[int] = []
    for number in range(first, first + count):
        codes += client.subscribe(f"{client.client_id}.{number}" + "/x" * 5 + "/+", qos=1)
        if codes[-1] >= 0x80:
            break
    return codes


def fill_filters(network: Network, who: str, leave: bool) -> list[Client]:
    """One principal takes all room for filters that it can have, and leaves, or stays."""
    clients: list[Client] = []
    for number in range(1_000):
        client = come(network, f"{who}-{number}", who)
        clients.append(client)
        codes = deep(client, 20)
        if leave:
            client.cut()
        if not codes or codes[-1] >= 0x80:
            break
    network.settle()
    return clients


WHO = [("alice", "bob"), ("10.0.0.1", "10.0.0.2"), ("2001:db8:1::1", "2001:db8:2::1"), ("10.0.0.1", "bob")]


@pytest.mark.crowd
@pytest.mark.parametrize(("hog", "other"), WHO)
def test_filters_of_who_has_left_make_room(hog: str, other: str) -> None:
    """One that has gone gives what another needs, the session whose client left first at first; no more than that."""
    network = town(max_filter_bytes=1_000_000)
    left = fill_filters(network, hog, True)
    router = network.router
    newcomer = come(network, "newcomer", other)
    # What is free suffices for the first; from then on the other makes room, up to half of the bound.
    assert all(code < 0x80 for code in deep(newcomer, 60))
    ended = [client.client_id not in router.sessions for client in left]
    assert any(ended)
    assert ended == sorted(ended, reverse=True), "those who left first"
    held, other_held = sorted(each.held[FILTERS] for each in router.accounts.by_name.values())
    assert held + other_held <= 1_000_000
    while all(code < 0x80 for code in deep(newcomer, 20, len(newcomer.session.subscriptions))):
        pass
    # Little more than its share: what is free beyond it goes to nobody else.
    held = router.accounts.of(newcomer.session.principal).held[FILTERS]
    assert 450_000 < held <= 530_000
    assert router.accounts.filters.gave_way == sum(client.client_id not in router.sessions for client in left)
    check_accounts(router)


@pytest.mark.parametrize(("hog", "other"), WHO)
def test_who_is_connected_loses_nothing_and_gets_no_more(hog: str, other: str) -> None:
    """Some of the bound stays free for those who hold little, whatever one principal does."""
    network = town(max_filter_bytes=1_000_000)
    stayed = fill_filters(network, hog, False)
    newcomer = come(network, "newcomer", other)
    assert all(code < 0x80 for code in deep(newcomer, 5))
    assert deep(stayed[-1], 1, 1_000) == [QUOTA_EXCEEDED]
    assert all(client.client_id in network.router.sessions for client in stayed)
    assert (
        network.router.accounts.untold[(stayed[0].session.account.owner.name, "limits.max_filter_bytes", "refused")]
        == 2
    )
    check_accounts(network.router)


def test_an_address_takes_nothing_from_a_user() -> None:
    """Addresses cost an attacker little: with many, it would make each user's share as small as it likes."""
    network = town(max_filter_bytes=1_000_000)
    left = fill_filters(network, "alice", True)
    for number in range(50):
        deep(come(network, f"a{number}", f"10.0.0.{number}"), 5)
    assert all(client.client_id in network.router.sessions for client in left)
    assert deep(come(network, "b", "bob"), 5)[-1] < 0x80
    assert left[0].client_id not in network.router.sessions


def test_who_is_below_its_share_loses_nothing() -> None:
    """What one takes is taken from the largest, not from whoever is away."""
    network = town(max_filter_bytes=1_000_000)
    small = come(network, "small", "carol")
    deep(small, 10)
    small.cut()
    fill_filters(network, "alice", True)
    newcomer = come(network, "newcomer", "bob")
    deep(newcomer, 1_000)
    back = come(network, "small", "carol")
    assert back.connack.session_present
    assert len(back.session.subscriptions) == 10


def test_users_of_one_name_share_and_a_name_alone_is_no_user() -> None:
    """What nobody vouches for is the client's own word: such clients count by their address."""
    network = Network(limits())
    client = network.idle("c")
    client.host = "10.0.0.9"
    client.connect(user_name="alice")
    assert client.session.account.owner.name == "address 10.0.0.9"
    network = town()
    clients = [come(network, f"c{number}", "alice") for number in range(3)]
    assert {id(each.session.account.owner) for each in clients} == {id(account(network, "user alice"))}
    v6 = [come(network, f"v{number}", f"2001:db8::{number}:1") for number in range(3)]
    assert {each.session.account.owner.name for each in v6} == {"address 2001:db8::/64"}


# -- sessions ----------------------------------------------------------------------------------------------------------


def fill_sessions(network: Network, who: str, leave: bool) -> list[Client]:
    """One principal has as many sessions as it gets, each with a will that waits."""
    clients: list[Client] = []
    for number in range(1_000):
        will = Will("w", b"x" * 1_000, delay=NEVER)
        client = come(network, f"{who}-{number}", who, will=will)
        if client.connack.reason_code != 0:
            break
        clients.append(client)
        if leave:
            client.cut()
    network.settle()
    return clients


@pytest.mark.crowd
@pytest.mark.parametrize("bound", [{"max_sessions": 100}, {"max_session_bytes": 300_000}])
@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize(("hog", "other"), WHO)
def test_sessions(bound: dict[str, int], leave: bool, hog: str, other: str) -> None:
    """The same of sessions, by their number and by their bytes."""
    network = town(**bound)
    first = fill_sessions(network, hog, leave)
    assert len(first) > 80
    others = [come(network, f"n{number}", other, will=Will("w", b"x", delay=NEVER)) for number in range(5)]
    assert all(client.connack.reason_code == 0 for client in others)
    hogs = [client.client_id in network.router.sessions for client in first]
    assert all(hogs) or leave
    assert hogs == sorted(hogs)
    another = come(network, "again", hog, will=Will("w", b"x" * 1_000, delay=NEVER))
    assert another.connack.reason_code == QUOTA_EXCEEDED
    more = 0
    while come(network, f"m{more}", other, will=Will("w", b"x" * 1_000, delay=NEVER)).connack.reason_code == 0:
        more += 1
    assert more > 40 or not leave
    check_accounts(network.router)


def test_a_session_that_gives_way_ends_as_any_does() -> None:
    """Its will is published, its messages count as lost, and a store forgets it [MQTT-3.1.2-8]."""
    network = town(max_sessions=20)
    listener = come(network, "listener", "carol")
    listener.subscribe("wills")
    for number in range(1_000):
        client = come(network, f"a{number}", "alice", will=Will("wills", b"%d" % number, delay=NEVER))
        if client.connack.reason_code != 0:
            break
        client.subscribe("t", qos=1)
        client.cut()
    network.settle()
    listener.publish("t", b"x", qos=1)
    for number in range(4):
        assert come(network, f"b{number}", "bob", will=Will("w", b"x")).connack.reason_code == 0
    assert [each.payload for each in listener.take()] == [b"0", b"1", b"2"]
    assert network.router.counters.dropped[5] == 3
    check_accounts(network.router)


@pytest.mark.crowd
@pytest.mark.parametrize("who", ["fleet", "10.1.1.1"])
def test_one_user_with_fifty_thousand_devices(who: str) -> None:
    """While there is room, no principal is limited: a fleet shares a user, a site an address."""
    router = Network(Limits()).router
    principal = Principal("fleet", authenticator="users") if who == "fleet" else Principal(host=who)
    for number in range(50_000):
        name = f"device-{number}"
        assert lacking_session_room(router, name, principal, None, 1.0) == ""
        send_buffer = SendBuffer(router.peers.touched, router.counters, 10, 10_000)
        router.connect(name, False, send_buffer, V5, 10, True, 1.0, principal)
    [only] = router.accounts.by_name.values()
    assert (only.held[SESSIONS], sum(map(bool, only.held))) == (50_000, 2)


# -- retained messages -------------------------------------------------------------------------------------------------


def kept(network: Network) -> list[str]:
    """The topics that have a retained message."""
    return sorted(node.topic for node in network.router.retained.matching("#"))


def fill_retained(network: Network, who: str, qos: int) -> int:
    """One principal retains as much as it can, and leaves. How many it were."""
    client = come(network, f"{who}-r", who)
    before = len(kept(network))
    count = 0
    while True:
        client.publish(f"{who}/{count:04}", b"x" * 500, qos=qos, retain=True)
        if f"{who}/{count:04}" not in kept(network)[-1:]:
            break
        count += 1
    client.cut()
    network.settle()
    return len(kept(network)) - before


@pytest.mark.crowd
@pytest.mark.parametrize("bound", [{"max_retained_bytes": 300_000}, {"max_retained_messages": 200}])
@pytest.mark.parametrize(("hog", "other"), [("alice", "bob"), ("10.0.0.1", "10.0.0.2")])
def test_retained_messages_of_qos_0_make_room(bound: dict[str, int], hog: str, other: str) -> None:
    """The oldest go first; a server may discard them at any time (section 3.3.1.3)."""
    network = town(**bound)
    count = fill_retained(network, hog, 0)
    assert count > 150
    newcomer = come(network, "newcomer", other)
    for number in range(80):
        newcomer.publish(f"new/{number}", b"x" * 500, qos=1, retain=True)
    topics = kept(network)
    assert all(f"new/{number}" in topics for number in range(80))
    gone = [f"{hog}/{number:04}" not in topics for number in range(count)]
    assert gone == sorted(gone, reverse=True)
    assert any(gone)
    check_accounts(network.router)


@pytest.mark.parametrize("bound", [{"max_retained_bytes": 300_000}, {"max_retained_messages": 200}])
def test_the_oldest_message_may_be_the_one_that_is_replaced(bound: dict[str, int]) -> None:
    """By a larger one: the next oldest makes room for it."""
    network = town(**bound)
    fill_retained(network, "alice", 0)
    newcomer = come(network, "newcomer", "bob")
    for _ in range(30):
        oldest = next(topic for topic in kept(network) if account_of(network, topic) == "user alice")
        newcomer.publish(oldest, b"y" * 3_000, retain=True)
        assert oldest in kept(network)
        assert account_of(network, oldest) == "user bob"
    check_accounts(network.router)


def account_of(network: Network, topic: str) -> str:
    """On whose account the retained message of a topic is."""
    found = network.router.retained.get(topic)
    assert isinstance(found, RetainedMessage)
    return account_name(found)


@pytest.mark.parametrize("bound", [{"max_retained_bytes": 300_000}, {"max_retained_messages": 200}])
def test_retained_messages_that_were_acknowledged_stay(bound: dict[str, int]) -> None:
    """Who sent them was promised that they are kept; others have what one principal cannot take."""
    network = town(**bound)
    count = fill_retained(network, "alice", 1)
    newcomer = come(network, "newcomer", "bob")
    newcomer.publish("new/0", b"x" * 500, retain=True)
    assert "new/0" in kept(network)
    for number in range(80):
        newcomer.publish(f"new/{number}", b"x" * 500, retain=True)
    assert sum(topic.startswith("alice/") for topic in kept(network)) == count
    again = come(network, "again", "alice")
    again.publish("alice/again", b"x", qos=1, retain=True)
    assert "alice/again" not in kept(network)
    # What is there may be renewed.
    again.publish("alice/0000", b"y" * 500, qos=1, retain=True)
    assert "alice/0000" in kept(network)
    check_accounts(network.router)


def test_a_retained_message_is_the_publishers_after_its_session() -> None:
    """Also that of a will whose session has ended meanwhile."""
    network = town()
    will = Will("will", b"x", retain=True)
    client = network.idle("c")
    client.connect(user_name="alice", will=will)
    client.publish("t", b"x", retain=True)
    client.cut()
    network.settle()
    assert "c" not in network.router.sessions
    assert account(network, "user alice").held[RETAINED] == 2
    check_accounts(network.router)
    come(network, "other", "bob").publish("t", b"y", retain=True)
    come(network, "other", "bob").publish("will", b"", retain=True)
    assert "user alice" not in network.router.accounts.by_name
    check_accounts(network.router)


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.crowd
def test_the_work_of_making_room_is_bounded() -> None:
    """One client that needs very much ends a bounded number of sessions, and no more than it needs, in one call."""
    network = town(max_session_bytes=20_000_000, max_retained_messages=1_000)
    router = network.router
    for number in range(8_000):
        who = Principal("alice", authenticator="users")
        if lacking_session_room(router, f"a{number}", who, None, network.now):
            break
        send_buffer = SendBuffer(router.peers.touched, router.counters, 10, 10_000)
        session, _ = router.connect(f"a{number}", False, send_buffer, V5, 10, True, network.now, who)
        session.expiry_interval = NEVER
        session.will = Will("w", b"x" * 500, delay=NEVER)
        send_buffer.discard(0)
        session.detach(send_buffer)
        session.send_buffer = None
        router.session_table.count(session)
    before = len(router.sessions)
    big = Will("w", b"x" * 5_000_000, delay=NEVER)
    refusals = 0
    while lacking_session_room(router, "b", Principal("bob", authenticator="users"), big, network.now):
        refusals += 1
        ended = before - len(router.sessions)
        assert 0 < ended <= refusals * 256
        assert refusals < 100
    assert refusals > 5, "another attempt goes on"
    assert before - len(router.sessions) < 3_500
    client = come(network, "r", "alice")
    for number in range(990):
        client.post(f"r/{number}", b"x", 0, True)
    network.settle()
    assert len(router.retained) > 900
    other = come(network, "o", "bob")
    given = int(router.accounts.rooms[RETAINED].gave_way)
    for number in range(70):
        other.publish(f"o/{number}", b"x", retain=True)
        assert router.accounts.rooms[RETAINED].gave_way - given <= 64
        given = int(router.accounts.rooms[RETAINED].gave_way)
    check_accounts(router)


# -- one principal alone -----------------------------------------------------------------------------------------------


def test_a_newcomer_that_is_refused_ends_no_empty_session() -> None:
    """Empty sessions make room for those who may have it; else one principal could end those of all others."""
    network = town(max_sessions=60)
    for number in range(60):
        will = None if number % 20 == 0 else Will("w", b"x", delay=NEVER)
        come(network, f"a{number}", "bob" if number % 20 == 0 else "alice", will=will).cut()
    network.settle()
    before = set(network.router.sessions)
    assert len(before) == 60
    assert network.router.session_table.empty_count == 3
    assert come(network, "more", "alice", will=Will("w", b"x")).connack.reason_code == QUOTA_EXCEEDED
    assert set(network.router.sessions) == before


@pytest.mark.parametrize("version", [V311, V5])
def test_an_absolute_bound_for_a_user(version: int) -> None:
    """Off by default; then it is the sum of all that a user holds."""
    network = town(max_user_bytes=100_000)
    client = come(network, "a0", "alice", version)
    codes = deep(client, 100)
    assert codes[-1] == (QUOTA_EXCEEDED if version == V5 else 0x80)
    client.publish("t", b"x" * 10_000, qos=1, retain=True)
    assert kept(network) == []
    big = Will("w", b"x" * 20_000)
    assert come(network, "a1", "alice", version, will=big).connack.reason_code == (
        QUOTA_EXCEEDED if version == V5 else 3
    )
    assert account(network, "user alice").bytes <= 100_000
    other = come(network, "b0", "bob", version, will=big)
    assert other.connack.reason_code == 0
    assert deep(other, 2)[-1] < 0x80
    assert {setting for _, setting, _ in network.router.accounts.untold} == {"limits.max_user_bytes"}


# -- all of it ---------------------------------------------------------------------------------------------------------

people = st.sampled_from(("alice", "bob", "10.0.0.1", "10.0.0.2"))
names = st.integers(0, 5).map(lambda number: f"c{number}")


class Town(RuleBasedStateMachine):
    """Anything that clients do leaves every account as a walk over all that is held finds it, and each bound holds."""

    @initialize(users=st.booleans(), most_empty=st.sampled_from((0, 2)))
    def begin(self, users: bool, most_empty: int) -> None:
        """Little room."""
        self.network = town(
            max_filter_bytes=12_000,
            max_retained_bytes=8_000,
            max_retained_messages=9,
            max_sessions=9,
            max_session_bytes=30_000,
            max_empty_sessions=most_empty,
            any_user_takes_over=users,
            total_bytes=20_000,
        )
        self.clients: dict[str, Client] = {}

    @rule(name=names, who=people, clean=st.booleans(), expiry=st.sampled_from((0, 5, NEVER)), will=st.booleans())
    def connect(self, name: str, who: str, clean: bool, expiry: int, will: bool) -> None:
        """A client comes, perhaps in the place of another, or of another user's."""
        client = self.network.idle(name)
        client.judge.enabled = False
        user = None if "." in who else who
        client.host = who if "." in who else ""
        last = Will("w/" + name, b"x" * 300, retain=True, delay=3) if will else None
        if client.connect(clean=clean, user_name=user, expiry=expiry, will=last).reason_code == 0:
            self.clients[name] = client
        self.network.settle()

    @rule(name=names)
    def cut(self, name: str) -> None:
        """It loses its connection."""
        if self.here(name):
            self.clients[name].cut()
            self.network.settle()

    def here(self, name: str) -> bool:
        """Whether its connection is open."""
        client = self.clients.get(name)
        return client is not None and not client.closed and not client.wire.cut

    @rule(name=names, at=st.integers(0, 9), levels=st.integers(0, 12), group=st.booleans())
    def subscribe(self, name: str, at: int, levels: int, group: bool) -> None:
        """It subscribes."""
        if self.here(name):
            self.clients[name].subscribe(("$share/g/" if group else "") + f"t/{at}" + "/+" * levels, qos=1)

    @rule(name=names, at=st.integers(0, 9))
    def unsubscribe(self, name: str, at: int) -> None:
        """It does so no more."""
        if self.here(name):
            self.clients[name].unsubscribe(f"t/{at}")

    @rule(name=names, at=st.integers(0, 9), size=st.integers(0, 900), qos=st.integers(0, 2), retain=st.booleans())
    def publish(self, name: str, at: int, size: int, qos: int, retain: bool) -> None:
        """It publishes; an empty payload clears what is retained."""
        if self.here(name):
            self.clients[name].publish(f"t/{at}", b"x" * size, qos=qos, retain=retain)

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        """Sessions and wills fall due."""
        self.network.advance(seconds)

    @invariant()
    def exact(self) -> None:
        """See the class."""
        if not hasattr(self, "network"):
            return
        router = self.network.router
        check_accounts(router)
        bounds = router.limits
        assert router.table.bytes <= bounds.max_filter_bytes
        assert router.retained_store.bytes <= bounds.max_retained_bytes
        assert len(router.retained) <= bounds.max_retained_messages
        assert len(router.sessions) <= bounds.max_sessions
        assert router.session_table.bytes <= bounds.max_session_bytes
        assert sum(each.held[SESSION_SIZE] for each in router.accounts.by_name.values()) == router.session_table.bytes

    def teardown(self) -> None:
        """All that came and left leaves no trace."""
        if not hasattr(self, "network"):
            return
        router = self.network.router
        for name in list(self.clients):
            self.cut(name)
        for session in list(router.sessions.values()):
            router.end_session(session, self.network.now)
        self.network.advance(10)
        for topic in kept(self.network):
            router.retained_store.drop(topic)
        assert router.accounts.by_name == {}
        assert router.accounts.internal.held == [0] * 5


TestTown = Town.TestCase
TestTown.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
