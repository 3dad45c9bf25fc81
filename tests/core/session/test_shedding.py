"""The bound over all queues: who gives, how much, how often somebody looks, and what happens when nobody can give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import V5, V311
from canopy_mqtt.core.jobs import ROUND_WORK, SHED_LOOK_WORK, SHED_WORK
from canopy_mqtt.core.ledger import ACCEPTED
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, LATEST
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.session.shedding import AHEAD, PART, PIECE, RETRY, ROUND_SECONDS, GlobalLimiter
from tests.core.harness import Client, Network, limits
from tests.core.recount import burst, check, losses, numbers
from tests.support.runs import examples

HOUR = 3_600

SMALL = Message(b"t", b"", 1, False, b"", 0.0, "p")


class Sessions(dict[str, Session]):
    """A map of sessions that counts how often somebody looks at all of them."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        """All of them."""
        self.looks += 1
        return super().__iter__()


def counted(network: Network) -> Sessions:
    """Have the looks of a network's shedder counted. Before the first session."""
    sessions = Sessions()
    network.router.sessions = network.router.session_table.sessions = sessions
    totals = network.router.counters.totals
    totals.reliever = GlobalLimiter(sessions, totals)
    return sessions


def receivers(network: Network, fills: list[int], away: bool = False) -> list[Client]:
    """Clients that do not read, or are away, with so many messages waiting for each."""
    publisher = network.client("filler")
    made = []
    for number, fill in enumerate(fills):
        client = network.client(f"c{number}", V5 if number % 2 else V311, clean=False, **_expiry(number))
        client.subscribe(f"own/{number}", qos=1)
        client.subscribe("all", qos=1)
        if away:
            client.cut()
        else:
            client.wire.frozen = True
        # One read each: what came in one piece to an empty queue is on its way, and gives nothing.
        for payload in numbers(fill):
            publisher.publish(f"own/{number}", payload, 1 if away else 0)
        made.append(client)
    return made


def _expiry(number: int) -> dict[str, int]:
    return {"expiry": HOUR} if number % 2 else {}


def waiting(network: Network, client: Client) -> int:
    return network.session(client.client_id).queued()


def is_level(before: list[int], after: list[int]) -> bool:
    """Whether nobody gave anything while a fuller one had more than is left to those who gave."""
    gave = [left for had, left in zip(before, after, strict=True) if left < had]
    return not gave or max(after) <= min(gave) + 1


@given(
    fills=st.lists(st.one_of(st.just(0), st.integers(2, 30)), min_size=1, max_size=6),
    away=st.booleans(),
    arriving=st.integers(1, 5),
)
@settings(max_examples=examples(60), deadline=None)
def test_the_fullest_give_first_down_to_a_common_level(fills: list[int], away: bool, arriving: int) -> None:
    """The fullest give first, down to a common level."""
    network = Network()
    clients = receivers(network, fills, away)
    totals = network.router.counters.totals
    totals.max_messages = totals.messages or 1
    publisher = network.client("p")
    newcomer = network.client("new")
    newcomer.subscribe("new")
    newcomer.wire.frozen = True
    # The first is let through in any case.
    publisher.publish("new", b"")
    before = [waiting(network, client) for client in clients]
    assert before == fills
    beyond = totals.messages + arriving - totals.max_messages
    for payload in numbers(arriving):
        publisher.publish("new", payload)
    after = [waiting(network, client) for client in clients]
    assert is_level(before, after)
    assert totals.messages <= totals.max_messages + 1
    assert waiting(network, newcomer) + sum(losses(newcomer.session).values()) == arriving + 1
    check(network, network.router.sessions.values())
    lost = sum(sum(losses(network.session(client.client_id)).values()) for client in clients)
    assert sum(before) - sum(after) == lost
    # Who gave, gave for what came, and a little ahead: at most one look for each message, and one message of each
    # for the sake of a level.
    assert lost <= max(0, beyond) * (2 + totals.max_messages // PART + len(fills))
    for client in clients:
        assert set(losses(network.session(client.client_id))) <= {"global"}


def test_no_more_than_half_is_in_flight() -> None:
    """To clients that read and do not acknowledge: the rest waits where it can be shed."""
    network = Network(limits(total_messages=40))
    publisher = network.client("p")
    clients = [network.client(f"c{number}", receive_maximum=100) for number in range(3)]
    for client in clients:
        client.subscribe("t", qos=1)
        client.answering = False
    for payload in numbers(30):
        publisher.publish("t", payload, 1)
    totals = network.router.counters.totals
    assert totals.inflight <= 20 + len(clients)
    assert totals.messages <= 40 + len(clients)
    check(network, network.router.sessions.values())
    for client in clients:
        client.answering = True
        client.answer()
    for client in clients:
        got = client.payloads()
        assert got == sorted(got)
        assert got[-1:] == numbers(30)[-1:]
        assert len(got) + losses(client.session)["global"] == 30
    assert totals.messages == 0


class TestCost:
    """Looks at all sessions, counted."""

    def world(self, bound: int) -> tuple[Network, Sessions, Client]:
        network = Network(limits(total_messages=bound))
        sessions = counted(network)
        return network, sessions, network.client("p")

    @pytest.mark.parametrize("policy", [DROP_NEWEST, LATEST])
    def test_looks_are_rare(self, policy: int) -> None:
        """One for each sixteenth of the bound that arrives, whatever the number of messages."""
        network, sessions, publisher = self.world(320)
        network.router.limits.queue_policy = policy
        clients = []
        for number in range(4):
            client = network.client(f"c{number}")
            client.subscribe(f"t/{number}/#")
            client.wire.frozen = True
            clients.append(client)
        looks = 0
        for turn in range(1_000):
            before = sessions.looks
            publisher.publish(f"t/{turn % 4}/{turn}", b"")
            looks += sessions.looks - before
        totals = network.router.counters.totals
        assert totals.messages <= 320
        shed = sum(losses(client.session)["global"] for client in clients)
        assert shed == 1_000 - totals.messages
        assert 0 < looks <= 1 + (1_000 - 320) // (320 // PART)

    def test_very_many_sessions_are_looked_at_in_pieces(self) -> None:
        """Meanwhile the fullest so far gives for what comes; then the fullest of all, which is the last one."""
        network, _, _ = self.world(0)
        totals = network.router.counters.totals
        limiter = totals.reliever
        assert isinstance(limiter, GlobalLimiter)
        message = Message(b"t", b"", 1, False, b"", 0.0, "p")
        last = ROUND_WORK // SHED_LOOK_WORK + 999
        waiting = dict.fromkeys(range(last + 1), 1) | {5: 20, last: 400}
        made = []
        for number, count in waiting.items():
            session = Session(f"c{number}", 0, 0, network.router.counters)
            network.router.adopt(session)
            for _ in range(count):
                session.deliver(message, 1, False, (), None)
            made.append(session)
        totals.max_messages = totals.messages
        first = True
        while made[-1].queue.messages == 400:
            totals.round += 1
            before = limiter.work
            for _ in range(3):
                assert made[7].deliver(message, 1, False, (), None) == ACCEPTED
                assert totals.messages <= totals.max_messages
            assert limiter.work - before <= ROUND_WORK + SHED_WORK * PIECE
            if first:
                assert made[5].queue.messages == 17
                first = False
        assert {session.queue.messages for number, session in enumerate(made[:-1]) if number not in (5, 7)} == {1}

    @pytest.mark.crowd
    @pytest.mark.parametrize("by_messages", [True, False])
    def test_what_one_round_drops_is_bounded(self, by_messages: bool) -> None:
        """Among 100,000 messages, whatever comes for whom: a message of a megabyte takes the place of 4,000."""
        network, _, _ = self.world(0)
        totals = network.router.counters.totals
        limiter = totals.reliever
        assert isinstance(limiter, GlobalLimiter)
        small = Message(b"t", b"", 1, False, b"", 0.0, "p")
        made = [Session(f"c{number}", 0, 0, network.router.counters) for number in range(10)]
        for session in made:
            network.router.adopt(session)
            for _ in range(10_000):
                session.deliver(small, 1, False, (), None)
        if by_messages:
            totals.max_messages = totals.messages
        else:
            totals.max_bytes = totals.bytes
        large = Message(b"t", b"x" * 1_000_000, 1, False, b"", 0.0, "p")
        for _ in range(10):
            totals.round += 1
            before, work = totals.messages, limiter.work
            assert made[1].deliver(small, 1, False, (), None) == ACCEPTED
            assert before - totals.messages <= AHEAD + PIECE
            for number in range(100):
                made[number % 10].deliver(small if by_messages else large, 1, False, (), None)
            assert limiter.work - work <= ROUND_WORK + SHED_WORK * PIECE + 2 * len(made)
            assert totals.messages <= totals.max_messages
            assert totals.bytes <= totals.max_bytes

    def full(self, count: int) -> tuple[Network, GlobalLimiter, list[Session]]:
        """Sessions with so many messages each, which are as many as there may be."""
        network, _, _ = self.world(0)
        totals = network.router.counters.totals
        limiter = totals.reliever
        assert isinstance(limiter, GlobalLimiter)
        made = [Session(f"c{number}", 0, 0, network.router.counters) for number in range(10)]
        for session in made:
            network.router.adopt(session)
            for _ in range(count):
                session.deliver(SMALL, 1, False, (), None)
        totals.max_messages = totals.messages
        return network, limiter, made

    def test_the_work_is_charged_to_whoever_publishes(self) -> None:
        """In the units in which turns are counted: a full broker is no free work for those who fill it."""
        network, limiter, made = self.full(1_000)
        before, work = network.router.budget.used, limiter.work
        for number in range(500):
            made[number % 10].deliver(SMALL, 1, False, (), None)
        assert sum(losses(session)["global"] for session in made) >= 500
        assert network.router.budget.used - before == limiter.work - work >= 500 * SHED_WORK

    def test_one_with_little_waiting_is_not_refused_for_what_others_have(self) -> None:
        """Also when the work of the round is used up; and all who have little have a sixteenth beyond the bound."""
        network, _, made = self.full(2_000)
        totals = network.router.counters.totals
        bound = totals.max_messages
        new = [Session(f"new{number}", 0, 0, network.router.counters) for number in range(10)]
        for session in new:
            network.router.adopt(session)
        for _ in range(2 * ROUND_WORK // SHED_WORK):
            made[0].deliver(SMALL, 1, False, (), None)
        assert losses(made[0])["global"] > ROUND_WORK // SHED_WORK
        for session in new:
            for _ in range(25):
                assert session.deliver(SMALL, 1, False, (), None) == ACCEPTED
            assert losses(session) == {}
        for session in new:
            for _ in range(1_000):
                session.deliver(SMALL, 1, False, (), None)
        assert totals.messages <= bound + bound // PART

    def test_all_reads_of_a_round_share_what_it_drops(self) -> None:
        """Each read has a time of its own; a new round is counted by the shell, or comes with a later time."""
        network, limiter, made = self.full(2_000)
        totals = network.router.counters.totals
        for elapsed in (0.0, ROUND_SECONDS, 2 * ROUND_SECONDS):
            totals.now = elapsed
            work = limiter.work
            for _ in range(ROUND_WORK // SHED_WORK):
                totals.now += ROUND_SECONDS / ROUND_WORK
                made[0].deliver(SMALL, 1, False, (), None)
                made[1].deliver(SMALL, 1, False, (), None)
            assert ROUND_WORK <= limiter.work - work <= ROUND_WORK + SHED_WORK * PIECE
        totals.round += 1
        assert made[0].deliver(SMALL, 1, False, (), None) == ACCEPTED

    def test_what_a_look_has_found_is_given_all_of_it(self) -> None:
        """Also where that is less than it looked for, which puts off the next look and not the giving."""
        network = Network()
        totals = network.router.counters.totals
        made = network.router.sessions
        for number in range(3 * AHEAD):
            made[f"c{number}"] = Session(f"c{number}", 0, 0, network.router.counters)
        message = Message(b"t", b"", 1, False, b"", 0.0, "p")
        for _ in range(2 * AHEAD):
            assert made["c0"].deliver(message, 1, False, (), None) == ACCEPTED
        # As much as would have them give some for each session; it is elsewhere, and nobody's to give.
        totals.messages += 100 * AHEAD
        totals.max_messages = totals.messages
        for _ in range(2 * AHEAD):
            totals.round += 1
            assert made["c1"].deliver(message, 1, False, (), None) == ACCEPTED
        assert totals.messages <= totals.max_messages
        assert losses(made["c0"]) == {"global": 2 * AHEAD}

    def test_looks_in_vain_are_rare(self) -> None:
        """Where nothing can be shed, at most one in `RETRY` seconds, however much arrives."""
        network, sessions, publisher = self.world(4)
        clients = []
        for number in range(4):
            client = network.client(f"c{number}")
            client.subscribe("t", qos=1)
            client.answering = False
            clients.append(client)
        publisher.publish("t", b"", 1)
        before = sessions.looks
        for turn in range(3):
            for _ in range(50):
                publisher.publish("t", b"", 1)
            assert sessions.looks - before == turn + 1
            network.now += RETRY * 1.5
        for client in clients:
            assert losses(client.session) == {"global": 150}
            client.take()
            client.answering = True
            client.answer()
        publisher.publish("t", b"room again", 1)
        for client in clients:
            assert client.payloads() == [b"room again"]

    @pytest.mark.crowd
    def test_shedding_one_by_one_leaves_no_trail(self) -> None:
        """Gaps do not outnumber what waits, but for a few: neither in a live queue nor in a session's."""
        network = Network(limits(queue_policy=LATEST, queue_max_age=5))
        publisher = network.client("p")
        live, away = network.client("live"), network.client("away", clean=False, expiry=HOUR)
        live.subscribe("#")
        away.subscribe("#", qos=1)
        live.wire.frozen = True
        away.cut()
        for turn in range(1_500):
            publisher.publish(f"stays/{turn % 3}", b"", 1)
            publisher.publish(f"goes/{turn}", b"", 1)
            network.now += 1
            network.router.sweep(network.now)
        send_buffer = live.wire.send_buffer
        pending = network.session("away").queue.pending
        assert pending is not None
        assert send_buffer.messages <= 10
        assert network.session("away").queue.messages <= 10
        assert len(send_buffer.items) <= 200
        assert len(pending) <= 200
        check(network, network.router.sessions.values())


@pytest.mark.parametrize("qos", [0, 1])
def test_a_stream_of_retained_messages_goes_on(qos: int) -> None:
    """One at a time, beyond the bound; all arrive, and nobody gives for it."""
    network = Network(limits(total_messages=6))
    publisher = network.client("p")
    for number in range(12):
        publisher.publish(f"r/{number}", b"retained", qos, retain=True)
    [full] = receivers(network, [6])
    reader = network.client("reader")
    reader.subscribe("r/#", qos=qos)
    assert len(reader.take()) == 12
    assert waiting(network, full) == 6


def test_who_has_nothing_waiting_gets_the_next_message_in_any_case() -> None:
    """One large message to many who keep up is in memory once, though it is counted for each of them."""
    network = Network(limits(total_bytes=20_000))
    publisher = network.client("p")
    clients = [network.client(f"c{number}") for number in range(30)]
    for client in clients:
        client.subscribe("t", qos=1)
    for qos in (0, 1):
        publisher.publish("t", bytes(5_000), qos=qos)
    assert [len(client.inbox) for client in clients] == [2] * 30
    assert network.router.counters.dropped_in_all() == 0


class TestFair:
    """Whose account is below its fair share loses nothing that waits in its sessions."""

    @pytest.mark.parametrize("live", [False, True])
    def test_many_small_queues_of_one_do_not_empty_the_queue_of_another(self, live: bool) -> None:
        """One with many sessions, or with a connection that does not read, is not spared for the sake of its others."""
        network = Network(limits(total_bytes=200_000))
        publisher = network.client("p")
        victim = network.idle("victim")
        victim.host = "10.0.0.1"
        victim.connect(clean=False, expiry=HOUR)
        victim.subscribe("victim", qos=1)
        victim.cut()
        burst(publisher, "victim", numbers(20, 1_000), 1)
        hogs = []
        for number in range(100):
            hog = network.idle(f"hog{number}")
            hog.host = "10.0.0.2"
            hog.connect(clean=False, expiry=HOUR)
            hog.subscribe("hog", qos=0 if live else 1)
            if live:
                hog.wire.frozen = True
            else:
                hog.cut()
            hogs.append(hog)
        burst(publisher, "hog", numbers(40, 200), 0 if live else 1)
        router = network.router
        assert router.counters.totals.bytes <= 200_000
        # Its queue is the fullest of all.
        assert waiting(network, victim) == 20
        assert live or max(waiting(network, hog) for hog in hogs) < 20
        assert sum(losses(network.session(hog.client_id)).get("global", 0) for hog in hogs) > 1_000
        check(network, router.sessions.values())

    def test_above_its_share_it_gives(self) -> None:
        """An account alone gives from its fullest queue, as one of two that holds more."""
        network = Network(limits(total_bytes=100_000))
        publisher = network.client("p")
        for name, host in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            client = network.idle(name)
            client.host = host
            client.connect(clean=False, expiry=HOUR)
            client.subscribe(name, qos=1)
            client.cut()
        burst(publisher, "a", numbers(200, 1_000), 1)
        assert 50 < waiting(network, network.idle("a")) < 100
        burst(publisher, "b", numbers(200, 1_000), 1)
        one, other = waiting(network, network.idle("a")), waiting(network, network.idle("b"))
        assert abs(one - other) <= 8
        check(network, network.router.sessions.values())
