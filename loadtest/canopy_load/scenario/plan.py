"""The clients, streams and subscriptions of a run, with the numbers by which everything is counted.

Owns: the numbering. Publishing entries get consecutive stream numbers (one for each client and topic), wills one for
each client; subscribers are numbered in the order of groups and clients, members of a shared subscription in a group
together after them. Every process has the whole plan and computes the same numbers.

Promises: nothing here costs memory for each client or stream; numbers are computed. Only a file of users is kept, line
by line. Client %c of each group belongs to process %c modulo the number of processes, except that a group with shared
filters is all in one.

Refuses: what cannot be numbered, with a ``PlanError`` for people.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from canopy_load.capture.recording import PUBLISHERS, Recording, Share
from canopy_load.errors import Misuse
from canopy_load.ledger.mark import run_number
from canopy_load.scenario import payloads, users
from canopy_load.scenario.contents import Contents, contents
from canopy_load.scenario.patterns import Pattern
from canopy_load.scenario.scenario_schema import MAX_STREAMS, Group, Publish, Scenario
from canopy_load.scenario.users import Credentials
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import parse_shared, validate_filter, validate_topic


class PlanError(Misuse):
    """A scenario that cannot be played; the message names the key."""


@dataclass(frozen=True)
class Entry:
    """One `publish` of one group, or its will; its streams begin at `base`."""

    group: int
    publish: Publish | None
    base: int
    clients: int
    topics: int
    pattern: Pattern

    @property
    def end(self) -> int:
        """One above its last stream."""
        return self.base + self.clients * self.topics

    def stream(self, client: int, number: int) -> int:
        return self.base + client * self.topics + number

    def owner(self, stream: int) -> tuple[int, int]:
        return divmod(stream - self.base, self.topics)

    def topic(self, run: str, group: str, client: int, number: int) -> str:
        return self.pattern.expand(run, group, client, number)


@dataclass(frozen=True)
class Recorded(Entry):
    """The part of a recording that one client of a group plays: `clients` is 1, and `client` says which one."""

    client: int
    share: Share
    prefix: str

    def stream(self, client: int, number: int) -> int:
        del client
        return self.base + number

    def owner(self, stream: int) -> tuple[int, int]:
        return self.client, stream - self.base

    def topic(self, run: str, group: str, client: int, number: int) -> str:
        del run, group, client
        return self.prefix + self.share.topics[number]


@dataclass(frozen=True)
class Filters:
    """One `subscribe` of one group."""

    pattern: Pattern
    count: int
    qos: int


class Plan:
    """A scenario with its numbers. `run` is the run's identifier: 8 hexadecimal digits. A recording is played by the
    clients of its group `PUBLISHERS`."""

    def __init__(self, scenario: Scenario, run: str, recording: Recording | None = None) -> None:
        self.scenario = scenario
        self.run = run
        self.mark_run = run_number(run)
        self.groups: list[Group] = scenario.groups
        self.counts = [
            max(1, round(group.clients * scenario.scale)) if group.scaled else group.clients
            for group in scenario.groups
        ]
        self.ids = [_pattern(group.client_id, f"groups.{group.name}.client_id") for group in scenario.groups]
        self._user_names = [_credential(group, "user_name") for group in scenario.groups]
        self._passwords = [_credential(group, "password") for group in scenario.groups]
        self._users = [_users(group) for group in scenario.groups]
        self._replies: dict[tuple[int, str], Pattern] = {}
        self.wall = 0
        """Microseconds since 1970 at 0 of the monotonic clock, the same figure in all processes."""
        self._contents: dict[int, Contents] = {}
        """The contents of payloads from files, by the first stream of their entry."""
        self.entries: list[Entry] = []
        self.wills: dict[int, Entry] = {}
        self.published: list[list[Entry]] = []
        base = 0
        for number, group in enumerate(scenario.groups):
            mine: list[Entry] = []
            for index, publish in enumerate(group.publish):
                pattern = _pattern(publish.topic, f"groups.{group.name}.publish.{index}.topic")
                mine.append(Entry(number, publish, base, self.counts[number], publish.topics, pattern))
                if publish.reply_to is not None:
                    where = f"groups.{group.name}.publish.{index}.reply_to"
                    self._replies[number, publish.reply_to] = _pattern(publish.reply_to, where)
                self._read_contents(f"groups.{group.name}.publish.{index}.payload", publish, base)
                base = mine[-1].end
            if recording is not None and group.name == PUBLISHERS:
                for each in _recorded(recording, number, base):
                    mine.append(each)
                    base = each.end
            self.published.append(mine)
            self.entries += mine
            if group.will is not None:
                pattern = _pattern(group.will.topic, f"groups.{group.name}.will.topic")
                self.wills[number] = Entry(number, None, base, self.counts[number], 1, pattern)
                self.entries.append(self.wills[number])
                base = self.wills[number].end
        self.streams = base
        if base >= MAX_STREAMS:
            raise PlanError(f"{base} streams (clients times topics): at most {MAX_STREAMS - 1} can be told apart")
        self.filters = [
            [
                Filters(_pattern(each.filter, f"groups.{group.name}.subscribe.{index}.filter"), each.filters, each.qos)
                for index, each in enumerate(group.subscribe)
            ]
            for group in scenario.groups
        ]
        self.shared = [
            bool(group.subscribe) and group.subscribe[0].filter.startswith("$share/") for group in self.groups
        ]
        self._bases: list[int] = []
        total = 0
        for count in self.counts:
            self._bases.append(total)
            total += count
        self.clients = total
        self._check()

    @cached_property
    def _starts(self) -> list[int]:
        return [entry.base for entry in self.entries]

    # -- numbers -------------------------------------------------------------------------------------------------------

    def client(self, group: int, number: int) -> int:
        """The number of a client in the whole run, which is its number as a subscriber too."""
        return self._bases[group] + number

    def who(self, client: int) -> tuple[int, int]:
        group = bisect_right(self._bases, client) - 1
        return group, client - self._bases[group]

    def client_id(self, group: int, number: int) -> str:
        return self.ids[group].expand(self.run, self.groups[group].name, number)

    def credentials(self, group: int, number: int) -> Credentials:
        """User name and password of a client; None: not sent. The lines of a file are taken in turn."""
        known = self._users[group]
        if known:
            return known[number % len(known)]
        user_name, password = self._user_names[group], self._passwords[group]
        name = self.groups[group].name
        return (
            None if user_name is None else user_name.expand(self.run, name, number),
            None if password is None else password.expand(self.run, name, number),
        )

    def any_credentials(self) -> Credentials:
        """Return the credentials of the first client that has any."""
        found = (self.credentials(group, 0) for group in range(len(self.groups)))
        return next((each for each in found if each != (None, None)), (None, None))

    def entry(self, stream: int) -> Entry:
        return self.entries[bisect_right(self._starts, stream) - 1]

    def topic(self, stream: int) -> str:
        """The topic name of a stream; empty when there is no such stream."""
        if not 0 <= stream < self.streams:
            return ""
        entry = self.entry(stream)
        client, number = entry.owner(stream)
        return entry.topic(self.run, self.groups[entry.group].name, client, number)

    def quality(self, stream: int) -> int:
        entry = self.entry(stream)
        if isinstance(entry, Recorded):
            return entry.share.kinds[stream - entry.base] & 3
        if entry.publish is not None:
            return entry.publish.qos
        will = self.groups[entry.group].will
        return will.qos if will is not None else 0

    def around(self, stream: int) -> tuple[bytes, bytes] | None:
        """Return the payload of a stream before and behind the mark; None if the payload is no template."""
        entry = self.entry(stream)
        text = entry.publish.payload.template if entry.publish is not None else None
        if text is None:
            found = self._contents.get(entry.base)
            return found.fixed if found is not None else None
        client, number = entry.owner(stream)
        return payloads.template(text, self.run, self.groups[entry.group].name, client)(number)

    def contents(self, stream: int) -> Contents | None:
        """Return the contents of a stream's payloads if they come from a file."""
        return self._contents.get(self.entry(stream).base)

    def varied(self, stream: int) -> Callable[[int, int], tuple[bytes, bytes]] | None:
        """Return a function from sequence number and intended time to the payload before and behind the mark; None if
        all messages of the stream have the same."""
        found = self.contents(stream)
        if found is None or found.fixed is not None:
            return None
        around, wall = found.around, self.wall
        return lambda sequence, time: around(sequence, (time + wall) // 1000)

    def publisher(self, stream: int) -> int:
        entry = self.entry(stream)
        return self.client(entry.group, entry.owner(stream)[0])

    def subscriber(self, group: int, number: int) -> int:
        """The number under which deliveries to a client are counted: its own, or that of its shared subscription."""
        return self.client(group, 0 if self.shared[group] else number)

    def subscriber_name(self, subscriber: int) -> str:
        group, number = self.who(subscriber)
        return f"{self.groups[group].name} (shared)" if self.shared[group] else self.client_id(group, number)

    def topic_filters(self, group: int, number: int) -> Iterator[tuple[str, int, int]]:
        """Topic filter, QoS and index of the `subscribe` entry, for every subscription of a client."""
        name = self.groups[group].name
        for index, filters in enumerate(self.filters[group]):
            for at in range(filters.count):
                yield filters.pattern.expand(self.run, name, number, at), filters.qos, index

    def reply_topic(self, group: int, number: int, publish: Publish) -> str:
        return self._replies[group, publish.reply_to or ""].expand(self.run, self.groups[group].name, number)

    def reply_topics(self, group: int, number: int) -> list[tuple[str, int]]:
        """Every response topic of a client, with the QoS of its subscription."""
        found: dict[str, int] = {}
        for entry in self.published[group]:
            publish = entry.publish
            if publish is not None and publish.reply_to is not None:
                topic = self.reply_topic(group, number, publish)
                found[topic] = max(publish.qos, found.get(topic, 0))
        return list(found.items())

    def process(self, group: int, number: int, processes: int) -> int:
        return group % processes if self.shared[group] else number % processes

    def random(self, client: int, salt: int = 0) -> random.Random:
        """A source of randomness for one client: the same in every run with the same seed."""
        return random.Random(f"{self.scenario.seed}/{client}/{salt}")

    def _read_contents(self, where: str, publish: Publish, base: int) -> None:
        try:
            found = contents(publish.payload)
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from error
        if found is not None:
            self._contents[base] = found

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """The first and the last name of every pattern, which shows nearly all that can be wrong with it."""
        for number, group in enumerate(self.groups):
            last = self.counts[number] - 1
            if last and not self.ids[number].uses("c"):
                raise PlanError(
                    f"groups.{group.name}.client_id: needs %c: there are {last + 1} clients, and two with "
                    "one identifier would throw each other out"
                )
            for entry in [*self.published[number], *([self.wills[number]] if number in self.wills else [])]:
                if isinstance(entry, Recorded):
                    continue  # all its topics were looked at when the recording was read
                for client, topic in ((0, 0), (last, entry.topics - 1)):
                    self._check_topic(group, entry.topic(self.run, group.name, client, topic))
                if entry.publish is not None and entry.publish.reply_to is not None:
                    self._check_replies(number, entry.publish)
                if entry.topics > 1 and not entry.pattern.uses("n"):
                    raise PlanError(
                        f"groups.{group.name}: topic {entry.pattern.text!r} needs %n: it stands for "
                        f"{entry.topics} topics"
                    )
            for client in {0, last}:
                for topic_filter, _, _ in self.topic_filters(number, client):
                    self._check_filter(group, topic_filter)
                if group.churn is not None:
                    churn = _pattern(group.churn.filter, f"groups.{group.name}.churn.filter")
                    for at in (0, group.churn.filters - 1):
                        self._check_filter(group, churn.expand(self.run, group.name, client, at))
            shares = {parse_shared(name)[0] for name, _, _ in self.topic_filters(number, 0)}
            if self.shared[number] and (
                len(shares) > 1 or any(filters.pattern.varies for filters in self.filters[number])
            ):
                raise PlanError(
                    f"groups.{group.name}.subscribe: all members of a group share the same filters, under "
                    "one share name: no %c and no %n there"
                )

    def _check_replies(self, group: int, publish: Publish) -> None:
        settings, last = self.groups[group], self.counts[group] - 1
        pattern = self._replies[group, publish.reply_to or ""]
        if pattern.uses("n") or (last and not pattern.uses("c")):
            raise PlanError(f"groups.{settings.name}: reply_to {pattern.text!r} needs %c and takes no %n")
        for client in (0, last):
            self._check_topic(settings, self.reply_topic(group, client, publish))

    @staticmethod
    def _check_topic(group: Group, topic: str) -> None:
        try:
            validate_topic(topic)
        except ProtocolError as error:
            raise PlanError(f"groups.{group.name}: topic {topic!r}: {error}") from error

    @staticmethod
    def _check_filter(group: Group, topic_filter: str) -> None:
        try:
            validate_filter(parse_shared(topic_filter)[1])
        except ProtocolError as error:
            raise PlanError(f"groups.{group.name}: filter {topic_filter!r}: {error}") from error


SECOND: Final = 1_000_000
"""Microseconds."""


def _recorded(recording: Recording, group: int, base: int) -> Iterator[Recorded]:
    """An entry for each publisher that has something to play."""
    for client, share in enumerate(recording.shares):
        if share.topics:
            publish = Publish(topic="recorded", qos=share.highest, rate=1.0, messages=share.messages)
            topics = len(share.topics)
            entry = Recorded(group, publish, base, 1, topics, Pattern(""), client, share, recording.prefix)
            base = entry.end
            yield entry


def _credential(group: Group, key: str) -> Pattern | None:
    text = getattr(group, key)
    if text is None:
        return None
    where = f"groups.{group.name}.{key}"
    try:
        pattern = Pattern(text)
    except ValueError:
        # What stands there is nobody else's.
        raise PlanError(f"{where}: unknown pattern; a percent sign is written %%") from None
    if pattern.uses("m") or pattern.uses("n"):
        raise PlanError(f"{where}: no %m and no %n there")
    return pattern


def _users(group: Group) -> list[Credentials]:
    if group.users is None:
        return []
    try:
        return users.read(group.users)
    except ValueError as error:
        raise PlanError(f"groups.{group.name}.users: {error}") from error


def _pattern(text: str, where: str) -> Pattern:
    try:
        pattern = Pattern(text)
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error
    if pattern.uses("m"):
        raise PlanError(f"{where}: %m stands in templates of payloads only")
    return pattern
