"""Finds settings without effect: reported at the start and by `canopy check-config`.

Owns the checks for rules that match no client, authenticators that are never asked, and limits that a lower one makes
idle. `canopy_mqtt.settings.exposure` finds settings that admit too many clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from canopy_mqtt.settings import HttpTable, JwtTable, Listener, Settings, called
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.exposure import admits_anonymous, authenticators_of
from canopy_mqtt.settings.values import MAX_PACKET

MAX_LINES: Final = 50
"""Lines at most; one more has the number of the others."""

OF_ANY_STORE: Final = ("on_failure", "will_grace")
"""Settings of `[store]` that also apply to a store that the program passes in."""

OF_ONE_BROKER: Final = (
    "lease_timeout", "commit_bytes", "on_failure", "on_damage", "memory_bytes", "memory_total_bytes", "disk_bytes",
    "stall_timeout", "will_grace",
)  # fmt: skip
"""Settings of `[store]` that say nothing about a database that nodes share."""

WORD: Final = re.compile(r"\{[a-z_]*\}")
"""A text that looks like a placeholder for a client's name."""

MOSQUITTO: Final = re.compile(r"%[uc](?![0-9a-zA-Z])")
"""Placeholders for the user name and the client identifier in files of mosquitto and of EMQX."""


def ineffective(
    settings: Settings, embedded: bool = False, own_access_control: bool = False, own_store: bool = False
) -> Iterator[str]:
    """Yield one line for each setting that has no effect.

    `embedded`: the embedding program authenticates clients; it may give them groups, or no user name.
    `own_access_control`, `own_store`: the objects that the program uses in place of those of the settings.
    """
    lines = _all(settings, embedded, own_store)
    yield from islice(lines, MAX_LINES)
    more = sum(1 for _ in lines)
    if more:
        yield f"{more} more settings have no effect"
    unasked = [name for name in ("authenticator", "rule") if getattr(settings, name)]
    if own_access_control and unasked:
        yield (
            f"{' and '.join(f'[[{name}]]' for name in unasked)}: not used, because the program's own access control "
            "decides everything about clients"
        )


def _all(settings: Settings, embedded: bool, own_store: bool) -> Iterator[str]:
    yield from _authenticators(settings)
    for listener in settings.listeners:
        yield from _limits(listener, settings)
    yield from contradicting(settings)
    if settings.access.acl_file and settings.access.default:
        yield "access.default has no effect: access.acl_file denies what none of its lines allows"
    yield from _store(settings, own_store)
    yield from _placeholders(settings)
    yield from _rules(settings, embedded)


def _store(settings: Settings, own: bool) -> Iterator[str]:
    store = settings.store
    shares = settings.shares_sessions and not own
    if not shares and settings.cluster.dead_after != type(settings.cluster).model_fields["dead_after"].default:
        yield "cluster.dead_after has no effect without cluster.name and store.url: the nodes share no sessions"
    changed = [name for name, field in type(store).model_fields.items() if getattr(store, name) != field.default]
    if own:
        for name, place in (("store.path", store.path), ("store.url", store.url)):
            if place:
                yield f"{name}: {show(place)} is not used, because the program has its own store"
    if not store.kept:
        # One of the program's may have settings of its own; these count for any. Workers keep wills without one.
        used = OF_ANY_STORE if own else ("will_grace",) if settings.workers.count > 1 else ()
        for name in changed:
            if name not in used:
                yield f"store.{name} has no effect without store.path or store.url: everything is in memory"
        return
    if not store.url:
        for name in ("name", "lease_timeout"):
            if name in changed:
                yield f"store.{name} has no effect without store.url"
    for name in OF_ONE_BROKER if shares else ():
        if name in changed:
            yield f"store.{name} has no effect with cluster.name and store.url: the nodes share their sessions"


def _authenticators(settings: Settings) -> Iterator[str]:
    for at, table in enumerate(settings.authenticator):
        where = f'authenticator[{at}] "{called(table)}"'
        chains = [asked for listener in settings.listeners if table in (asked := authenticators_of(listener, settings))]
        if not chains:
            yield f"{where}: no listener uses it; add it to the authenticators of one"
        elif table.type != "scram-sha-256" and all(
            any(each.type in ("trust", "reject") for each in asked[: asked.index(table)]) for asked in chains
        ):
            yield f'{where}: never asked, because one of the type "trust" or "reject" stands before it'


def _limits(listener: Listener, settings: Settings) -> Iterator[str]:
    for key in ("max_packet_size", "max_connections", "max_connections_per_address"):
        own, all_of_them = getattr(listener, key), getattr(settings.limits, key)
        if own > all_of_them > 0:
            yield (
                f'listener "{listener.label}": {key} = {own} has no effect, because limits.{key} = {all_of_them} is '
                "lower and applies to all listeners"
            )
    if listener.tls is not None and listener.tls.ciphers and listener.tls.min_version == "1.3":
        yield f'listener "{listener.label}": tls.ciphers has no effect on TLS 1.3, and tls.min_version is "1.3"'


def _placeholders(settings: Settings) -> Iterator[str]:
    for text in settings.security.client_ids:
        for word in WORD.findall(text):
            if word != "{user}":
                yield f'security.client_ids: "{text}": {word} is taken literally; the user name is {{user}}'
    for listener in settings.listener:
        for word in MOSQUITTO.findall(listener.mount):
            yield f'listener "{listener.label}": mount: {word} is taken literally; write {_ours(word)}'
    for at, rule in enumerate(settings.rule):
        for text in rule.filters:
            for word in MOSQUITTO.findall(text):
                yield f'rule[{at}].filters: "{text}": {word} is taken literally; write {_ours(word)}'


def _ours(word: str) -> str:
    return "{user}" if word == "%u" else "{client}"


def _rules(settings: Settings, embedded: bool) -> Iterator[str]:
    names = [listener.label for listener in settings.listeners]
    grouped = embedded or any(
        isinstance(table, HttpTable) or (isinstance(table, JwtTable) and table.groups_claim)
        for table in settings.authenticator
    )
    # A service may let in a client that named a user as one without.
    nameless = (
        embedded
        or any(isinstance(table, HttpTable) for table in settings.authenticator)
        or any(admits_anonymous(listener, settings) for listener in settings.listeners)
    )
    for at, rule in enumerate(settings.rule):
        for pattern in rule.listener:
            if not any(fnmatchcase(name, pattern) for name in names):
                there = ", ".join(f'"{name}"' for name in names)
                yield f'rule[{at}].listener: "{pattern}" matches no listener; there are: {there}'
        if not grouped and (rule.group or all("{group}" in each for each in rule.filters)):
            yield (
                f"rule[{at}] applies to groups, but no client has one: authenticators of the types jwt (groups_claim) "
                "and http give clients their groups"
            )
        if rule.anonymous and rule.user:
            yield f"rule[{at}] applies to no client: anonymous = true and user exclude each other"
        elif rule.anonymous and not nameless:
            yield f"rule[{at}] applies to no client: anonymous = true, but no client may connect without a user name"


WAITING: Final = (
    "queue.live_bytes",
    "queue.session_bytes",
    "queue.total_bytes",
    "mqtt.max_inflight_bytes",
    "limits.max_client_bytes",
    "retained.max_bytes",
)
"""Limits on messages that are queued, in flight, or retained. Each lets one message pass if there is no other."""


def contradicting(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    largest = limits.max_packet_size or MAX_PACKET
    packet = f"limits.max_packet_size = {limits.max_packet_size}" + ("" if limits.max_packet_size else f" ({largest})")
    if limits.max_payload_size > largest:
        yield f"limits.max_payload_size = {limits.max_payload_size} has no effect, because {packet} is lower"
    if 0 < limits.max_partial_bytes < largest:
        yield (
            f"{packet} is above limits.max_partial_bytes = {limits.max_partial_bytes}: a packet that comes in pieces "
            "may end its own connection"
        )
    below = []
    for name in WAITING:
        section, key = name.split(".")
        value = getattr(getattr(settings, section), key)
        if 0 < value < largest:
            below.append(f"{name} = {value}")
    if below:
        yield (
            f"{packet} is above {', '.join(below)}: a message larger than such a limit is accepted only while nothing "
            "else is there, and whatever else comes is dropped"
        )
    if settings.recorder.directory and 0 < settings.recorder.queue_bytes < largest:
        yield (
            f"{packet} is above recorder.queue_bytes = {settings.recorder.queue_bytes}: the recorder leaves out larger "
            "messages, and records a gap"
        )
