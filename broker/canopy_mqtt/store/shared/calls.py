"""What a node and a shared store say to each other, and nodes among themselves.

What a node notes for a group (`Noted`) says whose it is, if it counts only while that is so. The types have the columns
of the types of the schema, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias


class Over(Exception):
    """This incarnation of the node is over: another node declared it dead, or the node has started again."""


class Owner(NamedTuple):
    """A claim of a session."""

    session: int
    epoch: int


class DeliveryKey(NamedTuple):
    """A delivery. `source`: 0, or the share group it came through."""

    session: int
    source: int
    id: int


WILL: Final = -1
"""In place of the source of a `DeliveryKey`: the will of a session, and in place of the number of a message its epoch.
"""


class Hint(NamedTuple):
    """A session that has got something: how many messages, and the last one."""

    session: int
    messages: int
    id: int


class Noted(Protocol):
    """What a node notes for a group."""

    @property
    def owner(self) -> Owner | None:
        """Whose it is, if it counts only while the session is theirs."""

    @property
    def thing(self) -> Hashable | None:
        """What it changes, where a group has one change of that."""


class Publish(NamedTuple):
    """A message for the sessions behind `filters`, which the node fills in when it writes the message; None: it is for
    none, and only to be retained.

    `session`: None for a clean session's; QoS 2 is then not fenced. `retained`: True if it becomes the retained message
    of its topic, False if that is cleared; then of `account`, and, if `replaces` is not None, only in place of the
    message of that version. `will`: it is the will of that claim, and counts if that was not published yet, or revoked.
    """

    session: int | None
    epoch: int | None
    packet_id: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes | None
    publisher: str | None
    expiry: int | None
    filters: list[int] | None
    retained: bool | None = None
    account: str | None = None
    replaces: int | None = None
    will: Owner | None = None

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.topic) + len(self.payload) + len(self.properties or b"")

    @property
    def owner(self) -> Owner | None:
        # An old retained message that is sent again must not replace a newer one.
        if (self.qos < 2 and self.retained is None) or self.session is None or self.epoch is None:
            return None
        return Owner(self.session, self.epoch)

    @property
    def thing(self) -> Hashable | None:
        if self.will is not None:
            return WILL, self.will
        return (self.session, self.packet_id) if self.qos == 2 and self.session is not None else None


class Completion(NamedTuple):
    """PUBREL of a QoS 2 publish."""

    session: int
    epoch: int
    packet_id: int

    @property
    def owner(self) -> Owner:
        return Owner(self.session, self.epoch)

    @property
    def thing(self) -> Hashable:
        return self.session, self.packet_id


class Subscribe(NamedTuple):
    """A subscription; `qos` None: it ends."""

    session: int
    epoch: int | None
    filter: str
    qos: int | None
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0

    @property
    def owner(self) -> Owner | None:
        return None if self.epoch is None else Owner(self.session, self.epoch)

    @property
    def thing(self) -> Hashable:
        return self.session, self.filter


SENT: Final = 1
RELEASED: Final = 2
ACKNOWLEDGED: Final = 3
"""States that a `Change` has a delivery come to. One that is acknowledged is deleted."""


class Change(NamedTuple):
    """A delivery in another state. `epoch`: None if it counts whoever has the session; `slot`: where it was read."""

    session: int
    epoch: int | None
    source: int
    id: int
    slot: int
    state: int
    packet_id: int = 0

    @property
    def owner(self) -> Owner | None:
        return None if self.epoch is None else Owner(self.session, self.epoch)

    @property
    def thing(self) -> Hashable:
        return DeliveryKey(self.session, self.source, self.id)


class Release(NamedTuple):
    """A session that has no node any more: its client is away. `expiry`: its Session Expiry Interval from now on,
    seconds; None: as it was claimed."""

    session: int
    epoch: int
    expiry: int | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.session, self.epoch)

    @property
    def thing(self) -> None:
        return None


class NewWill(NamedTuple):
    """The will of a CONNECT, with the claim that was made for it. `expiry`: of its message, seconds, None: never;
    `delay`: after the end of the connection, seconds."""

    session: int
    epoch: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes | None
    expiry: int | None
    delay: int

    @property
    def owner(self) -> Owner:
        return Owner(self.session, self.epoch)

    @property
    def thing(self) -> Hashable:
        return WILL, self.owner


class EndedWill(NamedTuple):
    """The connection of a will has ended: it is due in `delay` seconds; None: it is not to be published."""

    session: int
    epoch: int
    delay: int | None

    @property
    def owner(self) -> None:
        """It counts, whoever has the session by now."""

    @property
    def will(self) -> Owner:
        return Owner(self.session, self.epoch)

    @property
    def thing(self) -> Hashable:
        return WILL, self.will


class DueWill(NamedTuple):
    """A will that is to be published. `principal`: whose it is, JSON; for the others see `NewWill`."""

    session: int
    epoch: int
    client_id: str
    principal: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes | None
    expiry: int | None

    @property
    def will(self) -> Owner:
        return Owner(self.session, self.epoch)


class End(NamedTuple):
    """A filter, which goes if no session has it."""

    filter: str
    owner: None = None
    thing: None = None


class Reap(NamedTuple):
    """Sessions of dead nodes, which are released, and wills, which become this node's: `limit` of each at most."""

    limit: int
    owner: None = None
    thing: None = None


class Empty(NamedTuple):
    """Nothing: a group is written, for its number."""

    owner: None = None
    thing: None = None


class Look(NamedTuple):
    """Nothing: a group is written, which sees whether the retained messages here are the newest. `then`: called when
    they are."""

    then: list[Callable[[], None]]
    owner: None = None
    thing: None = None


class Skipped(NamedTuple):
    """A change of an incarnation that is over: it keeps its place, and is not written."""

    owner: None = None
    thing: None = None


class Waiting(NamedTuple):
    """A delivery with its message, as it is read. `expiry`: seconds that are left, None: it does not expire."""

    slot: int
    source: int
    id: int
    qos: int
    state: int
    packet_id: int
    retain: bool
    identifiers: Sequence[int] | None
    topic: str
    payload: bytes
    properties: bytes | None
    publisher: str | None
    expiry: int | None


@dataclass
class Group:
    """The changes that a node writes at once. A session has one change of each filter, packet identifier and
    delivery."""

    publishes: list[Publish] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    subscribes: list[Subscribe] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """Filters that go if no session has them."""
    changes: list[Change] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    reap: int = 0
    """Sessions of dead nodes to release, and their wills to take over, at most."""
    new_wills: list[NewWill] = field(default_factory=list)
    ended_wills: list[EndedWill] = field(default_factory=list)

    @classmethod
    def of(cls, noted: Iterable[Noted]) -> Group:
        """Make a group of what was noted."""
        group = cls()
        for each in noted:
            match each:
                case Publish():
                    group.publishes.append(each)
                    if each.will is not None:
                        group.ended_wills.append(EndedWill(*each.will, None))
                case Completion():
                    group.completions.append(each)
                case Subscribe():
                    group.subscribes.append(each)
                case Change():
                    group.changes.append(each)
                case Release():
                    group.releases.append(each)
                case NewWill():
                    group.new_wills.append(each)
                case EndedWill():
                    group.ended_wills.append(each)
                case End():
                    group.ends.append(each.filter)
                case Reap():
                    group.reap = each.limit
        return group


class Written(NamedTuple):
    """The answer to a group. `again`: its first answer was lost, and with it `hints`."""

    again: bool
    rematch: bool
    """Nothing was written, since there are filters that the node does not know."""
    news: bool
    """Filters have changed."""
    retained: bool
    """Retained messages have changed that the node does not know."""
    lost: frozenset[Owner]
    failed: frozenset[DeliveryKey]
    """What is not to be sent; also wills (`WILL`)."""
    hints: Sequence[Hint]
    refused: str = ""
    """Nothing was written, since the database refuses what is in the group: why, for people."""


class Claimed(NamedTuple):
    """`hints`: what a session that begins anew has given back to share groups."""

    session: int
    epoch: int
    present: bool
    hints: Sequence[Hint] = ()


class Foreign(NamedTuple):
    """A session that is another user's: it was not claimed."""


class Content(NamedTuple):
    """What a claimed session has, but for what is queued. `epoch`: of its last claim; None: it has ended."""

    epoch: int | None
    subscriptions: Sequence[Subscribe]
    received: Sequence[int]
    flying: Sequence[Waiting]


class Ask(NamedTuple):
    """What is read of a session: up to `room` deliveries above `low`, which are not among `known`."""

    session: int
    low: int
    room: int


class Page(NamedTuple):
    """What waits for a session. No message up to `final` can appear any more."""

    session: int
    epoch: int | None
    final: int
    more: bool
    waiting: Sequence[Waiting]


class ChangedFilter(NamedTuple):
    """A filter that has changed. `share`: where it is that of a share group, the group's queue, a session without a
    client."""

    id: int
    name: str
    gone: bool
    share: int | None = None


class Member(NamedTuple):
    """A member of a share group: a claim of a session, and how many messages it takes."""

    session: int
    epoch: int
    room: int


class Pulled(NamedTuple):
    """What went from the queue of a share group to its members. `full`: these have no more room; `left`: something is
    left; `refused`: whose claims count no more."""

    taken: frozenset[int]
    full: bool
    left: bool
    refused: frozenset[int]


class RetainedRow(NamedTuple):
    """The retained message of a topic. `payload`: None if it was cleared or has expired; `version`: another one with
    each change of the topic; `node`: which has made it."""

    topic: str
    payload: bytes | None
    qos: int
    properties: bytes | None
    publisher: str | None
    account: str | None
    expiry: int | None
    version: int
    node: int


class Peer(NamedTuple):
    """A node as the database knows it. `seen`: its last sign of life, by the clock of the database; `orphans`: whether
    sessions or wills are still those of incarnations that are over; `wills`: whether some of its own are due."""

    id: int
    name: str
    incarnation: int
    alive: bool
    seen: datetime
    orphans: bool
    wills: bool = False


class Terms(NamedTuple):
    """What a CONNECT asks for. `expiry`: Session Expiry Interval, seconds; `principal`: whose the session is, JSON;
    `account`: for whose limits it counts."""

    clean: bool
    expiry: int
    principal: str
    account: str = ""


class Joined(NamedTuple):
    """An incarnation that has begun. `node`: the number of the node."""

    node: int
    incarnation: int
    failed: frozenset[DeliveryKey] | None = None
    """Of the group that was asked for last: see `Written.failed`. None: it is not written, and never will be."""


class Hello(NamedTuple):
    """The first piece of a link: what was told before may be missing."""


class Hints(NamedTuple):
    """The last of the deliveries that a group has brought to each session: who has it reads them all. In the queue of a
    share group, `source` is a node that takes first, 0: all at once."""

    deliveries: Sequence[DeliveryKey]


class Members(NamedTuple):
    """The share groups that have members at a node: queue and number of members of each."""

    node: int
    counts: Sequence[tuple[int, int]]


class Taken(NamedTuple):
    """A session was claimed: an earlier claim counts no more."""

    client_id: str
    epoch: int


class General(NamedTuple):
    """Hints are missing: each node reads what its sessions have."""


class Changed(NamedTuple):
    """Retained messages have changed: each node reads which."""


Piece: TypeAlias = Hello | Hints | Taken | General | Members | Changed
"""What nodes tell each other."""
