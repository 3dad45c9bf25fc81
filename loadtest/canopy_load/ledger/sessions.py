"""Sessions and subscriptions as they follow from a history.

Owns: `Whole`, a history with its sessions, and what came to each of them. ``checker`` holds the rules that use it.

Promises: what the history cannot decide has an end that is not known for sure: a session that a CONNECT without an
answer may have ended is not judged beyond that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import Final

from canopy_load.ledger.history import (
    Connect,
    Delivery,
    Ended,
    Event,
    History,
    Publish,
    Rest,
    Subscribe,
    Unsubscribe,
)
from canopy_mqtt.core.codec.topic_names import matches, parse_shared

SEEN: Final = 2.0
"""Seconds after which a broker has surely seen that a member of a share group is gone; until then it may choose it."""


class Subscription:
    """One subscription of a session, from the SUBSCRIBE that made it until it is withdrawn. `group`: the whole filter,
    if it is a shared one."""

    def __init__(self, asked: Subscribe) -> None:
        self.asked = asked
        self.qos = asked.qos
        self.until = inf
        self.gone: Unsubscribe | None = None
        """What withdrew it."""
        self.group = asked.topic_filter if parse_shared(asked.topic_filter)[0] else ""

    def due(self, publish: Publish) -> bool:
        """Return True if an acknowledged message must come to it, if it lasts."""
        asked = self.asked
        return (
            asked.ended <= publish.since < self.until
            and min(publish.qos, self.qos) > 0
            and not (asked.no_local and asked.client == publish.client)
        )


class Session:
    """One session of a client: from a CONNECT that found none to the next one that found none or wanted none."""

    def __init__(self, first: Connect) -> None:
        self.connections = [first]
        self.until = inf
        self.open = True
        """True if its client is connected at the end."""
        self.subscriptions: list[Subscription] = []

    def hears(self, topic: str) -> list[Subscription]:
        """Return the subscriptions that match a topic, at any time."""
        return [each for each in self.subscriptions if hits(each.asked.topic_filter, topic)]


@lru_cache(maxsize=65_536)
def hits(topic_filter: str, topic: str) -> bool:
    """Return True if a topic filter, which may be that of a share group, matches a topic."""
    return matches(parse_shared(topic_filter)[1], topic)


class Whole:
    """A history, with its sessions and deliveries by client."""

    def __init__(self, history: History, blind: Sequence[tuple[float, float]] = ()) -> None:
        self.history = history
        self._blind = sorted(blind)
        self.messages = {(each.stream, each.sequence): each for each in history.of(Publish)}
        self.ended = {each.connection: each for each in history.of(Ended)}
        self.sessions: dict[str, list[Session]] = defaultdict(list)
        connects: dict[str, list[Connect]] = defaultdict(list)
        for connect in history.of(Connect):
            connects[connect.client].append(connect)
        self.connects = connects
        for client, found in connects.items():
            self.sessions[client] = self._sessions_of(found)
        changes = [each for each in history.events if isinstance(each, Subscribe | Unsubscribe)]
        for change in sorted(changes, key=lambda each: each.began):
            if isinstance(change, Subscribe):
                self._subscribe(change)
            elif change.outcome != "fail":
                self._unsubscribe(change)
        self._acknowledged = sorted(
            (each for each in self.messages.values() if each.outcome == "ok" and each.qos > 0 and not each.clears),
            key=lambda each: each.since,
        )
        self._matching: dict[tuple[str, ...], list[Publish]] = {}
        self._rests = [each.at for each in history.of(Rest)]
        self.came: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
        """By client and the number of its session."""
        for delivery in history.of(Delivery):
            if not delivery.retained:
                at = self.session_at(delivery)
                self.came[delivery.client, at].append(delivery)

    def _sessions_of(self, connects: list[Connect]) -> list[Session]:
        made: list[Session] = []
        doubtful = False
        for connect in connects:
            if connect.outcome == "fail":
                continue
            if connect.outcome == "unknown":
                # It may have ended what was there.
                doubtful = doubtful or connect.clean
                if made and connect.clean:
                    made[-1].until = min(made[-1].until, connect.began)
                continue
            if made and connect.present and not connect.clean and not doubtful:
                made[-1].connections.append(connect)
            else:
                if made:
                    made[-1].until = min(made[-1].until, connect.began)
                made.append(Session(connect))
            doubtful = False
        for session in made:
            last = session.connections[-1]
            over = self.ended.get(last.number)
            # A later attempt to connect, whatever came of it: the client had given up the connection before.
            session.open = over is None and last is connects[-1]
            if over is not None and not last.keeps:
                session.until = min(session.until, over.at)
        return made

    def session_at(self, event: Event) -> int:
        """Return the number of the session in which something happened to its client; -1 before the first. Events of
        two sessions may have the same time: clocks of event loops count milliseconds."""
        return bisect_right(self.sessions[event.client], event.number, key=lambda each: each.connections[0].number) - 1

    def _subscribe(self, asked: Subscribe) -> None:
        at = self.session_at(asked)
        if asked.outcome != "ok" or at < 0:
            return
        session = self.sessions[asked.client][at]
        for each in session.subscriptions:
            if each.asked.topic_filter == asked.topic_filter and each.until == inf:
                # It goes on, perhaps with another QoS.
                each.qos = min(each.qos, asked.qos)
                return
        session.subscriptions.append(Subscription(asked))

    def _unsubscribe(self, gone: Unsubscribe) -> None:
        for session in self.sessions[gone.client]:
            for each in session.subscriptions:
                if each.asked.topic_filter == gone.topic_filter and each.asked.began < gone.began < each.until:
                    each.until, each.gone = gone.began, gone

    def acknowledged(self, *filters: str) -> list[Publish]:
        """Return the acknowledged messages with QoS 1 and 2 and a payload that match any of these filters, by
        `since`."""
        found = self._matching.get(filters)
        if found is None:
            found = [each for each in self._acknowledged if any(hits(one, each.topic) for one in filters)]
            self._matching[filters] = found
        return found

    def seen(self, at: float) -> float:
        """Return when the broker has surely seen that a connection was over at a time."""
        for began, ended in self._blind:
            if began <= at + SEEN and at <= ended:
                at = ended
        return at + SEEN

    def over(self, connect: Connect) -> float:
        """Return when the broker has surely seen that a connection, or an attempt to make one, was over."""
        ended = self.ended.get(connect.number)
        return self.seen(connect.over if ended is None else ended.at)

    def is_blind(self, began: float, ended: float) -> bool:
        """Return True if something was wrong with the broker at a time between these."""
        return any(begin <= ended and began <= end for begin, end in self._blind)

    def rest(self, at: float) -> float:
        """Return the first time from `at` on when nothing was on its way; infinite: there was none."""
        found = bisect_left(self._rests, at)
        return self._rests[found] if found < len(self._rests) else inf

    def all_sessions(self) -> Iterator[Session]:
        for found in self.sessions.values():
            yield from found
