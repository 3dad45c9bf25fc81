"""Which receivers of a topic may have it, and with which QoS: computed once for a route, and again if something
changes.

Owns `Reach`. Promises: access control is asked once about each receiver while its decisions stay valid, however often
subscribers come and go; its size is that of the route's receivers. Members of share groups are checked when it is their
turn, so absent ones cost nothing, and those that may have the topic's messages are remembered (`permitted`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.core.permissions import NEVER_MADE, Permissions
from broker.core.principal import Principal
from broker.core.queues.message import Message
from broker.core.routing.receivers.permitted import Permitted
from broker.core.routing.receivers.plans import FanoutPlan, Recipient
from broker.core.session.session import Session
from broker.core.topics.subscription import FilterEntry, SharedGroup, Subscription, Turns

if TYPE_CHECKING:
    from mypy_extensions import i64


class Reach:
    """The receivers of a route that may have its messages, for one version of its filters and one stamp."""

    def __init__(self, topic: bytes, permissions: Permissions) -> None:
        self.topic = topic.decode()
        self._permissions = permissions
        self._epochs: i64 = permissions.epochs
        self.ask_work: i64 = permissions.source.ask_work
        self._stamp: int = NEVER_MADE
        self._version: int = -1
        # The highest QoS for each; below 0: nothing.
        self._verdicts: dict[Principal, int] = {}
        # Everybody is among them, with the QoS that was granted, and there is no share group.
        self.everybody = True
        # Some with less: then `targets` has all, also where there is one filter.
        self.lowered = False
        # With one filter, and with several. Read them; never change them.
        self.subscriptions: list[Subscription] = []
        self.targets: list[Recipient] = []
        # Those of ordinary subscriptions that may not have it; messages since `BarredList` took the number, and whether
        # it lists this.
        self.barred: list[Principal] = []
        self.messages: i64 = 0
        self.listed = False
        # How many were asked about; and how many references are held.
        self.asked: i64 = 0
        self.references: i64 = 0
        # Of share groups: those of whose members some have been asked about.
        self._permitted: dict[Turns, Permitted] = {}

    def made_for(self, stamp: int, version: int) -> None:
        """Remember when this was worked out."""
        self._stamp = stamp
        self._version = version

    def holds(self, stamp: int, version: int) -> bool:
        """Whether nothing has changed since."""
        return self._stamp == stamp and self._version == version

    def look(self, entry: FilterEntry | None, plan: FanoutPlan | None, before: Reach | None) -> None:
        """Work it out for the receivers there are: those of one filter, or of the plan for several.

        `before`: what was worked out last, whose verdicts are kept while they hold.
        """
        known: dict[Principal, int] = {}
        permissions = self._permissions
        if before is not None and permissions.steady and before._epochs == permissions.epochs:
            known = before._verdicts
            self._permitted = before._alive()
        if self._verdicts:
            known = {**known, **self._verdicts}
        self.barred = []
        if entry is not None:
            for subscription in entry.subscriptions:
                most = self._find(cast(Session, subscription.session), known)
                if most < 0:
                    self.barred.append(cast(Session, subscription.session).principal)
                else:
                    self.subscriptions.append(subscription)
                    if most < subscription.qos:
                        self.lowered = True
                        self.subscriptions = []
                        return
            self.everybody = len(self.subscriptions) == entry.ordinary_count and not entry.groups
            if self.everybody:
                self.subscriptions = []
            self.references = len(self.subscriptions) + len(self._verdicts) + len(self.barred)
        elif plan is not None:
            for target in plan.targets:
                most = self._find(target.session, known)
                if most < 0:
                    self.barred.append(target.session.principal)
                else:
                    if most < target.qos:
                        self.lowered = True
                        target = target.capped(most)
                    self.targets.append(target)
            self.everybody = len(self.targets) == len(plan.targets) and not plan.groups and not self.lowered
            if self.everybody:
                self.targets = []
            self.references = plan.references + len(self.targets) + len(self._verdicts) + len(self.barred)
        for each in self._permitted.values():
            self.references += len(each)

    def _find(self, session: Session, known: dict[Principal, int]) -> int:
        if session.own:
            return 2
        principal = session.principal
        verdict = known.get(principal)
        if verdict is None:
            self.asked += 1
            verdict = self._permissions.receive_qos(principal, self.topic)
        self._verdicts[principal] = verdict
        return verdict

    def may(self, session: Session) -> bool:
        """Whether one more, a member of a share group, may have it; remembered where it may."""
        if session.own:
            return True
        principal = session.principal
        verdict = self._verdicts.get(principal)
        if verdict is None:
            self.asked += 1
            verdict = self._permissions.receive_qos(principal, self.topic)
            if verdict >= 0:
                self._verdicts[principal] = verdict
                # The verdict, and the place among those that may.
                self.references += 2
        return verdict >= 0

    def permitted(self, group: SharedGroup, turns: Turns) -> Permitted:
        """The members of a share group that may have it: of those that are connected, or of the others (`turns`)."""
        found = self._permitted.get(turns)
        if found is None:
            found = Permitted(group, turns)
            self._permitted[turns] = found
        return found

    def follow(self, other: Reach) -> None:
        """Know of share groups what another one for the topic knows, and change nothing there."""
        if self._permissions.steady and other._epochs == self._permissions.epochs:
            self._permitted = {turns: each.copy() for turns, each in other._permitted.items()}

    def _alive(self) -> dict[Turns, Permitted]:
        """What is known of share groups, as far as it still holds."""
        return {turns: each for turns, each in self._permitted.items() if each.holds}

    def qos(self, session: Session, qos: int) -> int:
        """The QoS with which one that may have it is sent it, of the QoS that it would be."""
        return min(qos, self._find(session, self._verdicts))


def share_qos(message: Message, member: Subscription, reach: Reach | None) -> int:
    """With which QoS a member of a share group is sent a message; `reach` None: as it was granted."""
    qos = message.qos if message.qos < member.qos else member.qos
    return qos if reach is None else reach.qos(cast(Session, member.session), qos)
