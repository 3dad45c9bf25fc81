"""The rule book combines all access rules, and gives the verdicts.

Owns the order: the client's own rules (`claims`), then those of the settings, then mosquitto's file, which decides if
there is one, else `access.default`. Promises: a book never changes; a reload makes another. Within a book, the verdict
about the same client, action and topic is always the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from canopy_mqtt.core.hooks import FORBIDDEN
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.rules.acl_file import AclFile, read_acl_file
from canopy_mqtt.security.rules.claims import of_table
from canopy_mqtt.security.rules.rule import PUBLISH, RECEIVE, ClientMatcher, Rule
from canopy_mqtt.security.rules.rule_set import RuleSet
from canopy_mqtt.settings import Settings

REMEMBERED: Final = 16_384
"""Cached verdicts of a book for all clients with the same rules: some megabytes."""

MAX_CACHED_LENGTH: Final = 256
"""Characters of the longest topic name whose verdict is cached."""

RULES_PER_UNIT: Final = 2
"""Rules that are matched in about the time of one delivery."""

WILDCARDS: Final = frozenset("*?[")


class Verdict(NamedTuple):
    """A verdict, and the place of the rule that gave it."""

    allowed: bool
    place: str
    max_qos: int = 2


class _Group:
    """Consecutive rules of the settings for the same clients."""

    def __init__(self, clients: ClientMatcher, rules: list[Rule]) -> None:
        self.clients = clients
        self.rules = rules


class RuleBook:
    def __init__(self, settings: Settings) -> None:
        """Read all rules.

        Raises:
            SecurityError: the file of mosquitto's cannot be used.
        """
        name = settings.access.acl_file
        self._acl: AclFile | None = read_acl_file(Path(name)) if name else None
        self.files: tuple[Path, ...] = (Path(name),) if name else ()
        self._tables: list[_Group] = []
        self._by_user: dict[str, list[int]] = {}
        self._for_more: list[int] = []
        for at, table in enumerate(settings.rule):
            clients = ClientMatcher(
                table.user, table.anonymous, table.group, table.client_id, table.listener, table.address
            )
            self._tables.append(_Group(clients, of_table(table, table.place or f"rule[{at}]")))
            # Rules with user names are checked for these users alone, so that a rule for each user costs no other.
            if table.user and not any(WILDCARDS.intersection(user) for user in table.user):
                for user in table.user:
                    self._by_user.setdefault(user, []).append(at)
            else:
                self._for_more.append(at)
        default = settings.access.default or ("deny" if self._tables else "allow")
        why = "" if settings.access.default else f", since there are {'' if self._tables else 'no '}rules"
        self._default = Verdict(default == "allow", f'access.default: "{default}"{why}')
        self.rules = sum(len(group.rules) for group in self._tables) + (0 if self._acl is None else self._acl.size)
        # Rule sets in use, by the numbers of their tables, so that clients of one kind share one.
        self._sets: WeakValueDictionary[tuple[int, ...], RuleSet] = WeakValueDictionary()
        self._numbers = 0
        self._verdicts: dict[tuple[int, int, str], int] = {}

    @property
    def restricts(self) -> bool:
        """Return True if settings and files restrict any client."""
        return bool(self._tables) or self._acl is not None or not self._default.allowed

    @property
    def filters_deliveries(self) -> bool:
        """Return True if some client may not receive everything with every QoS."""
        if self._acl is not None or not self._default.allowed:
            return True
        return any(
            rule.actions & RECEIVE and (not rule.allow or rule.max_qos < 2)
            for group in self._tables
            for rule in group.rules
        )

    @property
    def ask_work(self) -> int:
        """Return the extra cost of one question in a turn's budget."""
        return self.rules // RULES_PER_UNIT

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        """Return True if a client may publish this way to a topic name."""
        return self._known(principal, PUBLISH + (qos << 3) + (32 if retain else 0), topic) >= 0

    def may_receive(self, principal: Principal, topic: str) -> bool:
        """Return True if a client may receive messages of a topic name."""
        return self._known(principal, RECEIVE, topic) >= 0

    def receive_qos(self, principal: Principal, topic: str) -> int:
        """Return the highest QoS at which a client may receive messages of a topic name; FORBIDDEN: it may not."""
        return self._known(principal, RECEIVE, topic)

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        """Return the QoS that a client is granted for a filter, or FORBIDDEN."""
        verdict = self.about_filter(principal, topic_filter)
        return min(qos, verdict.max_qos) if verdict.allowed else FORBIDDEN

    def _known(self, principal: Principal, kind: int, topic: str) -> int:
        """Return the highest QoS at a topic name, or FORBIDDEN; cached if it holds for other clients as well."""
        compiled = self._compiled(principal)
        rules = compiled.rules
        if not compiled.shared or len(topic) > MAX_CACHED_LENGTH:
            return _highest(self.about(principal, kind & 7, topic, kind >> 3 & 3, kind >= 32))
        key = (rules.number, kind, topic)
        known = self._verdicts.get(key)
        if known is None:
            known = _highest(self.about(principal, kind & 7, topic, kind >> 3 & 3, kind >= 32))
            if len(self._verdicts) >= REMEMBERED:
                self._verdicts.clear()
            self._verdicts[key] = known
        return known

    def about(self, principal: Principal, action: int, topic: str, qos: int = 0, retain: bool = False) -> Verdict:
        """Return the verdict on a client that publishes to a topic name, or receives from it (PUBLISH or RECEIVE)."""
        compiled = self._compiled(principal)
        rule = None if compiled.own is None else compiled.own.about(principal, action, topic, qos, retain)
        if rule is None:
            rule = compiled.rules.about(principal, action, topic, qos, retain)
        if rule is not None:
            return Verdict(rule.allow, rule.place, rule.max_qos)
        if self._acl is not None:
            return Verdict(*self._acl.about(principal, action, topic))
        return self._default

    def about_filter(self, principal: Principal, topic_filter: str) -> Verdict:
        """Return the verdict on a client that subscribes to a filter (without `$share/name/`)."""
        rule = self._rule_about(principal, topic_filter)
        if rule is not None:
            place = rule.place
            if _is_part(rule, principal, topic_filter):
                place = f'{place}, which denies "{rule.topic_filter}", a part of this filter'
            return Verdict(rule.allow, place, rule.max_qos)
        if self._acl is not None:
            return Verdict(True, f"{self._acl.path}: every subscription is granted, and each message looked at")
        return self._default

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        """Return True if only a part of a filter is denied."""
        rule = self._rule_about(principal, topic_filter)
        return rule is not None and _is_part(rule, principal, topic_filter)

    def _rule_about(self, principal: Principal, topic_filter: str) -> Rule | None:
        """Return the first rule that applies to a subscription; the client's own rules come first."""
        compiled = self._compiled(principal)
        rule = None if compiled.own is None else compiled.own.about_filter(principal, topic_filter)
        return compiled.rules.about_filter(principal, topic_filter) if rule is None else rule

    # -- the rules of a client -----------------------------------------------------------------------------------------

    def _compiled(self, principal: Principal) -> Compiled:
        """Return the rules of the settings that apply to a client; computed once for each connection."""
        compiled = principal.compiled
        if isinstance(compiled, Compiled) and compiled.book is self:
            return compiled
        named = self._by_user.get(principal.user_name, ()) if principal.user_name is not None else ()
        about = [at for at in _in_order(named, self._for_more) if self._tables[at].clients.matches(principal)]
        key = tuple(about)
        rules = self._sets.get(key)
        if rules is None:
            self._numbers += 1
            rules = RuleSet([rule for at in about for rule in self._tables[at].rules], self._numbers)
            self._sets[key] = rules
        own = RuleSet([rule for rule in principal.rules if isinstance(rule, Rule)]) if principal.rules else None
        made = Compiled(self, rules, own, own is None and not rules.templated and self._acl is None)
        principal.compiled = made
        return made


class Compiled:
    """The rules for one client, cached on its principal, and whether other clients share them."""

    __slots__ = ("book", "own", "rules", "shared")

    def __init__(self, book: RuleBook, rules: RuleSet, own: RuleSet | None, shared: bool) -> None:
        self.book = book
        self.rules = rules
        self.own = own
        self.shared = shared


def _is_part(rule: Rule, principal: Principal, topic_filter: str) -> bool:
    """Return True if a rule denies some topics of a filter and not others."""
    return not rule.allow and not rule.covers(principal, topic_filter)


def _in_order(some: Iterable[int], others: Iterable[int]) -> list[int]:
    return sorted({*some, *others}) if some else list(others)


def _highest(verdict: Verdict) -> int:
    return verdict.max_qos if verdict.allowed else FORBIDDEN
