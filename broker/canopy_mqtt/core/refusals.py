"""The refusals of clients, by kind, for the lifetime of their sessions; and the list of those to be reported.

Promises: a refusal costs some additions, and is reported later; only a report asks access control who decided
(`Refusal.settle`). The list is bounded, for each account and in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.principal import Principal

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.hooks import AccessControl
    from canopy_mqtt.core.ledger import Ledger

PUBLISH: Final = 0
SUBSCRIBE: Final = 1
RECEIVE: Final = 2
WILL: Final = 3
RETAIN: Final = 4
KINDS: Final[tuple[str, ...]] = ("publish", "subscribe", "receive", "will", "retain")
"""The refused actions, as logs and the API name them."""

ASKED: Final[tuple[str, ...]] = ("publish", "subscribe", "receive", "publish", "")
"""The action that `AccessControl.said` is asked about for each kind."""

MAX_LISTED_CLIENTS: Final = 1_000
MAX_LISTED_OF_ACCOUNT: Final = 20
"""Clients with unreported refusals: of all accounts, and of one account while the list is more than half full. Each has
up to five topics: 8 MB in all."""

MAX_TOPIC_CHARACTERS: Final = 1_024
"""Characters of a topic that are kept; access control is not asked about a longer topic."""

STORE: Final = "the store cannot be written"
MOUNT: Final = "the mount of the listener has no such topic"
ACCESS_CONTROL: Final = "access control"
"""The one who decided, if access control does not name a rule."""

CHANGED: Final = "a rule that has changed since"
TOO_LONG: Final = "access control (the topic is too long to look the rule up)"


class Refusal:
    """The last refusal of one kind, and the number of them since the last report.

    `topic`: a topic name, or the filter of a subscription. `why`: the setting or the part that decided; empty: access
    control did, and was not asked for the rule yet. `at`: seconds of the loop's clock.
    """

    def __init__(
        self, kind: int, topic: str, qos: int, retain: bool, reason_code: int, why: str, at: float, count: int
    ) -> None:
        self.kind = kind
        self.topic = topic[:MAX_TOPIC_CHARACTERS]
        self.qos = qos
        self.retain = retain
        self.reason_code = reason_code
        self.why = why
        if not why and len(topic) > MAX_TOPIC_CHARACTERS:
            self.why = TOO_LONG
        self.at = at
        self.count = count

    def settle(self, principal: Principal, asked: AccessControl | None) -> str:
        """Return who decided, in words for people. It asks access control once."""
        if not self.why:
            allowed = False
            place = ""
            if asked is not None:
                topic = parse_shared(self.topic)[1] if self.kind == SUBSCRIBE else self.topic
                allowed, place = asked.said(principal, ASKED[self.kind], topic, self.qos, self.retain)
            self.why = CHANGED if allowed else place or ACCESS_CONTROL
        return self.why


class Refused:
    """The refusals of one client, for the lifetime of its session. `principal`: that of the last refusal."""

    def __init__(self, client_id: str, principal: Principal) -> None:
        self.client_id = client_id
        self.principal = principal
        self.counts: list[int] = [0] * len(KINDS)
        self.last: Refusal | None = None
        # By kind, the refusals since the last report; None: it is not listed.
        self.news: list[Refusal | None] | None = None
        self.place = ""  # the account that its place in the list counts for


@mypyc_attr(allow_interpreted_subclasses=True)
class RefusalListener:
    """Gets each refusal at once, for the traces. Must not raise."""

    def refused(self, refused: Refused, refusal: Refusal) -> None:
        """Handle `refusal.count` equal refusals of a client."""
        raise NotImplementedError


class Refusals:
    """The clients of one broker with unreported refusals: at most `MAX_LISTED_CLIENTS`.

    While the list is more than half full, one account has at most `MAX_LISTED_OF_ACCOUNT`. A refusal of another client
    counts too, in its ledger and in `unlisted`.
    """

    def __init__(self) -> None:
        self.listed: list[Refused] = []
        # Refusals of clients without a place in the list; the refusal log reads and clears the number.
        self.unlisted: i64 = 0
        self.listener: RefusalListener | None = None
        self._places: dict[str, int] = {}

    def note(
        self,
        ledger: Ledger,
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
        """Count `count` equal refusals of a client. See `Refusal`."""
        refused = ledger.refused
        if refused is None:
            refused = Refused(ledger.client_id, principal)
            ledger.refused = refused
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
        """List a client. Return None if there is no room for it."""
        place = refused.principal.account_name()
        mine = self._places.get(place, 0)
        if len(self.listed) >= MAX_LISTED_CLIENTS or (
            mine >= MAX_LISTED_OF_ACCOUNT and len(self.listed) >= MAX_LISTED_CLIENTS // 2
        ):
            return None
        self._places[place] = mine + 1
        refused.place = place
        refused.news = [None] * len(KINDS)
        self.listed.append(refused)
        return refused.news

    def take(self, refused: Refused) -> list[Refusal]:
        """Return the unreported refusals of a listed client. The caller removes it from `listed`."""
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
