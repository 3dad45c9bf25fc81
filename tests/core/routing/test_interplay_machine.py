"""How features act on each other, held against a model: a stateful Hypothesis machine.

Message expiry, retained messages, retain handling, overlapping and shared subscriptions, No Local, Retain As Published,
subscription identifiers, topic aliases, takeover, clean start, session expiry (also changed by DISCONNECT), wills with
a delay, and clients that do not read for a while. The model is written from the specification alone: it keeps lists
and looks at all of them. After every step each client must have exactly what the model says, with QoS, RETAIN,
identifiers and the seconds that are left of the message; a message for a share group goes to one member, which is the
broker's to choose, and is lost only where the specification allows it.

Time passes second by second, and all intervals are whole, so that nothing falls between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from canopy_mqtt.core.codec.packets import V5, V311, Publish, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.routing.share_queues import ShareQueue
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.core.naive import matches
from tests.support.runs import examples

NAMES = ("one", "two", "old")
VERSIONS = {"one": V5, "two": V5, "old": V311}
TOPICS = ("t/a", "t/b", "w/one")
FILTERS = ("t/a", "t/+", "#")
SHARED = {"$share/g/t/+": 7, "$share/g/#": 9}
"""Shared subscriptions, and the identifiers by which 5.0 clients tell for which of them a message came."""
NEVER = float("inf")

names = st.sampled_from(NAMES)
numbers = st.integers(0, 5)
qualities = st.sampled_from((0, 1, 2))
expiries = st.sampled_from((-1, -1, 0, 1, 3, 6))
# Topic, QoS, RETAIN, expiry, topic alias, and whether its payload is empty where it is retained.
messages = st.tuples(
    st.sampled_from(TOPICS),
    qualities,
    st.booleans(),
    expiries,
    st.sampled_from((0, 0, 1, 2)),
    st.integers(0, 7).map(lambda drawn: drawn == 7),
)
# Topic filter, QoS, No Local, Retain As Published, Retain Handling, identifier.
subscriptions = st.tuples(
    st.sampled_from(FILTERS),
    qualities,
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 1, 2)),
    st.sampled_from((0, 1, 300)),
)


@dataclass(frozen=True)
class Sent:
    """An application message."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    publisher: str
    expires_at: float

    def expired(self, now: float) -> bool:
        """Whether its interval has passed [MQTT-3.3.2-5]."""
        return self.expires_at <= now


@dataclass(frozen=True)
class Copy:
    """What one client is to get of a message."""

    sent: Sent
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


@dataclass
class Shared:
    """A message that one member of a share group is to get."""

    sent: Sent
    group: str
    # What each member that may get it would see.
    forms: dict[str, set[Copy]]
    # Whether it may be lost by now.
    loose: bool
    taken: bool = False


@dataclass
class Options:
    """What a subscription was asked for with."""

    qos: int
    no_local: bool
    keeps_retain: bool
    identifier: int


@dataclass
class State:
    """What a server keeps for a client identifier."""

    expiry: float
    requested: int
    subscriptions: dict[str, Options] = field(default_factory=dict)
    connected: bool = True
    reading: bool = True
    # Messages of QoS 1 and 2, and those of QoS 0 while the client is connected, that it has not read.
    waiting: list[Copy] = field(default_factory=list)
    will: Sent | None = None
    will_expiry: int = -1
    will_delay: int = 0
    will_due: float = NEVER
    ends_at: float = NEVER


class Interplay(RuleBasedStateMachine):
    """See the top of this file.

    [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-8] [MQTT-3.1.2-23] [MQTT-3.1.3-9] [MQTT-3.1.4-3] [MQTT-3.2.2-3]
    [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.3.1-12] [MQTT-3.3.1-13]
    [MQTT-3.3.2-5] [MQTT-3.3.2-6] [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.8.3-3] [MQTT-3.8.4-3]
    [MQTT-3.10.4-2] [MQTT-3.14.4-3] [MQTT-4.1.0-1] [MQTT-4.1.0-2] [MQTT-4.8.2-3] [MQTT3-3.1.2-12]
    """

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self.clients: dict[str, Client] = {}
        self.states: dict[str, State] = {}
        self.retained: dict[str, Sent] = {}
        self.shared: list[Shared] = []
        self.expected: dict[str, list[Copy]] = {name: [] for name in NAMES}
        self.number = 0

    @initialize(
        aliases=st.sampled_from((0, 1, 3)), pace=st.sampled_from((0, 1)), trie=st.sampled_from(("nodes", "compact"))
    )
    def begin(self, aliases: int, pace: int, trie: str) -> None:
        """A broker, and clients that come with a session each."""
        self.network = Network(limits(topic_alias_outbound=aliases, tell_loss=0), pace=pace, trie=trie)
        for name in NAMES:
            self.clients[name] = self.network.idle(name, VERSIONS[name])
            self.connect(name, False, 5, True, 1, True, 4, 6, aliases)

    # -- what clients do -----------------------------------------------------------------------------------------------

    @rule(
        name=names,
        clean=st.booleans(),
        expiry=st.sampled_from((0, 2, 5, 50)),
        will=st.booleans(),
        qos=qualities,
        retain=st.booleans(),
        delay=st.sampled_from((0, 1, 4, 9)),
        message_expiry=expiries,
        aliases=st.sampled_from((0, 1, 5)),
    )
    def connect(
        self,
        name: str,
        clean: bool,
        expiry: int,
        will: bool,
        qos: int,
        retain: bool,
        delay: int,
        message_expiry: int,
        aliases: int,
    ) -> None:
        """A client connects: for the first time, again, or in place of itself."""
        v5 = VERSIONS[name] == V5
        if not v5:
            delay, message_expiry, aliases = 0, -1, 0
            expiry = 0 if clean else 604_800
        payload = self._payload()
        asked = Will(f"w/{name}", payload, qos, retain, delay, message_expiry) if will else None
        self._left(name)
        present = name in self.states and not clean
        if name in self.states:
            if clean:
                self._end(name)
            else:
                self.states[name].will = None
        if not present:
            self.states[name] = State(expiry, expiry)
        state = self.states[name]
        state.expiry, state.requested = float(expiry), expiry
        state.connected = state.reading = True
        state.will_due = state.ends_at = NEVER
        if asked is not None:
            state.will = Sent(f"w/{name}", payload, qos, retain, name, NEVER)
            state.will_delay, state.will_expiry = delay, message_expiry
        properties = bag(i={0x22: aliases}) if aliases else bag()
        answer = self.clients[name].connect(clean, asked, properties=properties, expiry=expiry if v5 else None)
        assert answer.reason_code == 0
        assert answer.session_present == present
        self._read(name)

    @rule(name=names, how=st.sampled_from(("lost", "bye", "bye", "will")), expiry=st.sampled_from((-1, -1, 0, 3, 30)))
    def leave(self, name: str, how: str, expiry: int) -> None:
        """A connection ends, by a loss or by DISCONNECT, which may set another session expiry."""
        state = self.states.get(name)
        if state is None or not state.connected:
            return
        client = self.clients[name]
        if how == "lost":
            client.cut()
        else:
            given = bag()
            if VERSIONS[name] == V5 and expiry >= 0 and (expiry == 0 or state.requested > 0):
                given = bag(i={0x11: expiry})
                state.expiry = float(expiry)
            with_will = how == "will" and VERSIONS[name] == V5
            client.disconnect(4 if with_will else 0, given)
            if not with_will:
                state.will = None
        self._left(name)
        self.network.settle()

    @precondition(lambda self: bool(self._active()))
    @rule(messages=st.lists(st.tuples(numbers, messages), min_size=1, max_size=6))
    def publish(self, messages: list[tuple[int, tuple[str, int, bool, int, int, bool]]]) -> None:
        """Clients that are connected publish."""
        for number, message in messages:
            self._publish(self._pick(number), *message)

    def _publish(self, name: str, topic: str, qos: int, retain: bool, expiry: int, alias: int, empty: bool) -> None:
        if VERSIONS[name] != V5:
            expiry, alias = -1, 0
        payload = b"" if empty and retain else self._payload()
        self._route(Sent(topic, payload, qos, retain, name, self._until(expiry)))
        self.clients[name].publish(topic, payload, qos, retain, expiry=expiry, alias=alias)

    @precondition(lambda self: bool(self._active()))
    @rule(asked=st.lists(st.tuples(numbers, subscriptions), min_size=1, max_size=4))
    def subscribe(self, asked: list[tuple[int, tuple[str, int, bool, bool, int, int]]]) -> None:
        """Clients subscribe, or change a subscription, and get the retained messages that they ask for."""
        for number, options in asked:
            self._subscribe(self._pick(number), *options)

    def _subscribe(
        self,
        name: str,
        topic_filter: str,
        qos: int,
        no_local: bool,
        keeps_retain: bool,
        handling: int,
        identifier: int,
    ) -> None:
        if VERSIONS[name] != V5:
            no_local = keeps_retain = False
            handling = identifier = 0
        state = self.states[name]
        new = topic_filter not in state.subscriptions
        state.subscriptions[topic_filter] = Options(qos, no_local, keeps_retain, identifier)
        if handling == 0 or (handling == 1 and new):
            for sent in self.retained.values():
                if matches(topic_filter, sent.topic) and not (no_local and sent.publisher == name):
                    copy = Copy(sent, min(sent.qos, qos), True, (identifier,) if identifier else ())
                    self.expected[name].append(copy)
        request = Request(topic_filter, qos, no_local, keeps_retain, handling)
        assert self.clients[name].subscribe(request, identifier=identifier) == [qos]

    @precondition(lambda self: bool(self._active()))
    @rule(
        number=numbers,
        topic_filter=st.sampled_from(sorted(SHARED)),
        qos=st.sampled_from((1, 2)),
        keeps_retain=st.booleans(),
    )
    def share(self, number: int, topic_filter: str, qos: int, keeps_retain: bool) -> None:
        """A client joins a share group; retained messages do not come with it."""
        name = self._pick(number)
        identifier = SHARED[topic_filter]
        if VERSIONS[name] != V5:
            # It cannot tell, and so is a member of one group alone.
            topic_filter, keeps_retain, identifier = min(SHARED), False, 0
        options = Options(qos, False, keeps_retain, identifier)
        self.states[name].subscriptions[topic_filter] = options
        # What the group has and nobody took may come to the new member, when another one leaves it behind.
        for each in self.shared:
            if each.group == topic_filter:
                each.forms.setdefault(name, set()).add(self._shared_form(each.sent, options))
        request = Request(topic_filter, qos, False, keeps_retain, 0)
        assert self.clients[name].subscribe(request, identifier=identifier) == [qos]

    @precondition(lambda self: bool(self._active()))
    @rule(number=numbers, topic_filter=st.sampled_from((*FILTERS, *SHARED)))
    def unsubscribe(self, number: int, topic_filter: str) -> None:
        """A client takes a subscription back. What was queued because of it stays."""
        name = self._pick(number)
        found = self.states[name].subscriptions.pop(topic_filter, None)
        if found is not None:
            self._loosen()
        codes = self.clients[name].unsubscribe(topic_filter)
        assert codes == ([] if VERSIONS[name] != V5 else [0 if found is not None else 0x11])

    @precondition(lambda self: bool(self._active()))
    @rule(number=numbers)
    def stop_reading(self, number: int) -> None:
        """A client reads no more."""
        name = self._pick(number)
        self.states[name].reading = False
        self.clients[name].wire.frozen = True

    @precondition(lambda self: any(state.connected and not state.reading for state in self.states.values()))
    @rule(name=names)
    def read_again(self, name: str) -> None:
        """It reads what has come meanwhile and is still worth something."""
        state = self.states.get(name)
        if state is not None and state.connected and not state.reading:
            state.reading = True
            link = self.clients[name].wire
            link.frozen = False
            link.flush()
            self._read(name)
            self.network.settle()

    @precondition(lambda self: bool(self.states))
    @rule(seconds=st.integers(1, 7))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        for _ in range(seconds):
            now = self.network.now + 1
            self.network.now = now
            self.retained = {topic: sent for topic, sent in self.retained.items() if not sent.expired(now)}
            for name in list(self.states):
                state = self.states[name]
                if state.will_due <= now:
                    self._publish_will(state)
            for name in list(self.states):
                if self.states[name].ends_at <= now:
                    self._end(name)
            self.network.router.tick(now)
            self.network.settle()
            # Now, since the seconds that are left are those of the moment in which it came.
            self.everybody_has_what_is_theirs()

    # -- the model -----------------------------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def _until(self, expiry: int) -> float:
        return self.network.now + expiry if expiry >= 0 else NEVER

    def _active(self) -> list[str]:
        """The clients that are connected and read."""
        return [name for name, state in self.states.items() if state.connected and state.reading]

    def _pick(self, number: int) -> str:
        active = self._active()
        return active[number % len(active)]

    def _left(self, name: str) -> None:
        """A connection is over: the will, now or later, and the session's end, now or later."""
        state = self.states.get(name)
        if state is None or not state.connected:
            return
        now = self.network.now
        state.connected = False
        state.waiting = [copy for copy in state.waiting if copy.qos > 0]
        if state.will is not None:
            delay = min(state.will_delay, state.expiry)
            if delay == 0:
                self._publish_will(state)
            else:
                state.will_due = now + delay
        if state.expiry == 0:
            self._end(name)
        else:
            state.ends_at = now + state.expiry

    def _publish_will(self, state: State) -> None:
        will = state.will
        assert will is not None
        state.will = None
        state.will_due = NEVER
        # Its expiry begins when it is published, not when it was set (section 3.1.3.2.4).
        self._route(
            Sent(will.topic, will.payload, will.qos, will.retain, will.publisher, self._until(state.will_expiry))
        )

    def _end(self, name: str) -> None:
        """A session ends; a will that waited for it is published."""
        state = self.states[name]
        if state.will is not None:
            self._publish_will(state)
        del self.states[name]
        self._loosen()

    def _loosen(self) -> None:
        """What waits in a share group that has no member any more may be lost."""
        for each in self.shared:
            if not any(each.group in state.subscriptions for state in self.states.values()):
                each.loose = True

    def _route(self, sent: Sent) -> None:
        for name, state in self.states.items():
            found = [
                options
                for topic_filter, options in state.subscriptions.items()
                if not topic_filter.startswith("$share/")
                and matches(topic_filter, sent.topic)
                and not (options.no_local and sent.publisher == name)
            ]
            if not found:
                continue
            copy = Copy(
                sent,
                min(sent.qos, max(options.qos for options in found)),
                sent.retain and any(options.keeps_retain for options in found),
                tuple(sorted(options.identifier for options in found if options.identifier)),
            )
            if copy.qos > 0 or state.connected:
                state.waiting.append(copy)
                self._read(name)
        for group in SHARED:
            if matches(group.split("/", 2)[2], sent.topic):
                self._route_shared(sent, group)
        if sent.retain:
            self.retained.pop(sent.topic, None)
            if sent.payload and not sent.expired(self.network.now):
                self.retained[sent.topic] = sent

    def _route_shared(self, sent: Sent, group: str) -> None:
        members = {name: state for name, state in self.states.items() if group in state.subscriptions}
        if not members:
            return
        forms = {name: {self._shared_form(sent, state.subscriptions[group])} for name, state in members.items()}
        here = [state for state in members.values() if state.connected]
        # One of QoS 0 gets lost where nobody is there, or where its receiver leaves without having read it.
        loose = sent.qos == 0 and not (here and all(state.reading for state in here))
        self.shared.append(Shared(sent, group, forms, loose))

    def _shared_form(self, sent: Sent, options: Options) -> Copy:
        identifiers = (options.identifier,) if options.identifier else ()
        return Copy(sent, min(sent.qos, options.qos), sent.retain and options.keeps_retain, identifiers)

    def _read(self, name: str) -> None:
        """A client that reads gets what waits, but for what has expired."""
        state = self.states[name]
        if state.connected and state.reading:
            self.expected[name].extend(copy for copy in state.waiting if not copy.sent.expired(self.network.now))
            state.waiting = []

    # -- what came -----------------------------------------------------------------------------------------------------

    @invariant()
    def everybody_has_what_is_theirs(self) -> None:
        """Each client has what the model says, and of share groups one member has it."""
        for name, client in self.clients.items():
            expected = self.expected[name]
            self.expected[name] = []
            for packet in client.take():
                for copy in expected:
                    if self._is(name, packet, copy):
                        expected.remove(copy)
                        break
                else:
                    self._take_shared(name, packet)
            assert expected == [], f"{name} lacks {expected}"
        now = self.network.now
        for each in self.shared:
            if each.sent.expired(now):
                each.loose = True
            states = [state for state in self.states.values() if each.group in state.subscriptions]
            if states and all(state.connected and state.reading for state in states):
                assert each.taken or each.loose or self._held_elsewhere(each), f"nobody got {each}"

    def _held_elsewhere(self, each: Shared) -> bool:
        """A client that has left the group may still hold what it was given as a member."""
        return any(
            name in each.forms and not (state.connected and state.reading) for name, state in self.states.items()
        )

    def _is(self, name: str, packet: Publish, copy: Copy) -> bool:
        sent = copy.sent
        # 3.1.1 is told nothing of it.
        left = int(sent.expires_at - self.network.now) if sent.expires_at != NEVER and VERSIONS[name] == V5 else -1
        return (
            packet.topic.decode() == sent.topic
            and packet.payload == sent.payload
            and packet.qos == copy.qos
            and packet.retain == copy.retain
            and tuple(sorted(packet.subscription_ids)) == copy.identifiers
            and not packet.dup
            and packet.properties == b""
            and packet.message_expiry == left
        )

    def _take_shared(self, name: str, packet: Publish) -> None:
        # Two without a payload may look alike: then it is the one that somebody has to have.
        for each in sorted(self.shared, key=_may_be_lost):
            if not each.taken and any(self._is(name, packet, form) for form in each.forms.get(name, ())):
                each.taken = True
                return
        raise AssertionError(f"{name} has got {packet!r}, which is not for it")

    @invariant()
    def the_books_agree(self) -> None:
        """Nobody else has a session but the queues of groups that have something, and the ledgers add up."""
        if self.clients:
            router = self.network.router
            queues = {name for name, each in router.sessions.items() if isinstance(each, ShareQueue)}
            assert set(router.sessions) - queues == set(self.states)
            assert all(router.sessions[name].waiting_messages() for name in queues)
            assert total_ledger(router.sessions.values()) == []

    def teardown(self) -> None:
        """Everybody who is still known comes back and reads: nothing that may not be lost has got lost."""
        for name in NAMES:
            if name in self.states and self.clients:
                self.read_again(name)
                if not self.states[name].connected:
                    self.connect(name, False, 50, False, 0, False, 0, -1, 0)
                self.everybody_has_what_is_theirs()


def _may_be_lost(shared: Shared) -> bool:
    return shared.loose


TestInterplay = Interplay.TestCase
TestInterplay.settings = settings(
    max_examples=examples(30), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
