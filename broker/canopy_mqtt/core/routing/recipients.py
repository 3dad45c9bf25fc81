"""Computes the recipients of the messages of a topic: computed once for a route, and updated when something changes.

`refresh` alone fills a route, from the present filters, subscriptions and permissions; a refreshed route always equals
a new one. A change of a few subscriptions costs in proportion to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from canopy_mqtt.core.hooks import Permissions
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.routing.verdicts import Barred, Verdicts
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import NO_GROUPS, NO_RECIPIENTS, Changes, MatchCache, Route
from canopy_mqtt.core.topics.subscription import (
    FilterEntry,
    MergedRecipient,
    Recipient,
    Subscription,
    subscription_identifiers,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_MENDED_SESSIONS: Final = 128
"""Sessions for which a route is mended; beyond, or with fewer subscriptions, it is computed anew."""

MERGED_WEIGHT: Final = 12
"""The weight of a merged recipient in the match cache beside its place, in references: 80 bytes and a tuple."""

PLACE_WEIGHT: Final = 8
"""The weight of a session's place in a route that was mended, in references."""

NO_FILTERS: Final = 0
"""The stamp of a route while access control, if there is one, lets each receiver have each message."""


# -- one session -------------------------------------------------------------------------------------------------------


def merge(parts: list[Subscription]) -> Recipient:
    """Return the recipient of one session's subscriptions that match a topic: the only one itself.

    A message waits once: on the terms of the session if one of the subscriptions has none of its own, or else on those
    of the subscription whose topic filter comes first in the alphabet.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    qos = 0
    as_published = no_local = False
    found: list[int] = []
    others: list[Subscription] = []
    for part in parts:
        if part.qos > qos:
            qos = part.qos
        if part.retain_as_published:
            as_published = True
        if part.no_local:
            no_local = True
        else:
            others.append(part)
        if part.identifier > 0:
            found.append(part.identifier)  # [MQTT-3.3.4-4]
        if first.message_terms is not None and (part.message_terms is None or part.topic_filter < first.topic_filter):
            first = part
    made = MergedRecipient(first.session, qos, no_local, as_published, tuple(found), first.message_terms)
    if no_local and others:
        # The subscriptions with No Local do not count for the session's own messages; the others still do.
        made.others = merge(others)
    return made


def lowered(recipient: Recipient, qos: int) -> Recipient:
    """Return a copy of a recipient with a lower QoS: access control allows no more."""
    identifiers, terms = subscription_identifiers(recipient), recipient.message_terms
    made = MergedRecipient(
        recipient.session, qos, recipient.no_local, recipient.retain_as_published, identifiers, terms
    )
    others = recipient.others if isinstance(recipient, MergedRecipient) else None
    made.others = others if others is None or others.qos <= qos else lowered(others, qos)
    return made


def _weight(recipient: Recipient) -> i64:
    """Return the references that a recipient holds, with its place in a list."""
    if not isinstance(recipient, MergedRecipient):
        return 1
    weight: i64 = 1 + MERGED_WEIGHT + len(recipient.identifiers)
    others = recipient.others
    if isinstance(others, MergedRecipient):
        weight += _weight(others)
    return weight


def matching(session: Session, entries: list[FilterEntry]) -> list[Subscription]:
    """Return a session's ordinary subscriptions to these filters."""
    found: list[Subscription] = []
    subscriptions = session.subscriptions
    for entry in entries:
        # Ordinary subscriptions stand under their filter.
        subscription = subscriptions.get(entry.topic_filter)
        if subscription is not None and subscription.entry is entry and subscription.group is None:
            found.append(subscription)
    return found


# -- a route -----------------------------------------------------------------------------------------------------------


def refresh(route: Route, cache: MatchCache, permissions: Permissions | None, stamp: i64, max_built: i64) -> i64:
    """Compute the recipients of a route that was renewed, as far as something has changed. Return the work, in
    deliveries.

    `stamp`: that of the permissions. With more than `max_built` subscriptions behind several filters they are not
    computed anew, unless access control says who may have what: `Route.built` is False then.
    """
    changes = cache.changes
    since: i64 = route.as_of
    # From before access control is asked: a change that is made meanwhile is not in the answers.
    now: i64 = changes.count
    work: i64 = 0
    if route.built_of != route.version or (not route.built and stamp != NO_FILTERS):
        # One that was too large to build is built now if rules have come into force: they say who of all may have it.
        work = _gather(route, changes, since, max_built if stamp == NO_FILTERS else 1 << 60)
    elif route.stamp == stamp:
        route.as_of = now
        return 0
    return work + _allow(route, cache, permissions, stamp, now)


def build(route: Route, cache: MatchCache) -> i64:
    """Compute the recipients of a refreshed route that has too many for that. Return the work, in deliveries."""
    return _gather(route, cache.changes, -1, 1 << 60) + _allow(route, cache, None, NO_FILTERS, cache.changes.count)


def install(route: Route, cache: MatchCache, everyone: list[Recipient]) -> None:
    """Make these the recipients of a refreshed route, which is for very many and had none."""
    _set_everyone(route, everyone)
    cache.changes.keep()
    _allow(route, cache, None, NO_FILTERS, cache.changes.count)


def _gather(route: Route, changes: Changes, since: i64, max_built: i64) -> i64:
    """Set who subscribes: whatever depends on subscriptions, and not on permissions."""
    entries = route.entries
    listeners: i64 = 0
    groups = NO_GROUPS
    for entry in entries:
        if entry.only is not None:
            listeners += 1
            continue
        many = entry.many
        if many is not None:
            listeners += len(many.subscriptions)
            if many.groups:
                groups = groups + [group for group in many.groups.values() if group.home is None]
    route.listeners = listeners
    route.list_references += len(groups) - len(route.groups)
    route.groups = groups
    route.built_of = route.version
    if len(entries) < 2:
        many = entries[0].many if entries else None
        # The filter's own list, which is never copied: a route is used before anything changes, or refreshed.
        route.everyone = NO_RECIPIENTS if many is None else cast("list[Recipient]", many.subscriptions)
        route.places = None
        route.built = True
        route.own_list = False
        route.list_references = len(groups)
        return 0
    if route.own_list and listeners > MAX_MENDED_SESSIONS:
        made = _mend(route, changes, since)
        if made >= 0:
            return (1 + made) * len(entries) + len(groups)
    if listeners > max_built:
        _set_everyone(route, NO_RECIPIENTS)
        route.built = route.own_list = False
        return 0
    parts: dict[Session, list[Subscription]] = {}
    for entry in entries:
        for subscription in entry.subscriptions:
            session = subscription.session
            found = parts.get(session)
            if found is None:
                parts[session] = [subscription]
            else:
                found.append(subscription)
    _set_everyone(route, [merge(each) for each in parts.values()])
    if listeners > MAX_MENDED_SESSIONS:
        changes.keep()  # so that it can be mended
    # Also what many subscriptions of one session took: a client that changes one of them each time pays for all.
    return route.list_references + listeners


def _set_everyone(route: Route, everyone: list[Recipient]) -> None:
    route.everyone = everyone
    route.places = None
    route.built = route.own_list = True
    references: i64 = len(route.groups)
    for recipient in everyone:
        references += _weight(recipient)
    route.list_references = references


def _mend(route: Route, changes: Changes, since: i64) -> i64:
    """Update the recipients of the sessions whose subscriptions have changed. Return how many; -1: compute all anew."""
    begin: i64 = changes.since(since)
    if begin < 0:
        return -1
    entries = route.entries
    everyone = route.everyone
    places = route.places
    if places is None:
        places = {}
        for at in range(len(everyone)):
            places[everyone[at].session] = at
        route.places = places
        route.list_references += PLACE_WEIGHT * len(everyone)
    present = set(entries)
    changed: dict[Session, None] = {}
    for index in range(begin, len(changes.sessions)):
        session = changes.sessions[index]
        entry = changes.entries[index]
        if session is not None and entry is not None and (entry in present or (entry.retired and session in places)):
            changed[session] = None
    # Where a few sessions have most of the subscriptions, to compute all anew is less work.
    if len(changed) > MAX_MENDED_SESSIONS or len(changed) * len(entries) > route.listeners + MAX_MENDED_SESSIONS:
        return -1
    for session in changed:
        found = matching(session, entries)
        place = places.get(session)
        if found:
            made = merge(found)
            route.list_references += _weight(made)
            if place is None:
                places[session] = len(everyone)
                everyone.append(made)
                route.list_references += PLACE_WEIGHT
            else:
                route.list_references -= _weight(everyone[place])
                everyone[place] = made
        elif place is not None:
            del places[session]
            route.list_references -= _weight(everyone[place]) + PLACE_WEIGHT
            last = everyone.pop()
            if place < len(everyone):
                everyone[place] = last
                places[last.session] = place
    return len(changed)


def _allow(route: Route, cache: MatchCache, permissions: Permissions | None, stamp: i64, now: i64) -> i64:
    """Set who may have the messages, of those who subscribe. Return the work, in deliveries."""
    entries = route.entries
    everyone = route.everyone
    receivers = everyone
    work: i64 = 0
    only: Recipient | None = None
    if len(entries) == 1:
        only = entries[0].only
    route.barred = None
    before = route.verdicts
    route.verdicts = None
    references: i64 = route.list_references
    if stamp != NO_FILTERS and permissions is not None:
        verdicts = Verdicts(route.topic, permissions, before)
        allowed: list[Recipient] = []
        barred: list[Principal] = []
        copies: i64 = 0
        for recipient in everyone if only is None else [only]:
            qos = verdicts.find(recipient.session)
            if qos < 0:
                barred.append(recipient.session.principal)
            elif qos < recipient.qos:
                copies += 1
                allowed.append(lowered(recipient, qos))
            else:
                allowed.append(recipient)
        verdicts.forget_others()
        if barred:
            route.barred = Barred(route.topic, barred)
        if copies > 0 or barred or cache.changes.count != now:
            receivers = allowed
            only = None
            references += len(allowed) + MERGED_WEIGHT * copies
        route.verdicts = verdicts
        references += verdicts.references() + len(barred)
        work = references + verdicts.work()
    route.receivers = receivers
    whole = receivers is everyone
    route.run_key = entries[0] if len(entries) == 1 and whole and not route.groups else None
    if only is None and len(receivers) == 1 and route.barred is None:
        only = receivers[0]
    route.sole = only if not route.groups else None
    route.as_of = now
    route.stamp = stamp
    cache.charge(route, references)
    return work
