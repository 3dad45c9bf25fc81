"""Subscribes upstream to the topic filters that are declared (`AggregatedFilters`, `BudgetedFilters`).

Owns the conversion of `UpstreamSubscriptions` calls into SUBSCRIBE and UNSUBSCRIBE: what was declared and not sent yet,
what waits for its acknowledgement, what the upstream has, and the subscription identifiers.

It knows no connection and no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, Subscribe, SubscriptionRequest, Unsubscribe
from canopy_mqtt.core.codec.properties import SUBSCRIPTION_IDENTIFIER
from canopy_mqtt.core.codec.reason_codes import PACKET_TOO_LARGE, QUOTA_EXCEEDED, ProtocolViolation
from canopy_mqtt.core.codec.topic_names import has_wildcard, overlaps
from canopy_mqtt.core.topics.trie import Trie, create
from canopy_mqtt.links.filters.aggregated import UpstreamSubscriptions
from canopy_mqtt.links.filters.filter_tree import FilterTree

if TYPE_CHECKING:
    from mypy_extensions import i64

FIRST_ID: Final = 65_528
"""The first packet identifier of the declarer; those below are for messages."""

UNACKNOWLEDGED: Final = 4
"""Packets that wait for their acknowledgement at most."""

PACKET_FILTERS: Final = 256
"""Filters in one packet at most, unless the settings say otherwise."""

PACKET_WILDCARDS: Final = 32
"""Filters with wildcards in one packet at most: each of them is compared with the others."""

PACKET_BYTES: Final = 32_768
"""Bytes of topic filters in one packet, unless a single one is longer."""

HEADROOM: Final = 32
"""Bytes of a packet beside its filters."""

ALONE: Final = 16
"""Bytes of a packet beside its filter, if that is the only one, at most."""

REMEMBERED: Final = 8_192
MAX_REMEMBERED: Final = 512
"""Topics of which it is remembered whose copies are accepted, and their bytes at most."""

TAKEN: Final = 0
COPY: Final = 1
OUTSIDE: Final = 2
"""The verdicts on a message from upstream: TAKEN is for us, COPY is another copy of one, OUTSIDE matches no filter of
ours."""

NO_IDENTIFIER: Final = [0]
"""The identifiers of a topic that no held filter matches, but a wanted one."""

LAST_IDENTIFIER: Final = 268_435_455
"""The largest subscription identifier (section 3.8.2.1.2)."""


class Unanswered:
    """A SUBSCRIBE or UNSUBSCRIBE that waits for its acknowledgement."""

    def __init__(self, subscribes: bool, topic_filters: list[str]) -> None:
        self.subscribes = subscribes
        self.topic_filters = topic_filters


class Declarer(UpstreamSubscriptions):
    """The subscriptions of one link. `qos`: as they are asked for. `packet_filters`: filters in one packet at most.

    Promises:
    - What was not sent yet and is taken back is never sent: however much comes and goes, no more waits than there are
      filters.
    - Filters go in the order in which they were declared and withdrawn, many in one packet, few packets at a time.
    - A session that the upstream kept is not declared again, but for what it had not acknowledged; one that it has lost
      is declared anew as a whole.
    - A message whose topic is matched by no filter that is wanted or held is not accepted: the link has not subscribed
      to it.
    - Of several copies of a message, which some brokers send where several filters match, one is accepted: the one
      that came for the filter which was declared first. Filters that overlap therefore never share a subscription
      identifier, and so no packet. In doubt a copy is accepted: a message may come twice while filters change, but is
      not lost.
    """

    def __init__(self, qos: int, packet_filters: int = PACKET_FILTERS) -> None:
        self.qos = qos
        self.packet_filters = packet_filters
        # 0: what is retained comes each time; the replays see that it is told once. 2: it does not come.
        self.retain_handling = 0
        # The declared filters, in the order of the calls.
        self.wanted: dict[str, None] = {}
        # What the upstream has, or may have, with its subscription identifier (0: none); and what it has refused.
        self.held: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        # What was asked for or taken back without an answer before the connection broke.
        self._unsure: set[str] = set()
        # What could not even be asked for, and nobody was told of yet.
        self._unasked: list[tuple[str, int]] = []
        # The filters declared since `gather`.
        self._gathered: dict[str, None] | None = None
        # What is to be sent: True to subscribe.
        self._due: dict[str, bool] = {}
        self._waiting: dict[int, Unanswered] = {}
        # How many SUBSCRIBEs for a filter wait for their SUBACK, and UNSUBSCRIBEs for their UNSUBACK.
        self._asked: dict[str, int] = {}
        self._leaving: dict[str, int] = {}
        # False before the first connection: the upstream's session may be one from before this program's start, and
        # hold filters that are not known here.
        self.knows_held = False
        # Filters for which nothing may be to be waited for any more (`is_confirmed`), since the caller last emptied
        # this; None: nobody waits.
        self.answered: list[str] | None = None
        # What the connection can do.
        self.connected = False
        self._version = 0
        self._identifies = False
        self._largest: i64 = 0
        self._next_identifier = 0
        # `held` as a table, what is wanted besides, and what they have for a topic: the identifiers of held filters.
        self._table = create("nodes")
        self._lacking = create("nodes")
        self._came: dict[bytes, list[int]] = {}

    # -- declaring -----------------------------------------------------------------------------------------------------

    def declare(self, topic_filter: str) -> None:
        if self._gathered is not None:
            self._gathered[topic_filter] = None
            return
        if topic_filter not in self.wanted:
            self.wanted[topic_filter] = None
            if topic_filter not in self.held:
                self._lack(topic_filter)
        still_there = topic_filter in self.held and topic_filter not in self._leaving
        if self._due.pop(topic_filter, True) or topic_filter in self._unsure or not still_there:
            self._due[topic_filter] = True

    def withdraw(self, topic_filter: str) -> None:
        if self._gathered is not None:
            self._gathered.pop(topic_filter, None)
            return
        if self.wanted.pop(topic_filter, True) is None and topic_filter not in self.held:
            _remove(self._lacking, topic_filter)
            self._came.clear()
        self.refused.pop(topic_filter, None)
        self._due.pop(topic_filter, None)
        if topic_filter in self.held:
            self._due[topic_filter] = False
        if self.answered is not None:
            self.answered.append(topic_filter)

    def gather(self) -> None:
        """All filters are declared again: they take effect with `settle`, as a whole."""
        self._gathered = {}

    def settle(self, most: int = 0) -> None:
        """All filters were declared again: declare the new ones, and then withdraw those that are gone.

        `most`: filters that may be declared at any moment, at least as many as were declared; where more were declared
        before, no more than these. As many are withdrawn first as there is no room for. 0: no limit.
        """
        gathered = self._gathered
        self._gathered = None
        if gathered is None:
            return
        leaving = [topic_filter for topic_filter in self.wanted if topic_filter not in gathered]
        coming = [topic_filter for topic_filter in gathered if topic_filter not in self.wanted]
        most = max(most, len(self.wanted)) if most > 0 else len(self.wanted) + len(coming)
        if len(self.wanted) + len(coming) > most:
            leaving, coming = _in_turn(leaving, coming)
        at: i64 = 0
        for topic_filter in coming:
            if len(self.wanted) >= most:
                self.withdraw(leaving[at])
                at += 1
            self.declare(topic_filter)
        for topic_filter in leaving[at:]:
            self.withdraw(topic_filter)

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(self, version: int, session_present: bool, identifies: bool, largest: int, stale: list[str]) -> list[str]:
        """Begin a connection. `identifies`: with subscription identifiers; `largest`: bytes of a packet.

        `stale`: filters that a session from before this program's start may hold; what is not wanted of them goes.
        Returns the filters that are gone without having been taken back, since the upstream has lost its session.
        """
        self.connected = True
        self._version = version
        self._identifies = identifies
        self._largest = largest
        uncertain = list(self._waiting.values())
        self._waiting.clear()
        self._asked.clear()
        self._leaving.clear()
        self.refused.clear()
        self.knows_held = True
        if not session_present:
            gone = [topic_filter for topic_filter in self.held if topic_filter not in self.wanted]
            self.move()
            return gone
        again: dict[str, bool] = {}
        for request in uncertain:
            for topic_filter in request.topic_filters:
                # Whether it was acted on is not known; what was decided since stands in `_due`.
                self._unsure.add(topic_filter)
                if topic_filter not in self._due:
                    again[topic_filter] = topic_filter in self.wanted
        for topic_filter in self.wanted:
            if topic_filter not in self.held:
                again[topic_filter] = True
        # Behind what takes the place of it: a share group at another worker would end without a member.
        for topic_filter in stale:
            if topic_filter not in self.wanted and topic_filter not in self.held:
                # Should it be wanted before that is sent, it is asked for.
                self._unsure.add(topic_filter)
                again[topic_filter] = False
        again.update(self._due)
        self._due = again
        return []

    def close(self) -> None:
        self.connected = False

    def move(self) -> None:
        """Forget what was held and ask for everything, since the upstream, or its session, is another one."""
        self._waiting.clear()
        self._asked.clear()
        self._leaving.clear()
        self._unsure.clear()
        self.held.clear()
        self._table = create("nodes")
        self._lacking = create("nodes")
        for topic_filter in self.wanted:
            self._lacking.insert(topic_filter)
        self._came.clear()
        self._due = dict.fromkeys(self.wanted, True)

    def is_confirmed(self, topic_filter: str) -> bool:
        """Return whether no SUBSCRIBE for a filter waits to be sent or to be acknowledged. It takes two look-ups."""
        return topic_filter not in self._due and topic_filter not in self._asked

    def renew(self) -> None:
        """Ask for all filters again, since the terms have changed."""
        for topic_filter in self.wanted:
            self._due[topic_filter] = True

    @property
    def settled(self) -> bool:
        """Return whether the upstream has acknowledged all that was declared and withdrawn."""
        return not self._due and not self._waiting

    @property
    def confirmed(self) -> int:
        """How many filters the upstream has confirmed: those of `held` that wait for no SUBACK."""
        waiting: set[str] = set()
        for request in self._waiting.values():
            if request.subscribes:
                waiting.update(request.topic_filters)
        return len(self.held) - len([topic_filter for topic_filter in waiting if topic_filter in self.held])

    @property
    def quiet(self) -> bool:
        return not self._waiting

    def packets(self, asked: list[str]) -> list[bytes]:
        """Return the packets to send now; more come when these are acknowledged. `asked` gets the new filters."""
        made: list[bytes] = []
        while self.connected and self._due and len(self._waiting) < UNACKNOWLEDGED:
            packet_id = FIRST_ID
            while packet_id in self._waiting:
                packet_id += 1
            if not self._too_long(next(iter(self._due))):
                made.append(self._packet(packet_id, asked))
        return made

    def _too_long(self, topic_filter: str) -> bool:
        """Return whether a filter that is due fits into no packet that the upstream takes; if so, refuse it.

        [MQTT-3.2.2-15]
        """
        if len(topic_filter) * 4 + ALONE <= self._largest or len(topic_filter.encode()) + ALONE <= self._largest:
            return False
        if self.answered is not None:
            self.answered.append(topic_filter)
        if self._due.pop(topic_filter):
            self.refused[topic_filter] = PACKET_TOO_LARGE
            self._unasked.append((topic_filter, PACKET_TOO_LARGE))
        else:
            self._let_go(topic_filter)
        return True

    def take_unasked(self) -> list[tuple[str, int]]:
        """Return the filters that could not be asked for since the last call, with reason codes."""
        unasked = self._unasked
        self._unasked = []
        return unasked

    def _packet(self, packet_id: int, asked: list[str]) -> bytes:
        """Return the next packet: as many of the first filters as belong together."""
        subscribes = next(iter(self._due.values()))
        apart = subscribes and self._identifies
        chosen: list[str] = []
        wild: list[str] = []
        size: i64 = HEADROOM
        most: i64 = min(PACKET_BYTES, self._largest)
        for topic_filter, way in self._due.items():
            if way is not subscribes or len(chosen) >= self.packet_filters:
                break
            size += len(topic_filter.encode()) + 3
            if chosen and size > most:  # alone it fits: see `_too_long`
                break
            if apart and not _stands_apart(topic_filter, chosen, wild):
                break
            chosen.append(topic_filter)
        for topic_filter in chosen:
            del self._due[topic_filter]
        self._waiting[packet_id] = Unanswered(subscribes, chosen)
        if not subscribes:
            for topic_filter in chosen:
                self._leaving[topic_filter] = self._leaving.get(topic_filter, 0) + 1
            return encode(Unsubscribe(packet_id, chosen), self._version)
        identifier = 0
        if self._identifies:
            self._next_identifier = self._next_identifier % LAST_IDENTIFIER + 1
            identifier = self._next_identifier
        packet = Subscribe(packet_id)
        for topic_filter in chosen:
            packet.requests.append(SubscriptionRequest(topic_filter, self.qos, True, True, self.retain_handling))
            self._hold(topic_filter, identifier)
            self._asked[topic_filter] = self._asked.get(topic_filter, 0) + 1
        asked.extend(chosen)
        if identifier > 0:
            packet.properties.integers[SUBSCRIPTION_IDENTIFIER] = identifier
        return encode(packet, self._version)

    # -- what the upstream says ----------------------------------------------------------------------------------------

    def acknowledged(self, packet_id: int, reason_codes: list[int]) -> list[tuple[str, int]]:
        """Process a SUBACK or UNSUBACK, and return the refused filters with their reason codes.

        An UNSUBACK of 3.1.1 has no codes. An acknowledgement without a request is ignored.

        Raises:
            ProtocolViolation: it has not one code for each filter [MQTT-3.8.4-6] [MQTT-3.11.3-1], and does not say what
                is held: nothing that was asked for is.
        """
        request = self._waiting.get(packet_id)
        if request is None:
            return []
        filters, codes = len(request.topic_filters), len(reason_codes)
        if codes != filters and (request.subscribes or self._version == V5):
            if request.subscribes:
                for topic_filter in request.topic_filters:
                    self._let_go(topic_filter)
            name = "SUBACK" if request.subscribes else "UNSUBACK"
            raise ProtocolViolation(f"{name} with {codes} reason codes for {filters} topic filters")
        del self._waiting[packet_id]
        self._heard(request)
        bad: list[tuple[str, int]] = []
        for at, topic_filter in enumerate(request.topic_filters):
            code = reason_codes[at] if reason_codes else 0
            self._unsure.discard(topic_filter)
            if not request.subscribes:
                if topic_filter not in self.wanted or topic_filter in self._due:
                    self._let_go(topic_filter)
            elif code >= 0x80:
                if topic_filter in self._asked:
                    # That is answered later.
                    continue
                self._let_go(topic_filter)
                if topic_filter in self.wanted:
                    self.refused[topic_filter] = code
                    bad.append((topic_filter, code))
                else:
                    self._due.pop(topic_filter, None)
        if not request.subscribes:
            # There may be room now for as many of those for which there was none.
            again = [topic_filter for topic_filter, code in self.refused.items() if code == QUOTA_EXCEEDED]
            for topic_filter in again[: len(request.topic_filters)]:
                del self.refused[topic_filter]
                self._due[topic_filter] = True
        return bad

    def _heard(self, request: Unanswered) -> None:
        """Count a packet no more, since its SUBACK or UNSUBACK has come."""
        counts = self._asked if request.subscribes else self._leaving
        for topic_filter in request.topic_filters:
            left = counts[topic_filter] - 1
            if left > 0:
                counts[topic_filter] = left
            else:
                del counts[topic_filter]
            if request.subscribes and self.answered is not None:
                self.answered.append(topic_filter)

    def withdrawn(self, packet_id: int) -> list[str]:
        """Return the filters of the UNSUBACK with this packet identifier: call it before `acknowledged`."""
        request = self._waiting.get(packet_id)
        return [] if request is None or request.subscribes else request.topic_filters

    # -- copies --------------------------------------------------------------------------------------------------------

    def verdict(self, topic: bytes, identifiers: tuple[int, ...]) -> int:
        """Decide about a message that came with these subscription identifiers: TAKEN, COPY or OUTSIDE."""
        came = self._came.get(topic)
        if came is None:
            name = topic.decode()
            came = sorted({self.held[entry.topic_filter] for entry in self._table.match(name)})
            if not came and self._lacking.match(name):
                came = NO_IDENTIFIER
            if len(topic) <= MAX_REMEMBERED:
                if len(self._came) >= REMEMBERED:
                    self._came.clear()
                self._came[topic] = came
        if not came:
            return OUTSIDE
        if not identifiers or came[0] == 0 or came[0] in identifiers or len(self.held) < 2:
            return TAKEN
        # Else it came for another one; or for one that is held no more, or was asked for anew since.
        for identifier in identifiers:
            if identifier in came:
                return COPY
        return TAKEN

    @property
    def table(self) -> Trie:
        """The filters that the upstream holds, to be matched. Read it; never change it."""
        return self._table

    def _lack(self, topic_filter: str) -> None:
        self._lacking.insert(topic_filter)
        self._came.clear()

    def _hold(self, topic_filter: str, identifier: int) -> None:
        if topic_filter not in self.held:
            self._table.insert(topic_filter)
            if topic_filter in self.wanted:
                _remove(self._lacking, topic_filter)
        self.held[topic_filter] = identifier
        self._came.clear()

    def _let_go(self, topic_filter: str) -> None:
        if self.held.pop(topic_filter, -1) >= 0:
            _remove(self._table, topic_filter)
            self._came.clear()
            if topic_filter in self.wanted:
                self._lacking.insert(topic_filter)


def _in_turn(leaving: list[str], coming: list[str]) -> tuple[list[str], list[str]]:
    """Order the withdrawals and declarations so that, where room is scarce, the fewest topics lose their filter for a
    moment.

    Filters that replace some of the withdrawn are declared first, and what they replace is withdrawn first. A filter
    that covers some of the declared is withdrawn last.
    """
    new = FilterTree()
    for topic_filter in coming:
        new.add(topic_filter)
    covers: dict[str, None] = {}
    replaced: list[str] = []
    others: list[str] = []
    needed: list[str] = []
    for topic_filter in leaving:
        cover = new.covering(topic_filter)
        if cover is not None:
            covers[cover] = None
            replaced.append(topic_filter)
        elif has_wildcard(topic_filter) and new.inside(topic_filter):
            needed.append(topic_filter)
        else:
            others.append(topic_filter)
    # The first that comes takes the place of one that nothing stands for any more, if there is such a one.
    return [*others, *replaced, *needed], [*covers, *(each for each in coming if each not in covers)]


def _stands_apart(topic_filter: str, chosen: list[str], wild: list[str]) -> bool:
    """Return whether this filter and the chosen ones match no topic in common; then add it to `wild` if it has
    wildcards."""
    if not has_wildcard(topic_filter):
        return not any(overlaps(topic_filter, other) for other in wild)
    if len(wild) >= PACKET_WILDCARDS or any(overlaps(topic_filter, other) for other in chosen):
        return False
    wild.append(topic_filter)
    return True


def _remove(trie: Trie, topic_filter: str) -> None:
    """Take a filter out of a trie, if it is in it."""
    entry = trie.find(topic_filter)
    if entry is not None:
        trie.remove(entry)
