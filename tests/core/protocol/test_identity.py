"""Who is who: whose session a client may take up, who may be a link, and where nobody may publish."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, V5, V31, V311, Will
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.hooks import FORBIDDEN, LATER, AccessControl, Origin, PeerCertificate, Ticket
from canopy_mqtt.core.jobs import ASK_FILTER_WORK, TURN_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence.journal import Journal, Saved, SessionRecord, WillRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol.identity import renew
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.links import LINK
from canopy_mqtt.store.memory import MemoryStore
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.support.restored import restore
from tests.support.runs import for_each
from tests.support.tries import filters_of

HOUR = 3600


class Rules(AccessControl):
    """Lets nobody subscribe to what it is told to forbid."""

    def __init__(self) -> None:
        self.forbidden: set[str] = set()
        self.most = 2
        self.asked: list[tuple[str, str | None, str]] = []

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        self.asked.append((principal.client_id, principal.user_name, topic_filter))
        return FORBIDDEN if topic_filter in self.forbidden else min(qos, self.most)


class Found(AccessControl):
    """Finds out another user name than that of the CONNECT, as from a token, a certificate or a service."""

    def __init__(self, name: str) -> None:
        self.name = name

    def admit(self, connect: p.Connect, origin: Origin, ticket: Ticket) -> int:
        del connect, origin
        ticket.principal = Principal(self.name)
        return 0


@pytest.mark.parametrize(("allowed", "name", "code"), [
    (False, "a\nb", 0x86), (False, "\x1b[2J", 0x86), (False, "a\x85", 0x86), (True, "a\nb", 0), (False, "anna", 0),
])  # fmt: skip
@pytest.mark.parametrize("said", ["anna", None])
def test_a_user_name_that_was_found_out_may_hold_no_control_character(
    allowed: bool, name: str, code: int, said: str | None
) -> None:
    """As little as one in a CONNECT."""
    network = Network(limits(control_characters=allowed))
    network.router.access_control = Found(name)
    client = network.idle("c")
    assert client.connect(user_name=said).reason_code == code
    assert (network.router.sessions.get("c") is None) is (code != 0)


class TestOwner:
    """A session belongs to the user name that made it."""

    @for_each(("version", "code"), [(V31, 2), (V311, 2), (V5, 0x85)])
    @for_each("clean", [False, True])
    @for_each(("owner", "other"), [("alice", "bob"), ("alice", None), (None, "bob"), ("", "bob")])
    def test_another_user_is_refused(
        self, version: int, code: int, clean: bool, owner: str | None, other: str | None
    ) -> None:
        """Connected or away: neither the connection nor the queue nor the subscriptions are touched."""
        network = Network()
        publisher = network.client("p")
        alice = network.client("c", V5, clean=False, expiry=HOUR, user_name=owner)
        alice.subscribe("t", qos=1)
        bob = network.idle("c", version)
        assert bob.connect(clean=clean, user_name=other).reason_code == code
        assert bob.closed
        publisher.publish("t", b"live", 1)
        assert alice.payloads() == [b"live"]
        alice.cut()
        publisher.publish("t", b"queued", 1)
        assert bob.connect(clean=clean, user_name=other).reason_code == code
        assert bob.take() == []
        assert alice.connect(clean=False, expiry=HOUR, user_name=owner).session_present
        assert alice.payloads() == [b"queued"]

    @pytest.mark.parametrize("version", [V31, V311, V5])
    @pytest.mark.parametrize(("owner", "other"), [("", None), (None, ""), ("", "")])
    def test_an_empty_user_name_is_none(self, version: int, owner: str | None, other: str | None) -> None:
        """Many clients send one for a field that was left empty; mosquitto takes it for none, too."""
        network = Network()
        network.client("c", V5, clean=False, expiry=HOUR, user_name=owner).cut()
        client = network.idle("c", version)
        answer = client.connect(clean=False, user_name=other)
        assert (answer.reason_code, network.session("c").user_name) == (0, None)
        assert answer.session_present is (version != V31)
        assert network.router.accounts.of(network.session("c").principal).name == "address local"

    def test_nobody_is_known_by_an_empty_user_name(self) -> None:
        """Nor does it hold against `mqtt.allow_anonymous`, or as what an authenticator found out."""
        network = Network(limits(allow_anonymous=0))
        assert network.idle("c").connect(user_name="").reason_code == 0x87
        network = Network()
        network.router.access_control = Found("")
        client = network.client("c", user_name="anna")
        assert network.session(client.client_id).user_name is None

    def test_an_identifier_is_free_when_its_session_has_ended(self) -> None:
        """Also one whose time is over and which nobody has cleared away yet [MQTT-4.1.0-2]."""
        network = Network()
        alice = network.client("c", clean=False, expiry=10, user_name="alice")
        alice.cut()
        network.now += 9.0
        assert network.idle("c").connect(clean=False, user_name="bob").reason_code == 0x85
        network.now += 1.0
        answer = network.idle("c").connect(clean=False, user_name="bob")
        assert (answer.reason_code, answer.session_present) == (0, False)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("connected", [False, True])
    async def test_it_is_its_owner_s_after_a_restart(self, connected: bool) -> None:
        """A store keeps the user name with the session."""
        store = MemoryStore()
        before = Network()
        before.router.journal = store.journal
        await store.open(lambda: before.now)
        alice = before.client("c", clean=False, expiry=HOUR, user_name="alice")
        alice.subscribe("t", qos=1)
        if not connected:
            alice.cut()
        after = Network()
        after.router.journal = store.journal
        restore(after.router, await store.load(), after.now)
        assert after.idle("c").connect(clean=False, expiry=HOUR, user_name="bob").reason_code == 0x85
        assert after.idle("c").connect(clean=True).reason_code == 0x85
        assert after.idle("c").connect(clean=False, expiry=HOUR, user_name="alice").session_present


class TestAskedAgain:
    """Subscriptions of a session that goes on."""

    def test_what_is_forbidden_by_now_is_taken_back(self) -> None:
        """Shared ones too; what is allowed still stays."""
        network = Network()
        rules = Rules()
        network.router.access_control = rules
        client = network.client("c", clean=False, expiry=HOUR, user_name="u")
        assert client.subscribe("a", "b", "$share/g/a", qos=1) == [1, 1, 1]
        client.cut()
        rules.forbidden.add("a")
        rules.asked.clear()
        assert client.connect(clean=False, expiry=HOUR, user_name="u").session_present
        assert sorted(rules.asked) == [("c", "u", "a"), ("c", "u", "a"), ("c", "u", "b")]
        assert list(network.session("c").subscriptions) == ["b"]
        assert sorted(filters_of(network.router.trie)) == ["b"]
        publisher = network.client("p")
        publisher.publish("a", b"1", 1)
        publisher.publish("b", b"2", 1)
        assert client.payloads() == [b"2"]

    def test_what_may_have_less_goes_on_with_less(self) -> None:
        """A lower QoS than was granted once holds from the next connection on, and in the store."""
        network = Network()
        rules = Rules()
        network.router.access_control = rules
        client = network.client("c", clean=False, expiry=HOUR, user_name="u")
        assert client.subscribe("a", qos=2) == [2]
        client.cut()
        rules.most = 1
        client.connect(clean=False, expiry=HOUR, user_name="u")
        network.client("p").publish("a", b"1", 2)
        assert [packet.qos for packet in client.got(p.Publish)] == [1]

    def test_by_the_user_who_takes_over(self) -> None:
        """Where any user may: it is that user who is asked about."""
        network = Network(limits(any_user_takes_over=True))
        rules = Rules()
        network.router.access_control = rules
        client = network.client("c", clean=False, expiry=HOUR, user_name="alice")
        client.subscribe("a")
        rules.asked.clear()
        client.connect(clean=False, expiry=HOUR, user_name="bob")
        assert rules.asked == [("c", "bob", "a")]

    def subscribed(self, network: Network, count: int) -> tuple[Client, list[str]]:
        """A client with so many subscriptions, which is away, and a message for it."""
        client = network.client("c", clean=False, expiry=HOUR, user_name="u")
        names = [f"t/{number}" for number in range(count)]
        for at in range(0, count, 500):
            client.subscribe(*names[at : at + 500], qos=1)
        client.cut()
        network.client("p").publish("t/1", b"queued", 1)
        return client, names

    def test_in_turns(self) -> None:
        """However many they are: each turn is bounded, and what waits goes when all were asked about."""
        network = Network()
        client, names = self.subscribed(network, 5_000)
        rules = Rules()
        network.router.access_control = rules
        rules.forbidden.update(names[::2])
        client.connect(clean=False, expiry=HOUR, user_name="u", settle=False)
        client.send(p.Pingreq())
        link = client.wire
        link.to_channel()
        turns = 1
        while link.protocol.unfinished:
            asked, work = len(rules.asked), network.router.budget.used
            link.go_on()
            assert len(rules.asked) - asked <= TURN_WORK // ASK_FILTER_WORK + 1
            assert network.router.budget.used - work < 2 * TURN_WORK
            turns += 1
        network.settle()
        assert turns > 2
        assert len(rules.asked) == 5_000
        assert client.connack.session_present
        assert [packet.kind for packet in client.packets] == [p.CONNACK, p.PUBLISH, p.PINGRESP]
        assert list(network.session("c").subscriptions) == names[1::2]

    @pytest.mark.parametrize("taken_over", [False, True])
    def test_an_end_in_between(self, taken_over: bool) -> None:
        """The session is there for the next connection, with what nobody has been asked about yet."""
        network = Network()
        client, _ = self.subscribed(network, 5_000)
        network.router.access_control = Rules()
        client.connect(clean=False, expiry=HOUR, user_name="u", settle=False)
        client.wire.to_channel()
        assert client.wire.protocol.unfinished
        # What was written to the first connection nobody has read.
        client.judge.enabled = False
        if not taken_over:
            client.cut()
        assert client.connect(clean=False, expiry=HOUR, user_name="u").session_present
        assert client.payloads() == [b"queued"]
        assert len(network.session("c").subscriptions) == 5_000
        assert total_ledger(network.router.sessions.values()) == []


class TestLinks:
    """Who has the powers of a link."""

    ASKS = encode_forward(response_topic="answers", correlation_data=b"1")

    def held_up(self, given: Limits, client_id: str = "site-7", user: str | None = "u") -> bool:
        """Whether a request waits for a client that says it is a link, and acknowledges nothing."""
        network = Network(given)
        silent = network.idle(client_id)
        silent.connect(user_name=user, properties=bag((LINK, "below")))
        silent.answering = False
        silent.subscribe("#", qos=1)
        publisher = network.client("p")
        publisher.publish("ask", b"?", 1, properties=self.ASKS)
        return not publisher.acks(PUBACK)

    def test_nobody_is_one_by_its_own_word(self) -> None:
        """The user property alone holds up nobody's PUBACK."""
        assert not self.held_up(Limits())

    def test_by_user_name_or_client_identifier(self) -> None:
        """Shell patterns over the whole name."""
        assert self.held_up(limits(link_users=("x", "u*")))
        assert self.held_up(limits(link_client_ids=("site-[0-9]",)))
        assert not self.held_up(limits(link_users=("U", "uu", "?u")))
        assert not self.held_up(limits(link_client_ids=("site",)))

    def test_no_user_name_matches_no_pattern(self) -> None:
        """Not even `*`."""
        assert not self.held_up(limits(link_users=("*",)), user=None)

    def test_it_is_told_who_is_here_all_the_same(self) -> None:
        """So that it knows when it is linked to itself, and which messages have been here."""
        network = Network()
        network.router.broker_id = "here"
        client = network.client("c", properties=bag((LINK, "below")))
        assert client.connack.properties.user == [(LINK, "here")]
        assert client.session.asked_link is None

    def test_answers_are_not_waited_for_where_that_is_switched_off(self) -> None:
        """`answer_timeout` 0."""
        given = limits(link_users=("u",))
        given.answer_timeout = 0.0
        assert not self.held_up(given)


PRESENCE = "canopy/presence"


def watched(*links: str) -> tuple[Network, Client]:
    """A broker that tells who is connected, and somebody who listens for everything."""
    network = Network(limits(link_client_ids=links, presence_topic=PRESENCE.encode()))
    listener = network.client("listener")
    listener.subscribe("#", "$SYS/#", qos=2)
    return network, listener


def tell(network: Network, client_id: str, payload: bytes = b"online") -> None:
    """What the broker itself says of a client."""
    network.router.publish(Message(f"{PRESENCE}/{client_id}".encode(), payload, 1, True, b"", 0.0, ""), None)
    network.settle()


class TestOwnTopics:
    """Nobody publishes where the broker itself speaks."""

    OWN = ("$SYS", "$SYS/broker/uptime", PRESENCE, f"{PRESENCE}/victim", f"{PRESENCE}/site/x", f"{PRESENCE}/")

    @for_each("topic", OWN)
    @for_each("version", [V311, V5])
    @for_each("qos", [0, 1, 2])
    @for_each(("payload", "retain"), [(b"x", False), (b"x", True), (b"", True)])
    def test_a_publish_is_refused(self, topic: str, version: int, qos: int, payload: bytes, retain: bool) -> None:
        """Also when the broker has just published there, so that the topic's route is known. The connection stays."""
        network, listener = watched()
        tell(network, "victim")
        listener.take()
        client = network.client("c", version)
        client.publish(topic, payload, qos, retain=retain)
        client.publish(topic, payload, qos, retain=retain)
        assert listener.take() == []
        kept = network.router.retained.get(f"{PRESENCE}/victim")
        assert isinstance(kept, Message)
        assert (kept.payload(), len(network.router.retained)) == (b"online", 1)
        code = 0x87 if version == V5 else 0
        assert [ack.reason_code for ack in client.acks(PUBACK if qos == 1 else PUBREC)] == [code] * (2 if qos else 0)
        client.ping()

    @for_each("topic", OWN)
    @for_each(("version", "code"), [(V311, 5), (V5, 0x87)])
    def test_nor_by_a_will(self, topic: str, version: int, code: int) -> None:
        """The CONNECT is refused; a will below `$SYS` is left out, as with mosquitto and EMQX."""
        network, listener = watched()
        client = network.idle("c", version)
        left_out = topic.startswith("$SYS")
        assert client.connect(will=Will(topic, b"x", retain=True)).reason_code == (0 if left_out else code)
        client.cut()
        assert listener.take() == []
        assert network.router.retained.get(topic) is None

    @pytest.mark.parametrize("topic", [f"{PRESENCE}s", "canopy", "canopy/other", f"a/{PRESENCE}/b", "SYS/x", "$SYSx"])
    def test_everything_else_is_free(self, topic: str) -> None:
        """Names that only begin alike."""
        network, _ = watched()
        witness = network.client("w")
        witness.subscribe(topic, qos=1)
        client = network.client("c", will=Will(topic, b"gone"))
        for _ in range(3):
            client.publish(topic, b"x")
        client.cut()
        network.settle()
        assert witness.payloads() == [b"x", b"x", b"x", b"gone"]

    def test_without_presence_its_topic_is_like_any_other(self) -> None:
        """The default."""
        network = Network()
        listener = network.client("listener")
        listener.subscribe("#")
        network.client("c").publish(f"{PRESENCE}/c", b"x")
        assert listener.payloads() == [b"x"]

    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_a_link_tells_who_is_connected_elsewhere(self, qos: int) -> None:
        """And by its will; but not of this broker's own clients."""
        network, listener = watched("link-*")
        tell(network, "victim")
        listener.take()
        link = network.client("link-7", will=Will(f"{PRESENCE}/site/7", b"gone"))
        for topic in (f"{PRESENCE}/elsewhere", f"{PRESENCE}/site/7/x"):
            link.publish(topic, b"online", qos, retain=True)
        assert len(listener.take()) == 2
        for payload in (b"", b"forged"):
            link.publish(f"{PRESENCE}/victim", payload, qos, retain=True)
        link.publish(f"{PRESENCE}/victim", b"forged", qos)
        link.publish("$SYS/broker/x", b"forged", qos)
        assert listener.take() == []
        kept = network.router.retained.get(f"{PRESENCE}/victim")
        assert isinstance(kept, Message)
        assert kept.payload() == b"online"
        link.cut()
        network.settle()
        assert listener.payloads() == [b"gone"]

    def test_a_will_that_a_store_kept(self) -> None:
        """One from a time when the topic was nobody's is not published."""
        saved = Saved()
        for name, topic in (("a", f"{PRESENCE}/victim"), ("b", "free")):
            record = SessionRecord(name, HOUR, None)
            record.will = WillRecord(Will(topic, b"gone", retain=True, delay=1), None)
            saved.sessions.append(record)
        network = Network(limits(presence_topic=PRESENCE.encode()))
        restore(network.router, saved, network.now)
        listener = network.client("listener")
        listener.subscribe("#")
        network.advance(2.0)
        assert [message.topic for message in listener.take()] == [b"free"]


class Knows(AccessControl):
    """Says who everybody is, with one object."""

    def __init__(self, principal: Principal, later: bool) -> None:
        self.principal = principal
        self.later = later
        self.asked: list[tuple[Principal, str, int, bool]] = []

    def admit(self, connect: p.Connect, origin: Origin, ticket: Ticket) -> int:
        assert connect.user_name == "claimed"
        assert origin.host == "10.0.0.1"
        ticket.principal = self.principal
        if self.later:
            ticket.answer(0)
            return LATER
        return 0

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        self.asked.append((principal, topic, qos, retain))
        return True


class TestPrincipal:
    """Who the client is, once somebody knows."""

    def knowing(self, later: bool = False) -> tuple[Network, Knows]:
        network = Network()
        knows = Knows(Principal("real", ("staff",), {"room": "7"}, certificate="CN=x"), later)
        network.router.access_control = knows
        return network, knows

    def come(self, network: Network, name: str) -> Client:
        client = network.idle(name)
        origin = client.dial().protocol.origin
        origin.host, origin.listener = "10.0.0.1", "mqtt://127.0.0.1:1883"
        client.send(p.Connect(name, V5, False, user_name="claimed", properties=bag(i={0x11: HOUR})))
        network.settle()
        assert client.connack.reason_code == 0
        return client

    def test_the_session_is_the_real_users(self) -> None:
        """Not that of whoever the CONNECT names."""
        network, _ = self.knowing()
        self.come(network, "a").cut()
        network.router.access_control = None
        assert network.idle("a").connect(clean=False, user_name="claimed").reason_code == 0x85
        assert network.idle("a").connect(clean=False, user_name="real").session_present

    async def test_a_store_keeps_it(self) -> None:
        """All of it: what an absent client may be sent depends on it."""
        store = MemoryStore()
        network, _ = self.knowing()
        network.router.journal = store.journal
        await store.open(lambda: network.now)
        self.come(network, "a").cut()
        after = Network()
        after.router.journal = store.journal
        restore(after.router, await store.load(), after.now)
        kept = after.session("a").principal
        assert (kept.user_name, kept.groups, kept.attributes) == ("real", ("staff",), {"room": "7"})
        assert (kept.client_id, kept.host, kept.listener) == ("a", "10.0.0.1", "mqtt://127.0.0.1:1883")
        assert kept.certificate == "CN=x"

    @pytest.mark.parametrize(
        ("groups", "attributes", "fault"),
        [
            ((), {"room": 7}, "its attribute 'room' is no text, but of type int"),
            ((), {"seen": ["1"]}, "its attribute 'seen' is no text, but of type list"),
            ((), {7: "room"}, "the name of an attribute is no text, but of type int"),
            ((), {"room": "\ud800"}, "its attribute 'room' holds half a surrogate pair"),
            ((b"staff",), {}, "a group of it is no text, but of type bytes"),
        ],
    )
    @pytest.mark.parametrize("later", [False, True])
    def test_one_that_no_store_can_keep_is_refused(self, groups: Any, attributes: Any, fault: str, later: bool) -> None:
        """Where it is given, and not by a store that cannot write any more. The log names the attribute."""
        network, knows = self.knowing(later)
        knows.principal = Principal("real", groups, attributes)
        client = network.idle("a")
        protocol = client.dial().protocol
        protocol.origin.host = "10.0.0.1"
        client.send(p.Connect("a", V5, False, user_name="claimed", properties=bag(i={0x11: HOUR})))
        network.settle()
        assert client.connack.reason_code == 0x83
        assert protocol.close_text == f"access control admits a client that cannot be kept: {fault}"
        assert not network.router.sessions

    def test_its_certificate_when_nobody_says_more(self) -> None:
        """The subject that the listener has verified stands on the principal."""
        network = Network()
        client = network.idle("c")
        client.dial().protocol.origin.certificate = PeerCertificate("CN=device-1")
        client.send(p.Connect("c", V5))
        network.settle()
        assert network.session("c").principal.certificate == "CN=device-1"

    def test_a_user_name_may_come_from_elsewhere(self) -> None:
        """Where anonymous clients are refused, it is who the client proved to be that counts."""
        network = Network(limits(allow_anonymous=False))
        network.router.access_control = Names({"a": "real"})
        assert network.idle("a").connect().reason_code == 0
        assert network.idle("b").connect().reason_code == 0x87
        assert list(network.router.sessions) == ["a"]


class Names(AccessControl):
    """Gives clients user names by their client identifiers."""

    def __init__(self, names: dict[str, str], groups: tuple[str, ...] = ()) -> None:
        self.names = names
        self.groups = groups

    def admit(self, connect: p.Connect, origin: Origin, ticket: Ticket) -> int:
        del origin
        if connect.client_id in self.names:
            ticket.principal = Principal(self.names[connect.client_id], self.groups)
        return 0


class Kept(Journal):
    """Remembers whose session it keeps."""

    def __init__(self) -> None:
        self.principal = Principal()

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        assert (client_id, expiry_interval, disconnected_at) == ("c", 100, 0.0)
        self.principal = principal


def test_who_a_client_is_since_it_authenticated_again_is_kept() -> None:
    """Else a broker that dies and comes back would give it, and its will, the rights that it had before."""
    network = Network()
    network.router.journal = kept = Kept()
    client = network.client("c", clean=False, expiry=100)
    renew(client.session, Principal(groups=("g",)), Origin(certificate=PeerCertificate("CN=c")), network.router)
    assert kept.principal is client.session.principal
    assert (kept.principal.groups, kept.principal.certificate) == (("g",), "CN=c")


def test_who_authenticates_again_as_somebody_that_no_store_can_keep() -> None:
    network = Network()
    client = network.client("c", clean=False, expiry=100)
    before = client.session.principal
    with pytest.raises(ProtocolError, match="its attribute 'room' holds half a surrogate pair") as found:
        renew(client.session, Principal(attributes={"room": "\udfff"}), Origin(), network.router)
    assert found.value.reason_code == 0x83
    assert client.session.principal is before
