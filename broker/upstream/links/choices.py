"""Converts the settings of a link into terms of the upstream and of the core.

Owns the conversion, as functions; some of them read files. Promises: filters without a name upstream are omitted; what
cannot be read is a ValueError in one line that names the setting, and never its content.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from broker.core.codec.framing import LARGEST_PACKET
from broker.core.limits import Limits
from broker.core.queues.delivery import SubscriptionQueue
from broker.core.queues.policies.queue_policy import DROP_NEWEST, LATEST, POLICIES
from broker.settings import Settings, Upstream
from broker.upstream.filters.budget import BudgetLedger
from broker.upstream.filters.ledger import Ledger, UpstreamSubscriptions
from broker.upstream.filters.mapping import Mapping
from broker.upstream.protocol.session import UplinkSession
from broker.upstream.protocol.uplink import Offer


def names(topic_filters: Iterable[str], mapping: Mapping) -> list[str]:
    """Local filters as they are upstream, each once, without those that have no name there."""
    found = (mapping.remote_filter(each) for each in topic_filters)
    return [name for name in dict.fromkeys(found) if name is not None]


def ledger(settings: Upstream, mapping: Mapping, upstream: UpstreamSubscriptions) -> Ledger | BudgetLedger:
    """The ledger that the settings ask for, with nothing in it."""
    unfolded = names(settings.unfolded, mapping)
    if settings.aggregate == "auto":
        roots = names(settings.roots, mapping)
        return BudgetLedger(upstream, settings.max_filters, roots, unfolded, settings.hold)
    return Ledger(upstream, names(settings.aggregate, mapping), unfolded)


def published(settings: Upstream, mapping: Mapping) -> list[str]:
    """The local filters of what goes up: under the local prefix, since nothing else has a name there."""
    remote = len(mapping.remote)
    return [mapping.local + name[remote:] for name in names(settings.publish, mapping)]


def may_be_stale(settings: Upstream, mapping: Mapping) -> list[str]:
    """What a link with these settings may have asked for before this program started."""
    return names(settings.roots if settings.aggregate == "auto" else settings.aggregate, mapping)


def queue(settings: Upstream, session: UplinkSession) -> tuple[int, SubscriptionQueue | None, int, int]:
    """What `Session.limit` takes."""
    policy = POLICIES.index(settings.policy)
    sub_queue = None
    if policy == LATEST:
        sub_queue = SubscriptionQueue(session, policy, 0.0, 0)
    return _plain(policy), sub_queue, settings.queue_messages, settings.queue_bytes


def _plain(policy: int) -> int:
    """The policy of a queue beside its lane. Full of topics, it takes no more."""
    return DROP_NEWEST if policy == LATEST else policy


def password(settings: Upstream) -> str:
    """The password of a link, "" for none. Raises ValueError when its file cannot be read."""
    if not settings.password_file:
        return settings.password
    try:
        with open(settings.password_file, encoding="utf-8-sig") as file:
            return file.readline().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"password_file {settings.password_file}: it is not UTF-8") from error
    except OSError as error:
        raise ValueError(f"password_file {settings.password_file}: {error.strerror or error}") from error


def unreadable(settings: Settings) -> list[str]:
    """What is wrong with the files that links need, one line each. It reads them: not for an event loop."""
    found: list[str] = []
    for number, link in enumerate(settings.upstream):
        for read in (password, tls):
            try:
                read(link)
            except ValueError as error:
                found.append(f'upstream[{number}] "{link.name}": {error}')
    return found


def offer(settings: Upstream, whole: Settings, limits: Limits, broker_id: str) -> Offer:
    """What is offered to the upstream. Raises ValueError when the password cannot be read."""
    made = Offer()
    made.client_id = settings.client_id or f"canopy-{broker_id}-{settings.name}"
    made.user_name = settings.username or None
    secret = password(settings)
    made.password = secret.encode() if secret else None
    made.keep_alive = settings.keep_alive
    made.session_expiry = settings.session_expiry
    made.status_topic = settings.status_topic
    made.receive_maximum = limits.receive_maximum
    made.max_inflight = limits.max_inflight
    made.max_packet_size = min(limits.max_packet_size, LARGEST_PACKET)
    made.queue_policy = _plain(POLICIES.index(settings.policy))
    made.live_messages = whole.queue.live_messages
    made.live_bytes = whole.queue.live_bytes
    return made


def tls(settings: Upstream) -> ssl.SSLContext | None:
    """How the connection is secured. Raises ValueError when a file cannot be used."""
    if not settings.remote.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:
        raise ValueError(f"ca_file, cert_file or key_file cannot be used: {error}") from error
    return context
