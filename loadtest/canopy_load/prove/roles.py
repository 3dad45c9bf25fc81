"""The clients of a plan: of which kinds they are, what each subscribes to and publishes.

Owns: `ClientPlan`, one client identifier, with `Asked`, `Output` and `WillPlan`, and ``cast``.

Promises: the same random numbers make the same clients. Of most kinds one half speaks 3.1.1, the other 5.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, NamedTuple

from canopy_mqtt.core.codec.packets import V5, V311

WILL_DELAY: Final = 1
"""Seconds of the wills that have a delay."""
KEEP_ALIVE: Final = 1
"""Seconds of the clients that send nothing more after a while."""
KEEP_ALIVE_MARGIN: Final = 5.0
"""Seconds beyond one and a half times the Keep Alive within which a broker must have ended a connection on which
nothing comes: brokers look now and then only."""
CROWD_FILTERS: Final = ("c/#", "c/+")
"""The filters of the crowd. They overlap."""


class Asked(NamedTuple):
    """A topic filter with the QoS and the options that are asked for."""

    topic_filter: str
    qos: int
    no_local: bool = False
    as_published: bool = False
    handling: int = 0
    """Retain Handling."""


@dataclass(frozen=True)
class WillPlan:
    topic: str
    qos: int
    delay: int = 0
    """Seconds."""


@dataclass(frozen=True)
class Output:
    """What a client publishes to one topic."""

    topic: str
    qos: int
    retain: bool = False
    cleared: bool = False
    """True: in the quiet phase an empty payload removes the retained message."""


@dataclass(frozen=True)
class ClientPlan:
    """One client identifier. `kind` says for people what is special about it."""

    name: str
    kind: str
    version: int = V5
    clean: bool = False
    """True: Clean Start, and the session ends with its connection."""
    filters: tuple[Asked, ...] = ()
    outputs: tuple[Output, ...] = ()
    will: WillPlan | None = None
    from_start: bool = True
    """True if it connects before anything is published."""
    keep_alive: int = 0
    """Seconds; 0: none."""
    node: int = 0
    """The number of the node to which it connects first."""
    roams: bool = False
    """True if it connects to the next node each time; else it stays with its node, also while that is down."""
    stays: bool = False
    """True if it does not go to another node when it roams or takes over, either."""

    def at_most(self, qos: int) -> ClientPlan:
        """Return it with no higher QoS in what it asks for and publishes."""
        return replace(
            self,
            filters=tuple(each._replace(qos=min(each.qos, qos)) for each in self.filters),
            outputs=tuple(replace(each, qos=min(each.qos, qos)) for each in self.outputs),
            will=None if self.will is None else replace(self.will, qos=min(self.will.qos, qos)),
        )


@dataclass
class Cast:
    """The clients of a plan by what they are for."""

    clients: dict[str, ClientPlan] = field(default_factory=dict)

    def add(self, client: ClientPlan) -> None:
        self.clients[client.name] = client

    def of(self, *kinds: str) -> list[ClientPlan]:
        return [each for each in self.clients.values() if each.kind in kinds]


def cast(random: Random, rounds: int, crowd: int = 0) -> Cast:
    """Return the clients of a plan of so many rounds. `crowd`: the number of durable sessions that overlapping filters
    feed besides."""
    made = Cast()
    topics = [f"t/{number}" for number in range(4)]
    everything = (Asked("t/#", 2),)

    def outputs(qualities: Iterable[int]) -> tuple[Output, ...]:
        return tuple(Output(random.choice(topics), qos) for qos in qualities)

    for number, (version, clean) in enumerate(((V5, False), (V311, False), (V5, True), (V311, True))):
        made.add(ClientPlan(f"publisher-{number}", "publisher", version, clean, (), outputs((1, 2, 1, 2, 0))))
    both = (V5, V311)
    for number, version in enumerate(both):
        retained = tuple(Output(f"r/{number}/{each}", 1 + each % 2, retain=True, cleared=each > 2) for each in range(5))
        made.add(ClientPlan(f"retainer-{number}", "retainer", version, False, (), retained))
        made.add(ClientPlan(f"connected-{number}", "connected", version, False, everything))
        overlapping = (Asked("t/+", 2), Asked(topics[number], 1))
        made.add(ClientPlan(f"cut-{number}", "cut", version, False, overlapping))
        made.add(ClientPlan(f"away-{number}", "away", version, False, (Asked("t/#", 1 + number),)))
        made.add(ClientPlan(f"clean-{number}", "clean", version, True, everything))
        made.add(ClientPlan(f"brief-{number}", "brief", version, True, everything))
        made.add(ClientPlan(f"frozen-{number}", "frozen", version, False, everything))
        made.add(ClientPlan(f"roaming-{number}", "roaming", version, False, everything))
        made.add(ClientPlan(f"once-{number}", "QoS 0", version, False, (Asked("t/#", 0),)))
        silent = WillPlan(f"w/hushed-{number}", 1 + number)
        made.add(ClientPlan(f"hushed-{number}", "keep alive", version, True, keep_alive=KEEP_ALIVE, will=silent))
        made.add(ClientPlan(f"taken-over-{number}", "taken over", version, False, everything, outputs((1, 2))))
    exact = tuple(Asked(topic, 2) for topic in topics)
    made.add(ClientPlan("exact-0", "connected", V5, False, exact))
    made.add(ClientPlan("exact-1", "away", V311, False, exact))
    made.add(ClientPlan("all-0", "#", V5, False, (Asked("#", 2),)))
    own = (Asked("t/#", 2, no_local=True),)
    made.add(ClientPlan("own-0", "No Local", V5, False, own, outputs((1, 2))))
    changing = (Asked("r/#", 2, as_published=True, handling=2),)
    made.add(ClientPlan("changing-0", "unsubscribes", V5, False, changing))
    made.add(ClientPlan("changing-1", "unsubscribes", V311, False, everything))
    for number in range(rounds):
        made.add(ClientPlan(f"late-{number}", "late", random.choice(both), False, everything, from_start=False))
    for number in range(3):
        # QoS 1 and 2 in one group: what a member gets is bounded by what it was granted.
        for group, ends in (("durable", False), ("clean", True)):
            shared = (Asked(f"$share/{group}/t/#", 1 + number % 2 if ends else 2),)
            made.add(ClientPlan(f"{group}-member-{number}", "member", V5, ends, shared))
    # Whenever it moves, no member is there.
    made.add(ClientPlan("lone-member-0", "member", V5, False, (Asked("$share/lone/t/#", 2),)))
    for number in range(2):
        made.add(ClientPlan(f"pair-member-{number}", "pair", V5, False, (Asked("$share/pair/t/#", 2),)))
    for number in range(6):
        delay = WILL_DELAY if number > 3 else 0
        will = WillPlan(f"w/{number}", 1 + number % 2, delay)
        made.add(ClientPlan(f"mortal-{number}", "mortal", V5 if delay else both[number % 2], not delay, will=will))
    made.add(ClientPlan("mortal-6", "mortal", V311, False, will=WillPlan("w/6", 1)))
    made.add(ClientPlan("heir-0", "heir", V5, False, (Asked("w/#", 2),)))
    every = tuple(Asked(each.topic, 2) for one in made.of("retainer") for each in one.outputs)
    for number, filters in enumerate(((Asked("r/#", 2),), every)):
        for each, version in enumerate(both):
            name = f"looker-{2 * number + each}"
            made.add(ClientPlan(name, "looker", version, True, filters, from_start=False))
    wide = tuple(Asked(each, qos) for qos, each in enumerate(CROWD_FILTERS, 1))
    for number in range(crowd):
        made.add(ClientPlan(f"crowd-{number}", "crowd", both[number % 2], False, wide))
    if crowd:
        made.add(ClientPlan("herald-0", "herald", V5, False, (), (Output("c/0", 1), Output("c/1", 2))))
    return made
