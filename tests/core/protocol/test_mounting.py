"""Clients of a listener with a mount: all that they name lies below it, and nothing that they are sent shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import PUBACK, V5, V31, V311, Will
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.hooks import FORBIDDEN, AccessControl
from canopy_mqtt.core.ledger import NOT_AUTHORIZED, TOO_LARGE
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol.identity import MAX_MOUNT_BYTES
from canopy_mqtt.store.memory import MemoryStore
from tests.core import naive
from tests.core.harness import Client, Network, limits, total_ledger
from tests.support.losses import dropped_by_cause
from tests.support.restored import restore
from tests.support.runs import for_each

HOUR = 3600
TENANT = "tenant/{user}/"
VERSIONS = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


def names(client: Client) -> list[str]:
    """The topics of the messages since the last call."""
    return [packet.topic.decode() for packet in client.take()]


def asking(topic: str) -> bytes:
    """The properties of a request."""
    return encode_forward(0, "text", topic, b"correlation", [("a", "1")])


class TestNames:
    @QOS
    def test_a_response_topic(self, qos: int) -> None:
        """Whoever answers it, inside or outside, answers to where the requester listens; all else is unaltered."""
        network = Network()
        outside = network.client("o")
        outside.subscribe("#", qos=2)
        inside = network.mounted("i", V5, TENANT, user_name="a")
        inside.subscribe("#", qos=2)
        inside.publish("ask", b"?", qos, properties=asking("back/to/me"))
        (seen,) = outside.take()
        assert seen.properties == asking("tenant/a/back/to/me")
        (own,) = inside.take()
        assert own.properties == asking("back/to/me")

    @QOS
    @for_each("retain", [False, True])
    @for_each("topic", [
        "elsewhere", "tenant/b/back", "secret/internal/topic", "tenant/a", "tenant/a/", "tenant/a/$x", "$SYS/x",
    ])  # fmt: skip
    def test_a_foreign_response_topic_is_not_shown(self, qos: int, retain: bool, topic: str) -> None:
        """It lies outside: the client would see others' topics, and answer where the requester hears nothing.

        All else of the request comes, in its order.
        """
        network = Network()
        outside = network.client("o")
        inside = network.mounted("i", V5, TENANT, user_name="a")
        user = [("a", "b"), ("a", "b")]
        request = encode_forward(content_type="t", response_topic=topic, correlation_data=b"1", user=user)
        shown = encode_forward(content_type="t", correlation_data=b"1", user=user)
        if not retain:
            inside.subscribe("#", qos=2)
        outside.publish("tenant/a/ask", b"?", qos, properties=request, retain=retain)
        if retain:
            inside.subscribe("#", qos=2)
        (seen,) = inside.take()
        assert (seen.topic, seen.payload, seen.properties) == (b"ask", b"?", shown)

    @VERSIONS
    @QOS
    def test_topics_that_have_no_name_inside_are_not_sent(self, version: int, qos: int) -> None:
        """The parent of the mount, which its "#" matches, and the empty name: live, retained, and what waited."""
        network = Network(limits(queue_qos0=True))
        outside = network.client("o", version)
        expiry = HOUR if version == V5 else None
        inside = network.mounted("i", version, TENANT, user_name="a", clean=False, expiry=expiry)
        inside.subscribe("#", "$share/g/#", qos=2)
        outsiders = ["tenant/a", "tenant/a/", "tenant/a/$x", "tenant/b/x", "tenant"]

        def publish() -> None:
            for topic in outsiders:
                outside.publish(topic, b"x", qos, retain=True)
            outside.publish("tenant/a/x", b"x", qos, retain=True)

        publish()
        assert names(inside) == ["x", "x"]
        inside.cut()
        publish()
        inside.connect(user_name="a", clean=False, expiry=expiry)
        assert names(inside) == ["x", "x"]
        inside.subscribe("#", qos=2)
        assert names(inside) == ["x"]
        assert dropped_by_cause(inside.session)[NOT_AUTHORIZED] > 0
        assert dropped_by_cause(inside.session)[TOO_LARGE] == 0
        assert not inside.session.inflight
        assert total_ledger([inside.session]) == []

    def test_the_clients_maximum_packet_size_is_about_what_it_gets(self) -> None:
        """Without the mount [MQTT-3.1.2-24]: to the byte."""
        network = Network()
        outside = network.client("o")
        inside = network.mounted("i", V5, "a-long-prefix/{user}/", user_name="a", max_packet=30)
        inside.subscribe("t", qos=1)
        for size in (30 - 2 - 3 - 2 - 1, 30 - 2 - 3 - 2):
            outside.publish("a-long-prefix/a/t", bytes(size), 1)
        assert [len(each) for each in inside.payloads()] == [22]


class TestOutside:
    """What lies outside a mount is not to be reached from inside: topics that begin with "$" are everybody's."""

    @for_each(("version", "code"), [(V31, 5), (V311, 5), (V5, 0x87)])
    def test_a_will(self, version: int, code: int) -> None:
        network = Network()
        idle = network.idle("i", version, TENANT)
        assert idle.connect(user_name="a", will=Will("$x", b"")).reason_code == code
        assert "i" not in network.router.sessions

    def test_names_that_are_too_long(self) -> None:
        """For the protocol, or for the settings: with what stands before them."""
        network = Network(limits(max_topic_levels=4, max_packet_size=1 << 20))
        inside = network.mounted("i", V5, TENANT, user_name="a")
        longest = 65_535 - len("tenant/a/")
        for topic, code in (("x" * longest, 0x10), ("x" * (longest + 1), 0x87), ("a/b", 0x10), ("a/b/c", 0x90)):
            inside.publish(topic, b"", 1)
            assert inside.acks(PUBACK)[-1].reason_code == code
        assert inside.subscribe("x" * longest, "x" * (longest + 1), "a/b", "a/b/c") == [0, 0x87, 0, 0x8F]
        assert network.idle("w", V5, TENANT).connect(user_name="a", will=Will("a/b/c", b"")).reason_code == 0x90


class TestWhoMayConnect:
    """A name that would change which levels the mount has is refused at CONNECT, before anything is looked into."""

    @for_each("name", ["", "+", "#", "a/b", "a#", "../x/"])
    @for_each(("version", "code"), [(V31, 5), (V311, 5), (V5, 0x87)])
    def test_user_names(self, version: int, code: int, name: str) -> None:
        network = Network()
        assert network.idle("i", version, TENANT).connect(user_name=name).reason_code == code
        assert network.router.sessions == {}

    @for_each("name", ["+", "#", "a/b", "/"])
    @for_each(("version", "code"), [(V31, 2), (V311, 2), (V5, 0x85)])
    def test_client_identifiers(self, version: int, code: int, name: str) -> None:
        network = Network()
        assert network.idle(name, version, "dev/{client}/").connect().reason_code == code
        assert network.router.sessions == {}

    def test_no_user_name(self) -> None:
        network = Network()
        assert network.idle("i", V5, TENANT).connect().reason_code == 0x87
        assert network.mounted("i", V5, "all/").connack.reason_code == 0

    def test_nobody_gets_into_the_brokers_own_topics(self) -> None:
        network = Network()
        assert network.idle("i", V5, "{user}/").connect(user_name="$SYS").reason_code == 0x87
        assert network.mounted("j", V5, "x-{user}/", user_name="$SYS").subscribe("a") == [0]

    def test_a_name_is_put_in_as_it_is(self) -> None:
        """Placeholders and braces in it mean nothing."""
        network = Network()
        network.mounted("{user}", V5, "{user}/{client}/", user_name="{client}").subscribe("t")
        assert list(network.session("{user}").subscriptions) == ["{client}/{user}/t"]

    def test_a_bound_on_the_mount(self) -> None:
        network = Network(limits(max_packet_size=1 << 20, max_client_id_length=65_535))
        most = MAX_MOUNT_BYTES - len("tenant//")
        assert network.mounted("i", V5, TENANT, user_name="é" * (most // 2)).connack.reason_code == 0
        assert network.idle("i", V5, TENANT).connect(user_name="é" * (most // 2 + 1)).reason_code == 0x87

    def test_a_client_without_an_identifier(self) -> None:
        """It is mounted under the one that it is given."""
        network = Network()
        client = network.mounted("", V5, "dev/{client}/")
        given = client.connack.properties.strings[0x12]
        client.subscribe("t")
        assert list(network.session(given).subscriptions) == [f"dev/{given}/t"]


class TestSessions:
    @for_each("other", ["", "other/{user}/"])
    @for_each("connected", [False, True])
    def test_under_another_it_begins_anew(self, other: str, connected: bool) -> None:
        """Nothing of the old one has a name there; the client hears so, its will is published, nobody is kept out."""
        network = Network()
        outside = network.client("o")
        client = network.mounted("c", V5, TENANT, user_name="a", clean=False, expiry=HOUR, will=Will("gone", b""))
        client.subscribe("t", qos=1)
        if not connected:
            client.cut()
            outside.publish("tenant/a/t", b"queued", 1)
        outside.subscribe("#")
        outside.take()
        client.mount = other
        answer = client.connect(user_name="a", clean=False, expiry=HOUR)
        assert (answer.reason_code, answer.session_present) == (0, False)
        outside.publish("tenant/a/t", b"", 1)
        outside.publish("t", b"", 1)
        assert client.take() == []
        assert names(outside) == (["tenant/a/gone"] if connected else []) + ["tenant/a/t", "t"]
        assert network.router.trie.find("tenant/a/t") is None

    def test_nobody_is_let_into_another_users_mount(self) -> None:
        """Also where anybody may take a session over."""
        network = Network(limits(any_user_takes_over=True))
        network.mounted("c", V5, TENANT, user_name="a", clean=False, expiry=HOUR).subscribe("#", qos=1)
        thief = network.idle("c", V5, TENANT)
        assert not thief.connect(user_name="b", clean=False, expiry=HOUR).session_present
        network.client("o").publish("tenant/a/t", b"secret", 1)
        assert thief.take() == []

    @pytest.mark.asyncio
    @pytest.mark.parametrize("mount", [TENANT, "", "other/{user}/"])
    async def test_after_a_restart(self, mount: str) -> None:
        """The mount is kept with the session: under the same it goes on, under another it does not."""
        store = MemoryStore()
        before = Network()
        before.router.journal = store.journal
        await store.open(lambda: before.now)
        will = Will("gone", b"", delay=HOUR)
        client = before.mounted("c", V5, TENANT, user_name="a", clean=False, expiry=HOUR, will=will)
        client.subscribe("t", "$share/g/s", qos=1)
        client.cut()
        before.client("o").publish("tenant/a/t", b"queued", 1, retain=True)
        after = Network()
        after.router.journal = store.journal
        restore(after.router, await store.load(), after.now)
        back = after.mounted("c", V5, mount, user_name="a", clean=False, expiry=HOUR)
        outside = after.client("o")
        outside.publish("tenant/a/t", b"live", 1)
        outside.publish("tenant/a/s", b"shared", 1)
        if mount == TENANT:
            assert back.connack.session_present
            assert [(packet.topic, packet.payload) for packet in back.take()] == [
                (b"t", b"queued"),
                (b"t", b"live"),
                (b"s", b"shared"),
            ]
        else:
            assert not back.connack.session_present
            assert back.take() == []


class Asked(AccessControl):
    """Allows what begins with the given prefix, and remembers what it was asked."""

    def __init__(self, allowed: str) -> None:
        super().__init__()
        self.filters_deliveries = True
        self.allowed = allowed
        self.asked: set[tuple[str, str]] = set()

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, qos, retain
        self.asked.add(("publish", topic))
        return topic.startswith(self.allowed)

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        del principal
        self.asked.add(("subscribe", topic_filter))
        return qos if topic_filter.startswith(self.allowed) else FORBIDDEN

    def may_receive(self, principal: Principal, topic: str) -> bool:
        del principal
        self.asked.add(("receive", topic))
        return topic.startswith(self.allowed)


def test_access_control_is_asked_about_the_whole_name() -> None:
    """One set of rules for all listeners: a topic has one name in them."""
    network = Network()
    rules = Asked("tenant/a/")
    network.router.access_control = rules
    inside = network.mounted("i", V5, TENANT, user_name="a", will=Will("gone", b""))
    assert inside.subscribe("t", "$share/g/s", qos=1) == [1, 1]
    inside.publish("t", b"x", 1)
    assert names(inside) == ["t"]
    assert rules.asked == {
        ("publish", "tenant/a/gone"),
        ("subscribe", "tenant/a/t"),
        ("subscribe", "tenant/a/s"),
        ("publish", "tenant/a/t"),
        ("receive", "tenant/a/t"),
    }
    other = network.mounted("j", V5, TENANT, user_name="b")
    assert other.subscribe("t") == [0x87]


CLIENTS = (("o", "", None), ("a1", TENANT, "a"), ("a2", TENANT, "a"), ("b", TENANT, "b"), ("all", "tenant/", "x"))
PREFIXES = {"o": "", "a1": "tenant/a/", "a2": "tenant/a/", "b": "tenant/b/", "all": "tenant/"}
TOPICS = st.lists(st.sampled_from(["a", "b", "", "tenant", "$x", "x"]), min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(st.sampled_from(["a", "b", "", "tenant", "$x", "+"]), max_size=3).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["subscribe", "unsubscribe"]), st.sampled_from(sorted(PREFIXES)), FILTERS.filter(bool))
    | st.tuples(st.just("publish"), st.sampled_from(sorted(PREFIXES)), TOPICS.filter(bool)),
    max_size=25,
)


@given(steps=STEPS, qos=st.integers(0, 2), version=st.sampled_from([V311, V5]))
def test_as_a_naive_model_has_it(steps: list[tuple[str, str, str]], qos: int, version: int) -> None:
    """Who gets what, and under which name, whatever mounted clients and others subscribe and publish.

    The model has one set of whole topics; a client gets what its whole filters match, where something is left of the
    name behind its prefix, and nothing that begins with "$" when it is mounted.
    """
    network = Network()
    clients = {name: network.mounted(name, version, mount, user_name=user) for name, mount, user in CLIENTS}
    filters: dict[str, set[str]] = {name: set() for name in clients}
    for action, name, text in steps:
        client, prefix = clients[name], PREFIXES[name]
        barred = text.startswith("$") and prefix != ""
        if action == "subscribe":
            assert (client.subscribe(text, qos=qos)[0] >= 0x80) == barred
            if not barred:
                filters[name].add(prefix + text)
            client.take()
        elif action == "unsubscribe":
            client.unsubscribe(text)
            filters[name].discard(prefix + text)
        else:
            client.post(text, b"x", qos)
            client.publish(text, b"x", qos)
            topic = prefix + text
            for other, receiver in clients.items():
                own = PREFIXES[other]
                inner = topic.removeprefix(own) if topic.startswith(own) else ""
                named = inner != "" and not (own and inner.startswith("$"))
                wanted = not barred and named and bool(naive.matching(filters[other], topic))
                assert names(receiver) == ([inner] * 2 if wanted else [])
    assert total_ledger(network.router.sessions.values()) == []
