"""The ledger of one client: its losses by cause, and its refusals by kind, for the lifetime of its session.

Owns the drop causes, which are what an offer answers; the `Ledger`, to which the session and the buffer of each of its
connections write, and from which the client, the log and `$SYS` are told; and the list of clients with `Refusals`.
Promises: a loss or a refusal costs some additions, and is reported later. Each loss is told to a 5.0 client once (but
for expired messages), as `canopy-lost` = `count;cause`, and is in one log line; only a report of a refusal asks access
control who decided (`settle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.framing import fields_end, frame_body, frame_end
from canopy_mqtt.core.codec.primitives import MAX_VARINT, Reader, string, varint
from canopy_mqtt.core.codec.properties import USER_PROPERTY
from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.principal import Principal

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.counters import Counters
    from canopy_mqtt.core.hooks import AccessControl

ACCEPTED: Final = -1
"""The message was queued, put in flight, or put in the place of an older one."""

GO_ON: Final = -2
"""Answer of `apply_terms` while nothing is decided: the terms of the subscription leave room."""

EXCLUDED: Final = -3
"""Answer of a session that the message is not for: a link that does not forward it, or a session that has ended."""

NO_ROOM: Final = -5
"""Answer of `SendBuffer.offer_retained`: the retained message waits for room, and is not lost."""

# Why a message that was offered to a session did not reach it. The order is that of `Counters.dropped`.
FULL_MESSAGES: Final = 0
FULL_BYTES: Final = 1
TOO_LARGE: Final = 2
EXPIRED: Final = 3
DISCONNECTED: Final = 4
SESSION_ENDED: Final = 5
AGE: Final = 6
REPLACED: Final = 7
GLOBAL: Final = 8
NO_QUOTA: Final = 9
REFUSED: Final = 10
NOT_AUTHORIZED: Final = 11
DROP_CAUSES: Final[tuple[str, ...]] = (
    "full-messages",
    "full-bytes",
    "too-large",
    "expired",
    "disconnected",
    "session-ended",
    "age",
    "replaced-by-latest",
    "global",
    "no-quota",
    "refused",
    "not-authorized",
)
"""The names, as logs, `$SYS` and the `canopy-lost` property show them; `docs/overload.md` explains each."""


def add_loss(losses: list[int] | None, cause: int, count: int) -> list[int]:
    """Count a loss in a table by cause, which is made where there is none yet, and return the table."""
    if losses is None:
        losses = [0] * len(DROP_CAUSES)
    losses[cause] += count
    return losses


def by_cause(losses: list[int] | None, names: tuple[str, ...] = DROP_CAUSES) -> dict[str, int]:
    """Return the losses of a table by the names of their causes, without causes that have none."""
    return {} if losses is None else {names[cause]: count for cause, count in enumerate(losses) if count}


class Ledger:
    """The losses of one client. `dropped`: all of them, by cause; None if there are none."""

    def __init__(self, client_id: str, counters: Counters) -> None:
        self.client_id = client_id
        self.refused: Refused | None = None
        # The client that its session belonged to, once that has ended; until then the session tells.
        self.principal: Principal | None = None
        self._counters = counters
        self._totals = counters.totals
        self.dropped: list[int] | None = None
        # What had been lost when subscribers were last compared (`observe.sampling.subscribers`).
        self.compared: i64 = 0
        # Losses that the client, and the log, have not been told of; None: there are none.
        self.untold: list[int] | None = None
        self.unreported: list[int] | None = None

    def lost(self, cause: int, count: int) -> int:
        """Count messages for this client that were dropped for `cause`; return the cause.

        Expired ones are no news to it: their publisher did not want them to come so late.
        """
        self._count(cause, count)
        if self.unreported is None:
            self._totals.unreported.append(self)
        self.unreported = add_loss(self.unreported, cause, count)
        if cause != EXPIRED:
            self.untold = add_loss(self.untold, cause, count)
        return cause

    def away(self) -> None:
        """Count a QoS 0 message that came while the client was offline: no news to a client that knows it was."""
        self._count(DISCONNECTED, 1)

    def barred(self, principal: Principal, topic: bytes, retain: bool) -> None:
        """Count a message that access control does not let the client receive: a retained one, or one for its share
        group, of which no member may have it."""
        self._counters.denied_deliveries += 1
        self._counters.refusals.note(
            self, principal, RECEIVE, topic.decode(), reason_codes.NOT_AUTHORIZED, self._totals.now, "", 0, retain
        )

    def _count(self, cause: int, count: int) -> None:
        self.dropped = add_loss(self.dropped, cause, count)
        self._counters.dropped[cause] += count
        if self._totals.tap is not None:
            self._totals.tap.lost_messages(self.client_id, cause, count)
        if self._totals.loss_listener is not None:
            self._totals.loss_listener.lost_messages(self.client_id, cause, count)

    def in_all(self) -> int:
        """Return the messages dropped, over all causes."""
        return 0 if self.dropped is None else sum(self.dropped)

    def take_report(self) -> list[int]:
        """Take the losses that no log line has told of, by cause; from now on they count as told.

        The caller takes the ledger out of `QueueTotals.unreported`.
        """
        taken = self.unreported
        self.unreported = None
        return [0] * len(DROP_CAUSES) if taken is None else taken


# -- what the client is told -------------------------------------------------------------------------------------------

LOST_NAME: Final = b"canopy-lost"
LOST_PROPERTY: Final = bytes((USER_PROPERTY,)) + string(LOST_NAME)
"""The user property that tells of losses: its name, and its bytes up to the value."""

MAX_TRIES: Final = 8
"""Messages of a batch that are tried, where the client takes only small ones."""


def tell(batch: list[bytes], ledger: Ledger, max_packet: i64) -> None:
    """Put the losses that the client was not told of into the first PUBLISH of a batch that has room, if one has.

    As many causes as it takes; the others are told later. The message is otherwise the same, with the publisher's own
    user properties first and in their order [MQTT-3.3.2-18], and within `max_packet` bytes [MQTT-3.1.2-24].
    """
    untold = ledger.untold
    if untold is None:
        return
    sections = [each for each in [property_of(cause, count) for cause, count in enumerate(untold)] if each]
    tries = MAX_TRIES
    at: i64 = 0
    while at < len(batch):
        piece = batch[at]
        # Not in one that is sent again: the client may know it, and look at nothing of it.
        if piece[0] & 0xF8 == 0x30:
            if tries == 0:
                return
            tries -= 1
            end: i64 = frame_end(piece, 0, len(piece))
            frame = piece if end == len(piece) else piece[:end]
            count = len(sections)
            while count > 0:
                noted = with_properties(frame, b"".join(sections[:count]))
                if noted and len(noted) <= max_packet:
                    batch[at] = noted if end == len(piece) else noted + piece[end:]
                    _told(ledger, count)
                    return
                count -= 1
        at += 1


def _told(ledger: Ledger, count: int) -> None:
    """Note that the client was told of the first `count` causes for which it had not been."""
    untold = ledger.untold
    assert untold is not None
    for cause, lost in enumerate(untold):
        if lost > 0 and count > 0:
            untold[cause] = 0
            count -= 1
    if not any(untold):
        ledger.untold = None


def property_of(cause: int, count: int) -> bytes:
    """Return the user property that tells of losses for one cause; empty where there are none."""
    return LOST_PROPERTY + string(f"{count};{DROP_CAUSES[cause]}".encode()) if count > 0 else b""


def with_properties(frame: bytes, section: bytes) -> bytes:
    """Return a whole 5.0 PUBLISH with more properties behind its own; empty where no packet can be so large."""
    body: i64 = frame_body(frame, 0)
    at: i64 = fields_end(frame, body, frame[0] & 0x06)
    reader = Reader(frame, at, len(frame))
    length: i64 = reader.varint()
    start: i64 = at
    at = reader.position
    size = varint(length + len(section))
    remaining: i64 = len(frame) - body + len(size) - (at - start) + len(section)
    if remaining > MAX_VARINT:
        return b""
    return b"".join(
        (frame[:1], varint(remaining), frame[body:start], size, frame[at : at + length], section, frame[at + length :])
    )


# -- refusals ----------------------------------------------------------------------------------------------------------

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
