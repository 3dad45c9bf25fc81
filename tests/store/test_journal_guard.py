"""A journal that raises: what it was not told is not acknowledged, and it is told later, in order."""

# A journal has the arguments that it has.
# ruff: noqa: ARG002

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Suback, Unsuback, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store import MemoryStore
from canopy_mqtt.store.journal_guard import LATE_CALL, GuardedJournal
from tests.core.harness import Client, Network, bag, limits
from tests.core.persistence.test_waiting_for_commits import EXPIRY, House
from tests.store.grouped import CALLS, GroupStore
from tests.store.observed import at_once, restored, see_kept
from tests.store.places import rebooted
from tests.support.runs import for_each


class Faulty(Journal):
    """Hands each call on to another journal, or raises."""

    def __init__(self, journal: Journal, failed: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.journal = journal
        self.commits = journal.commits
        self.pages = journal.pages
        self.failing: set[str] = set()
        self.raised = 0
        self._failed = failed

    def call(self, name: str, *what: Any) -> Any:
        if name in self.failing:
            self.raised += 1
            self._failed()
            raise RuntimeError(name)
        return getattr(self.journal, name)(*what)

    def place(self) -> int:
        return self.journal.place()

    def placed(self, number: int) -> None:
        self.journal.placed(number)


def _calling(name: str) -> Callable[..., Any]:
    return lambda self, *what: self.call(name, *what)


for _name in (*CALLS, "restored"):
    setattr(Faulty, _name, _calling(_name))


class Reporter:
    def __init__(self) -> None:
        self.failures = 0
        self.recoveries = 0

    def failed(self, error: Exception) -> None:
        self.failures += 1

    def mended(self) -> None:
        self.recoveries += 1


class FaultyHouse(House):
    """A network whose journal can fail."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.promised: Counter[str] = Counter()
        """Acknowledgements that left the broker, by kind."""
        self.told_before = 0
        self.journal = Faulty(self.store.journal, self._failed)
        self.reporter = Reporter()
        self.network.router.journal = GuardedJournal(self.journal, self.reporter.failed, self.reporter.mended)

    def idle(self, client_id: str) -> Client:
        """A client, of which acknowledgements are counted."""
        client = self.network.idle(client_id)
        hear = client._on_packet

        def on_packet(packet: p.Packet) -> None:
            if isinstance(packet, Ack):
                self.promised[KINDS[packet.kind]] += 1
            elif isinstance(packet, Suback | Unsuback):
                self.promised[type(packet).__name__] += 1
            hear(packet)

        client._on_packet = on_packet  # type: ignore[method-assign]
        return client

    def _failed(self) -> None:
        if self.journal.raised == 1:
            self.told_before = self.store.gate.journal_position

    def step(self) -> None:
        """What is on its way arrives, and what was told is committed."""
        self.network.settle()
        self.commit()

    def mend(self) -> None:
        """The journal works again."""
        self.journal.failing = set()
        self.network.router.sweep(self.network.now)
        for _ in range(8):
            self.commit()

    def kept(self) -> Any:
        """What a broker has that starts when this one is killed."""
        after = GroupStore(lambda: self.network.now, self.store)
        at_once(after.open(lambda: self.network.now))
        return see_kept(restored(at_once(after.load()), limits(), self.network.now, after), self.network.now)


def story(house: FaultyHouse) -> None:
    """Something of everything that a store keeps, with a commit after each step."""
    pub, sub = house.idle("pub"), house.idle("sub")
    for client in (pub, sub):
        client.connect(clean=False, expiry=100, will=Will("w", b"gone", 1) if client is sub else None)
        house.step()
    pub.post("t/r", b"r", 1, retain=True)
    house.step()
    sub.send(p.Subscribe(sub.take_id(), [Request("t/#", 2)]))
    house.step()
    for qos in (1, 2):
        pub.post("t/live", b"live", qos)
        for _ in range(3):
            house.step()
    sub.cut()
    house.step()
    for qos in (1, 2, 2):
        pub.post("t/away", b"away", qos)
        house.step()
    sub.connect(clean=False, expiry=100)
    for _ in range(4):
        house.step()
    pub.post("t/r", b"", 1, retain=True)
    sub.send(p.Unsubscribe(sub.take_id(), ["t/#"]))
    house.step()
    sub.disconnect(0, bag(i={0x11: 0}))
    house.step()


HEARD = (
    "session_kept", "session_gone", "subscribed", "streamed", "unsubscribed", "queued", "in_flight", "released",
    "finished", "received", "completed", "will_set", "will_cleared", "retained_set", "retained_cleared",
)  # fmt: skip


PROMISED = {
    "subscribed": "Suback", "unsubscribed": "Unsuback", "received": "PUBREC", "completed": "PUBCOMP",
    "released": "PUBREL", "retained_set": "PUBACK",
}  # fmt: skip
"""What the first such call lets out, and nothing before it does."""

KINDS = {PUBACK: "PUBACK", PUBREC: "PUBREC", PUBREL: "PUBREL", PUBCOMP: "PUBCOMP"}


@for_each("name", HEARD)
def test_nothing_is_acknowledged_until_the_journal_has_been_told_everything(name: str) -> None:
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8]: an acknowledgement says that the broker has it."""
    house = FaultyHouse()
    house.journal.failing = {name}
    story(house)
    guard, reporter = house.network.router.journal, house.reporter
    assert house.journal.raised == reporter.failures == 1
    assert house.promised[PROMISED.get(name, "")] == 0
    assert house.store.gate.committed <= house.told_before
    promised = house.promised.total()
    house.network.router.sweep(house.network.now)
    house.step()
    assert reporter.failures == 2
    assert reporter.recoveries == 0
    assert house.promised.total() == promised
    house.mend()
    assert reporter.recoveries == 1
    assert not house.store.gate.incomplete
    assert house.store.gate.waiting == 0
    assert house.kept() == see_kept(house.network.router, house.network.now)
    # From now on it is as ever.
    assert guard is not None
    client = house.idle("later")
    client.connect(clean=False, expiry=100)
    client.send(p.Subscribe(client.take_id(), [Request("later", 1)]))
    house.commit()
    client.publish("later", b"x", 1)
    house.commit()
    assert client.payloads() == [b"x"]
    assert client.acks(PUBACK)


@for_each("qos", [1, 2])
@for_each("name", ["queued", "received"])
def test_a_publisher_that_comes_back_is_acknowledged_when_the_store_has_its_message(qos: int, name: str) -> None:
    house = FaultyHouse()
    house.away()
    pub = house.lasting("pub")
    house.journal.failing = {name}
    pub.publish("t/1", b"x", qos)
    house.commit()
    if name == "queued" or qos == 2:
        assert pub.got(Ack) == []
        pub.cut()
        pub.connect(clean=False, expiry=EXPIRY)
        house.commit()
        assert pub.got(Ack) == []
        house.mend()
    assert pub.acks(PUBACK if qos == 1 else PUBREC)
    payloads = [one[-1][1] for one in house.kept()["sessions"]["sub"]["waiting"]]
    assert payloads == ([b"x"] if qos == 2 or name == "received" else [b"x", b"x"])


def test_a_store_that_refuses_says_so() -> None:
    house = FaultyHouse(store_refuses=True)
    house.away()
    pub = house.client("pub")
    house.journal.failing = {"queued"}
    pub.publish("t/1", b"x", 1)
    pub.publish("t/1", b"y", 1)
    house.commit()
    assert pub.got(Ack) == []
    assert house.store.gate.refuses(True)
    house.mend()
    assert [each.reason_code for each in pub.acks(PUBACK)] == [0, 0x97]


def test_a_journal_without_commits_holds_acknowledgements_as_well() -> None:
    """It says nothing of a disk: until it has been told, nothing is acknowledged."""
    network = Network(limits())
    store = MemoryStore(rebooted(lambda: network.now))
    at_once(store.open(lambda: network.now))
    journal = Faulty(store.journal)
    network.router.journal = GuardedJournal(journal, Reporter().failed)
    sub = network.idle("sub")
    sub.connect(clean=False, expiry=EXPIRY)
    sub.subscribe("t", qos=1)
    sub.cut()
    pub = network.client("pub")
    journal.failing = {"queued"}
    pub.publish("t", b"x", 1)
    assert pub.got(Ack) == []
    journal.failing = set()
    network.router.sweep(network.now)
    network.settle()
    assert len(pub.acks(PUBACK)) == 1


def test_what_is_postponed_is_bounded() -> None:
    """Beyond a size publishes are refused; beyond twice that it waits for a restart, and keeps nothing."""
    house = FaultyHouse()
    guard = house.network.router.journal
    assert isinstance(guard, GuardedJournal)
    guard.max_late_bytes = 20 * LATE_CALL
    house.journal.failing = {"session_kept"}
    for number in range(30):
        guard.session_kept(f"c{number}", Principal(), 1, 0.0)
    assert house.store.gate.full
    assert len(guard._late) == 30
    for number in range(100):
        guard.session_gone(f"c{number}")
    assert len(guard._late) == 0
    house.mend()
    assert house.store.gate.refuses(False)
    assert house.store.gate.pending()
    assert house.reporter.recoveries == 0
