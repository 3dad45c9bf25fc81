"""All the simulated clients of one process.

Owns: the clients and their senders, and the course of a run. ``pool`` has what the clients share.

Promises: the same plan and the same process number make the same pool.

It does not know the conductor (``worker`` does).
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections import Counter
from typing import TYPE_CHECKING, Final

from canopy_load.brokers.process import raise_file_limit
from canopy_load.checks.expected import Account, Sent, Subscriptions, account
from canopy_load.engine.clients.client import Client
from canopy_load.engine.clients.connection import clock
from canopy_load.engine.clients.pool import Pool
from canopy_load.engine.clients.sending import MAX_LAYOUTS, Sender
from canopy_load.engine.job import Job
from canopy_load.engine.schedule import BURSTS, CONSTANT, NEVER, POISSON
from canopy_load.ledger.mark import SIZE
from canopy_load.scenario import payloads
from canopy_load.scenario.plan import Plan, PlanError, Recorded
from canopy_load.scenario.scenario_schema import Properties, Publish
from canopy_mqtt.core.codec.reason_codes import name as reason_name

if TYPE_CHECKING:
    from canopy_load.capture.replay_spool import ReplaySpool

MAX_CONTENTS: Final = 64_000_000
"""Bytes of payloads from files that the laid-out frames of a process hold, a frame for each sender at least."""

ARRIVALS: Final = {"constant": CONSTANT, "poisson": POISSON, "bursts": BURSTS}


class ClientPool(Pool):
    """The clients of process `index` of a job's."""

    def __init__(self, plan: Plan, job: Job, index: int) -> None:
        super().__init__(plan, job)
        mine = [
            (group, number)
            for group, count in enumerate(plan.counts)
            for number in range(count)
            if plan.process(group, number, job.processes) == index
        ]
        _raise_file_limit(len(mine))
        self.clients = [Client(self, group, number) for group, number in mine]
        self.pending = {client for client in self.clients if plan.groups[client.group].joins is None}
        """Clients of the first phase that have neither come up nor failed yet."""
        self.senders: list[tuple[Sender, Publish, int, float]] = []
        """Each with its settings, its group, and its messages a second at a load of 1."""
        recording = job.recording()
        self._spool: ReplaySpool | None = None
        if recording is not None:
            # Only a replay needs Parquet.
            from canopy_load.capture.replay_spool import ReplaySpool

            self._spool = ReplaySpool(recording, self._recorded_publishers(), job.speed)
        self._make_senders()

    # -- senders -------------------------------------------------------------------------------------------------------

    def _make_senders(self) -> None:
        local: Subscriptions | None = None
        for client in self.clients:
            for entry in self.plan.published[client.group]:
                publish = entry.publish
                assert publish is not None
                if isinstance(entry, Recorded) and entry.client != client.number:
                    continue
                sender = self._sender(client, publish, entry.stream(client.number, 0), entry.topics)
                if isinstance(entry, Recorded):
                    self._play(sender, entry)
                client.senders.append(sender)
                rate = publish.rate or 0.0
                if publish.total_rate is not None:
                    group = self.plan.groups[client.group]
                    scale = self.plan.scenario.scale if group.scaled else 1.0
                    rate = publish.total_rate * scale / self.plan.counts[client.group]
                self.senders.append((sender, publish, client.group, rate))
                if sender.closed and sender.qos == 0:
                    if local is None:
                        local = Subscriptions(self.plan, [(each.group, each.number) for each in self.clients])
                    self._count_fans(client, sender, local)

        plan = self.plan
        for sender, _, _, _ in self.senders:
            sender.most_layouts = max(64, MAX_LAYOUTS // len(self.senders))
            found = plan.contents(int(sender.base))
            if found is not None:
                # Each layout holds what it is laid out from.
                room = MAX_CONTENTS // (len(self.senders) * max(1, found.largest))
                sender.most_layouts = max(1, min(int(sender.most_layouts), room))

    def _sender(self, client: Client, publish: Publish, base: int, topics: int) -> Sender:
        plan = self.plan
        group = plan.groups[client.group]
        source = plan.random(client.index, base)
        streams = self.streams
        sender = Sender(
            plan.mark_run,
            base,
            topics,
            lambda number: streams.topic(base + number),
            publish.qos,
            publish.retain,
            client.version,
            client.tally,
            client.session,
        )
        where = f"groups.{group.name}.publish"
        try:
            sender.size, sender.choose_size = payloads.sizes(publish.payload, source)
            if publish.payload.template is not None:
                sender.template = payloads.template(publish.payload.template, plan.run, group.name, client.number)
                sender.size = SIZE
            if publish.properties != Properties() or publish.reply_to is not None:
                reply_to = None if publish.reply_to is None else plan.reply_topic(client.group, client.number, publish)
                sender.properties = payloads.properties(publish.properties, reply_to)
                sender.correlates = reply_to is not None
                sender.wants_alias = publish.properties.topic_alias
                if publish.properties.message_expiry is not None:
                    sender.message_expiry = publish.properties.message_expiry
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from error
        found = plan.contents(base)
        if found is not None:
            sender.size = SIZE
            if (fixed := found.fixed) is not None:
                sender.template = lambda _: fixed
            else:
                sender.varied = plan.varied(base)
                sender.distinct = 0 if found.filled else len(found.lines)
        sender.pick = payloads.choice(publish, source)
        sender.arrival = ARRIVALS[publish.arrival]
        sender.burst = publish.burst if publish.arrival == "bursts" else 1
        sender.gap = lambda: source.expovariate(1.0)
        count = plan.counts[client.group]
        sender.phase = source.random() if publish.arrival == "poisson" else (client.number + 0.5) / count
        sender.remaining = publish.messages if publish.messages is not None else -1
        if publish.in_flight is not None:
            sender.closed = True
            sender.window = publish.in_flight
        return sender

    def _recorded_publishers(self) -> list[int]:
        """Return the publishers of a recording that are clients of this process."""
        numbers = {client.group: set[int]() for client in self.clients}
        for client in self.clients:
            numbers[client.group].add(client.number)
        entries = (entry for group in numbers for entry in self.plan.published[group] if isinstance(entry, Recorded))
        return [entry.client for entry in entries if entry.client in numbers[entry.group]]

    def _play(self, sender: Sender, entry: Recorded) -> None:
        assert self._spool is not None
        cursor = self._spool.cursor(entry.client)
        sender.kinds = bytes(entry.share.kinds)
        sender.lowest = entry.share.lowest
        sender.pick, sender.choose_size = cursor.pick, cursor.size
        sender.following, sender.behind = cursor.following, cursor.behind
        sender.hurry = math.isinf(self._spool.speed)

    def exhausted(self) -> bool:
        return all(sender.remaining == 0 for sender, _, _, _ in self.senders)

    def stranded(self) -> bool:
        """Return True if no client that has something left to send is connected."""
        return all(sender.remaining == 0 or sender.outlet is None for sender, _, _, _ in self.senders)

    def _count_fans(self, client: Client, sender: Sender, local: Subscriptions) -> None:
        """Count the subscribers of this process to whom each message of a sender goes."""
        base = int(sender.base)
        fans = [len(local.hear(self.plan.topic(base + number), client.index)) for number in range(int(sender.topics))]
        if min(fans) == 0:
            group = self.plan.groups[client.group].name
            topic = self.plan.topic(base + fans.index(0))
            raise PlanError(
                f"groups.{group}.publish: in_flight with QoS 0 waits for deliveries, and no subscriber in the same "
                f"process hears {topic!r}: give a rate, QoS 1, or --processes 1"
            )
        sender.fan = sum(fans) / len(fans)
        if max(fans) > 1:
            sender.fans = fans
        for number in range(int(sender.topics)):
            self.streams.sources[base + number] = sender

    # -- the course of a run -------------------------------------------------------------------------------------------

    def connect(self, base: int, groups: list[int]) -> None:
        """Let the clients of some groups connect, from `base` (microseconds) on, each in its turn."""
        loop = asyncio.get_running_loop()
        for client in self.clients:
            if client.group not in groups:
                continue
            rate = self.plan.groups[client.group].connect_rate
            intended = base + int(client.number / rate * 1e6) if rate else base
            delay = (intended - clock()) / 1e6
            if delay <= 0:
                client.connect(intended)
            else:
                loop.call_later(delay, client.connect, intended)

    def unsettled(self) -> int:
        """Return the number of clients of the first phase that have neither come up nor failed yet."""
        self.pending = {client for client in self.pending if not client.up and client.attempts == 0}
        return len(self.pending)

    def start(self, at: int) -> None:
        """Begin the stages: every subscriber of this moment has to get every message."""
        self.running = True
        self.started_at = at
        for judge in self._judges.values():
            judge.whole = judge.open and judge.absence == 0
        for client in self.clients:
            if client.up:
                client.begin()

    def set_load(self, stage: str, load: float, now: int) -> None:
        """Set the rates of a stage, or of a step of it."""
        for sender, publish, group, rate in self.senders:
            active = load > 0 and (publish.stages is None or stage in publish.stages)
            began = active and not sender.active
            if sender.active and not active and not sender.away:
                self.give_up(group, sender.give_up(now))
            sender.active = active
            if not sender.closed:
                sender.set_rate(rate * load if active else 0.0, now)
                self.scheduler.put(sender)
            elif began:
                sender.pump(now)

    def unstick(self) -> None:
        """Let closed loops go on without the deliveries that do not come."""
        now = clock()
        for sender, _, _, _ in self.senders:
            if sender.active and sender.closed and sender.qos == 0:
                if sender.returned == sender.seen and sender.forgive():
                    self.error("closed loop: no delivery for a second, going on without")
                    sender.pump(now)
                sender.seen = sender.returned

    def overdue(self, now: int) -> int:
        return sum(sender.overdue(now) for sender, _, _, _ in self.senders if sender.active and not sender.away)

    def finish_stages(self, now: int) -> list[int]:
        """Publish no more; return, by group, the number of messages that were due by `now` and stay unsent."""
        self.running = False
        self.over = True
        for sender, _, group, _ in self.senders:
            if sender.active and not sender.away:
                self.unsent[group] += int(sender.remaining) if sender.hurry else sender.overdue(now)
            sender.active = False
            sender.next_at = NEVER
        for client in self.clients:
            client.finish_stages()
        return self.unsent

    def under_way(self) -> int:
        """Count the unacknowledged PUBLISH packets with QoS 1 and 2 of connected clients, and the unanswered
        requests."""
        asked = sum(int(sender.sent) for sender, publish, _, _ in self.senders if publish.reply_to is not None)
        answered = sum(client.asked.answered for client in self.clients if client.asked is not None)
        return sum(len(client.session.unacked) for client in self.clients if client.up) + asked - answered

    def sent(self) -> Sent:
        """Return the count of sent messages as it is known now."""
        made = Sent(resent=dict(self._resent))
        for sender, _, _, _ in self.senders:
            base = int(sender.base)
            for number, count in enumerate(sender.sequences):
                if count:
                    made.streams[base + number] = count
            for stream, first, end in sender.uncertain:
                made.uncertain.setdefault(stream, []).append((first, end))
        for client in self.clients:
            for outgoing in client.session.unacked.values():
                if not outgoing.received:
                    stream = int(outgoing.sender.base) + outgoing.number
                    made.uncertain.setdefault(stream, []).append((outgoing.sequence, outgoing.sequence + 1))
        made.streams.update(self.will_sent)
        for stream, first, end in self.uncertain:
            made.uncertain.setdefault(stream, []).append((first, end))
        return made

    def accounts(self) -> list[Account]:
        return [account(judge) for judge in self._judges.values()]

    def all_errors(self) -> dict[str, int]:
        found = Counter(self.errors)
        for sender, _, _, _ in self.senders:
            for code, count in sender.refused.items():
                found[f"PUBLISH: refused: {reason_name(code)}"] += count
        return dict(found)

    def group_sent(self) -> list[tuple[int, int]]:
        """Return by group the messages sent, and those that the broker refused."""
        made = [[0, 0] for _ in self.plan.groups]
        for sender, _, group, _ in self.senders:
            made[group][0] += int(sender.sent)
            made[group][1] += sum(sender.refused.values())
        for stream, count in self.will_sent.items():
            made[self.plan.entry(stream).group][0] += count
        return [(sent, refused) for sent, refused in made]


def _raise_file_limit(clients: int) -> None:
    needed = clients + 64
    if not raise_file_limit(needed):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise PlanError(
            f"{clients} clients in one process need {needed} open files; the hard limit (ulimit -Hn) is {hard}"
        )
