"""Sessions that several brokers share: what the core asks of their store (`SharedSessions`), and what it tells it.

With `router.shared`, the durable sessions of clients are in a store that all nodes of a cluster have. A session is in
this process only while its client is connected here: a CONNECT claims it (`Attempt`), and with the end of the
connection it goes back. The core knows no absent session, and so none that expires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.accounts import Account
    from canopy_mqtt.core.codec.packets import Will
    from canopy_mqtt.core.session.session import Session
    from canopy_mqtt.core.topics.subscription import Subscription
    from canopy_mqtt.core.topics.topic_tree import TopicTree


KEPT: Final = -1
"""In place of a packet identifier: the store that brokers share has the message already (`Router.publish`)."""


class Attempt:
    """A CONNECT that claims its session, and then the claim of the session that was opened for it.

    `clean`: whether a session that exists is to end; `expiry`: the Session Expiry Interval that was granted, s; after a
    DISCONNECT the one that it set, and 0 when the session has ended. `principal`: whose the session is. `will`: of the
    CONNECT; None: it has none.
    """

    def __init__(
        self,
        client_id: str,
        clean: bool,
        expiry: int,
        principal: Principal,
        will: Will | None,
        close: Callable[[str, int, str, float], None],
        told: Callable[[int], None] | None,
    ) -> None:
        """`close` is `end`; `told` hears of a late answer."""
        self.client_id = client_id
        self.clean = clean
        self.expiry = expiry
        self.principal = principal
        self.will = will
        # By which the store knows the will, while that is kept there and its connection lasts: see
        # `SharedSessions.will_ended`. None: the store does not know it, or has been told what becomes of it.
        self.kept_will: object | None = None
        # The session, while it is open here.
        self.session: Session | None = None
        # The client has gone, before the answer or later, or was refused.
        self.is_gone = False
        # The answer: a reason code, -1: there is none yet; `text` of a refusal, for the log and the client; `record` of
        # a session that `goes_on`. The core's.
        self.answer = -1
        self.is_open = self.goes_on = False
        self.text = ""
        self.record: SessionRecord | None = None
        # What the core has made of the record before the session is open.
        self.restored: Session | None = None
        # End the connection, or the CONNECT that waits, for one of `core.causes`: for instance, since the session is
        # elsewhere by now. `left` follows if it was `opened`. With the reason code, a text, and the time.
        self.end = close
        self._told = told
        self._asking = False  # `claim` has not returned yet

    @property
    def is_kept(self) -> bool:
        """Return whether the store keeps the session: it lasts, or it was kept and ends with this connection."""
        return self.expiry > 0 or self.goes_on

    # -- the store's side ----------------------------------------------------------------------------------------------

    def opened(self, record: SessionRecord | None) -> None:
        """Answer that the session is claimed. `record`: what it has, but for what waits; None: there was none, or it
        has begun anew.

        Call this or `refused` once, in the thread of the event loop, and not if the client `is_gone`: the store gives
        the session back then. Each other call is followed by one of `SharedSessions.left`, at once where the client is
        refused after all. Otherwise `session` is set when this returns, or, within `claim`, when that has; or the
        connection is about to end. The journal must know the session already: it is told of its deliveries in flight
        (`restored`) meanwhile.
        """
        if self.answer < 0:
            self.is_open = True
            self.record = record
            self.goes_on = record is not None
            self._say(reason_codes.SUCCESS)

    def refused(self, reason_code: int, text: str) -> None:
        """Answer that the session cannot be claimed: the CONNACK has the reason code. Does nothing if it is open."""
        if self.answer < 0:
            self.text = text
            self._say(reason_code)

    # -- the core's side -----------------------------------------------------------------------------------------------

    def ask(self, shared: SharedSessions) -> bool:
        """Have the session claimed. Return whether there is an answer already."""
        self._asking = True
        try:
            shared.claim(self)
        finally:
            self._asking = False
        return self.answer >= 0

    def _say(self, reason_code: int) -> None:
        self.answer = reason_code
        if self._told is not None and not self._asking:
            self._told(reason_code)

    def take_will(self) -> object | None:
        """Return by what the store knows the will. The caller tells the store what becomes of it."""
        kept, self.kept_will = self.kept_will, None
        return kept

    def discard(self) -> None:
        """Take no answer any more."""
        self.is_gone = True
        self._told = None


class Offer:
    """A change of retained messages that the store that brokers share has not written yet, and its room.

    A message is to be retained, or a topic is cleared.
    """

    def __init__(self, message: Message, account: Account) -> None:
        self.message = message
        self.account = account
        self.clears = False
        # Only in place of the message with this version; 0: of any.
        self.replaces: i64 = 0
        # The number of its publish (`TopicTree.published`); 0: no subscriber was sent it.
        self.published: i64 = 0
        self.publisher = ""
        self.count = 0
        self.size = 0


class RetainedWait:
    """A new subscription that waits until the retained messages here are the newest."""

    def __init__(self, session: Session, subscription: Subscription, tree: TopicTree) -> None:
        self._session = session
        self._subscription = subscription
        self._tree = tree
        self._since: i64 = tree.published
        self._lost = session.ledger.in_all()

    def go(self, now: float) -> None:
        """Send them, if it is still there."""
        self.start()
        self._session.fill_and_flush(now)

    def start(self) -> None:
        """Begin to send them, if it is still there."""
        session, subscription = self._session, self._subscription
        name = subscription.topic_filter
        entry = subscription.entry
        if session.ended or session.subscriptions.get(name) is not subscription or entry is None:
            return
        if self._tree.leads_to(entry.topic_filter):
            # A live message that was lost meanwhile comes again.
            since = self._since if session.ledger.in_all() == self._lost else -1
            session.start_stream(subscription, self._tree, since)


@mypyc_attr(allow_interpreted_subclasses=True)
class SharedSessions:
    """The store of the sessions that several brokers share. Must not raise, and must not block.

    It is set with a journal that has `Commits`, and is told of all else by that: acknowledgements wait for these. The
    journal is not told `session_gone` where a session goes back, and of nothing in it either.

    Each CONNECT of a client claims its session, also with Clean Start: it ends one that is elsewhere. Nodes, links, and
    the program that the broker runs in claim nothing. The connection reads nothing more until the claim is answered.
    The store refuses the session of another user, and begins one of another mount anew (`connect._open_session`).

    A message of QoS 1 or 2 goes to durable sessions by the store alone, also to those that are here: `publish`. The
    store reads it back into the queues of those who are connected (`persistence.restore.take`). So it does with those
    for share groups, also to members whose sessions end with their connections. QoS 0, messages for another
    subscription with QoS 0, and retained ones for a new subscription, come as without a store: a PUBLISH of QoS 2 of a
    durable session when the store says that it had not come before, all else at once.
    Where a client has connected elsewhere, the store ends the connection here (`Attempt.end`).

    The will of a CONNECT is kept before that is answered (`Attempt.kept_will`), and published once, whichever nodes
    die: by the node whose connection ended (`keep_will`), or, if it was to wait, by one that the store tells when it
    is due (`WillQueue.submit`). The store knows whether the client was back in time.

    No session subscribes here to the filters of all nodes: it would be asked for of other brokers, judged by access
    control, and served in turns behind very many others, after the PUBACK. The store matches each message of QoS 1 or 2
    itself, and knows only with its commit that no session wants it: no PUBACK or PUBREC says 0x10 (No matching
    subscribers).
    """

    def __init__(self) -> None:
        # CONNECTs without an answer, by client identifier: a later one ends an earlier one. The core's.
        self.waiting: dict[str, Attempt] = {}

    def claim(self, attempt: Attempt) -> None:
        """Claim the session of a CONNECT. Answer by `Attempt.opened` or `Attempt.refused`, now or later."""
        raise NotImplementedError

    def left(self, attempt: Attempt) -> None:
        """Called once for each attempt that was `opened`, when it is over: the session is not here any more.

        It stays in the store for `attempt.expiry` seconds; with 0 it ends. All that is told of it has been told. A will
        that is kept still (`attempt.kept_will`) is not to be published.
        """
        raise NotImplementedError

    def will_ended(self, kept: object, delay: int) -> None:
        """The connection of a will that is kept has ended: it is due in `delay` seconds; -1: it is not to be published.

        With a delay, a client that is back before has revoked it, unless it begins anew: then it is due at once.
        """
        raise NotImplementedError

    def keep_will(self, kept: object, message: Message, live: Callable[[], object], offer: Offer | None) -> None:
        """Keep the message of a will that is kept, with any QoS, and forget the will; both or neither. `live`, `offer`:
        see `publish`; `live` is not called where the will was published by another node, or revoked."""
        raise NotImplementedError

    def look(self, wait: RetainedWait) -> None:
        """Call `wait.go` when the retained messages here have all that was acknowledged anywhere by now."""
        raise NotImplementedError

    def retain(self, offer: Offer, origin: Session | None) -> None:
        """Keep what is to be retained, or that a topic was cleared. `origin`: the session that has published it.

        Call `RetainedStore.written` when it is kept, or will not be; what is kept comes by `RetainedStore.keep`.
        """
        raise NotImplementedError

    def holds(self, session: Session) -> bool:
        """Return whether the store has a session that is here: it has none that was opened while it was away."""
        raise NotImplementedError

    def publish(
        self,
        message: Message,
        session: Session | None,
        packet_id: int,
        live: Callable[[], object] | None,
        offer: Offer | None,
    ) -> None:
        """Keep a message of QoS 1 or 2 for the durable sessions, and the share groups, that want it.

        Called for each: by the time that it is acknowledged, it has to be known whether there are any. `packet_id`: of
        a PUBLISH of QoS 2 of a durable session, to be kept; 0 for all others. `offer`: it is to be retained as well,
        both or neither. Messages of other nodes are not for it: these have kept them.
        `session`: of a durable session here that has published it (for No Local); None: of others, or wills of QoS 2.
        `live`: gives the message to all who have it live, and is called when the message is kept, before that is told
        to the journal, but not where it had come before, maybe to another node. None: they have it already.
        It is acknowledged when all is committed that the journal was told up to the end of this call.
        """
        raise NotImplementedError
