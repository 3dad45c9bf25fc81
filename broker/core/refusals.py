"""What clients were refused: a publish, a subscription, a delivery, a will, or that a message be retained.

Owns the record of each client (`Refused`, on its session's ledger) and the list of those of whom nobody has told yet.
Promises: a refusal costs some additions and is told of later; where nothing is refused, nothing of this runs. Who
decided is asked when it is told (`settle`), not for each message. At most `MOST_CLIENTS` clients are listed at a time;
while more than half of these places are taken, one account has at most `MOST_OF_ONE`. What is not listed is counted
all the same, in the client's record and in `unlisted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from broker.core.codec.topic_names import parse_shared
from broker.core.principal import Principal

if TYPE_CHECKING:
    from mypy_extensions import i64

    from broker.core.hooks import AccessControl

PUBLISH: Final = 0
SUBSCRIBE: Final = 1
RECEIVE: Final = 2
WILL: Final = 3
RETAIN: Final = 4
KINDS: Final[tuple[str, ...]] = ("publish", "subscribe", "receive", "will", "retain")
"""What is refused, as logs and the API name it."""

ASKED: Final[tuple[str, ...]] = ("publish", "subscribe", "receive", "publish", "")
"""What access control is asked about for each kind (`AccessControl.said`)."""

MOST_CLIENTS: Final = 1_000
MOST_OF_ONE: Final = 20
"""Clients of whose refusals nobody has told yet: of all principals, and of one while there are more than half as many.
Each has up to five topics: 8 MB in all."""

LONGEST_TOPIC: Final = 1_024
"""Characters of a topic that are remembered; who decided about a longer one is not asked."""

STORE: Final = "the store cannot be written"
MOUNT: Final = "the mount of the listener has no such topic"
ACCESS_CONTROL: Final = "access control"
"""Who decided, where access control does not say more."""

CHANGED: Final = "a rule that has changed since"
TOO_LONG: Final = "access control (the topic is too long to look the rule up)"


class Refusal:
    """The last refusal of one kind, and how many there were since the last line.

    `topic`: a topic name, or the filter of a subscription. `why`: the setting or the part that decided; empty: access
    control did, and has not been asked yet for the rule. `at`: seconds of the loop's clock.
    """

    def __init__(
        self, kind: int, topic: str, qos: int, retain: bool, reason_code: int, why: str, at: float, count: int
    ) -> None:
        self.kind = kind
        self.topic = topic[:LONGEST_TOPIC]
        self.qos = qos
        self.retain = retain
        self.reason_code = reason_code
        self.why = why
        if not why and len(topic) > LONGEST_TOPIC:
            self.why = TOO_LONG
        self.at = at
        self.count = count

    def settle(self, principal: Principal, asked: AccessControl | None) -> str:
        """Who decided, in words for people; access control is asked once."""
        if not self.why:
            allowed = False
            place = ""
            if asked is not None:
                topic = parse_shared(self.topic)[1] if self.kind == SUBSCRIBE else self.topic
                allowed, place = asked.said(principal, ASKED[self.kind], topic, self.qos, self.retain)
            self.why = CHANGED if allowed else place or ACCESS_CONTROL
        return self.why


class Refused:
    """The refusals of one client, for the lifetime of its session. `principal`: who it was at the last one."""

    def __init__(self, client_id: str, principal: Principal) -> None:
        self.client_id = client_id
        self.principal = principal
        self.counts: list[int] = [0] * len(KINDS)
        self.last: Refusal | None = None
        # By kind, those since the last line about it; None: it is not listed.
        self.news: list[Refusal | None] | None = None
        self.place = ""  # the account under which it is listed


@mypyc_attr(allow_interpreted_subclasses=True)
class RefusalListener:
    """Is told of each refusal at once: the traces. Must not raise."""

    def refused(self, refused: Refused, refusal: Refusal) -> None:
        """A client was refused something; `refusal.count` times."""
        raise NotImplementedError


class Record:
    """Where a client's refusals are remembered: its ledger."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.refused: Refused | None = None


class Refusals:
    """The clients of one broker that were refused something, and of whom nobody has told yet."""

    def __init__(self) -> None:
        self.listed: list[Refused] = []
        # Refusals of clients that found no place in the list, since somebody last took the number.
        self.unlisted: i64 = 0
        self.listener: RefusalListener | None = None
        self._places: dict[str, int] = {}

    def note(
        self,
        record: Record,
        principal: Principal,
        kind: int,
        topic: str,
        reason_code: int,
        now: float,
        why: str = "",
        qos: int = 0,
        retain: bool = False,
        count: int = 1,
    ) -> None:
        """A client was refused something, `count` times. See `Refusal`."""
        refused = record.refused
        if refused is None:
            refused = Refused(record.client_id, principal)
            record.refused = refused
        refused.principal = principal
        refused.counts[kind] += count
        refusal = Refusal(kind, topic, qos, retain, reason_code, why, now, count)
        refused.last = refusal
        if self.listener is not None:
            self.listener.refused(refused, refusal)
        news = refused.news
        if news is None:
            news = self._list(refused)
            if news is None:
                self.unlisted += count
                return
        before = news[kind]
        if before is not None:
            refusal.count += before.count
        news[kind] = refusal

    def _list(self, refused: Refused) -> list[Refusal | None] | None:
        """List a client, unless there is no room for it."""
        place = refused.principal.account_name()
        mine = self._places.get(place, 0)
        if len(self.listed) >= MOST_CLIENTS or (mine >= MOST_OF_ONE and len(self.listed) >= MOST_CLIENTS // 2):
            return None
        self._places[place] = mine + 1
        refused.place = place
        refused.news = [None] * len(KINDS)
        self.listed.append(refused)
        return refused.news

    def take(self, refused: Refused) -> list[Refusal]:
        """What has happened to a listed client; the caller takes it out of `listed`."""
        news = refused.news
        refused.news = None
        left = self._places.get(refused.place, 0) - 1
        if left > 0:
            self._places[refused.place] = left
        else:
            self._places.pop(refused.place, None)
        found: list[Refusal] = []
        if news is not None:
            for refusal in news:
                if refusal is not None:
                    found.append(refusal)
        return found
