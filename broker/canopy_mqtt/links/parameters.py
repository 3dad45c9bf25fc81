"""Converts the settings of a link into terms of the upstream and of the core.

Owns the conversion, as functions; some of them read files. Promises: filters without a name upstream are omitted; what
cannot be read is a ValueError in one line that names the setting, and never its content.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, LATEST, POLICIES, MessageTerms, SubscriptionTerms
from canopy_mqtt.files import check_files, open_file
from canopy_mqtt.links.filters.aggregated import AggregatedFilters, UpstreamSubscriptions
from canopy_mqtt.links.filters.budget import BudgetedFilters
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.protocol.session import UplinkSession
from canopy_mqtt.links.protocol.uplink import ConnectTerms
from canopy_mqtt.settings import Settings, Upstream


def names(topic_filters: Iterable[str], mapping: Mapping) -> list[str]:
    """Return local filters under their upstream names, each once, without those that have no name there."""
    found = (mapping.remote_filter(each) for each in topic_filters)
    return [name for name in dict.fromkeys(found) if name is not None]


def local_filters(
    settings: Upstream, mapping: Mapping, upstream: UpstreamSubscriptions
) -> AggregatedFilters | BudgetedFilters:
    """Return the empty set of local filters, as the settings fold them."""
    unfolded = names(settings.unfolded, mapping)
    if settings.aggregate == "auto":
        roots = names(settings.roots, mapping)
        return BudgetedFilters(upstream, settings.max_filters, roots, unfolded, settings.hold)
    return AggregatedFilters(upstream, names(settings.aggregate, mapping), unfolded)


def published(settings: Upstream, mapping: Mapping) -> list[str]:
    """Return the local filters of messages that go up: under the local prefix, since others have no name there."""
    remote = len(mapping.remote)
    return [mapping.local + name[remote:] for name in names(settings.publish, mapping)]


def may_be_stale(settings: Upstream, mapping: Mapping) -> list[str]:
    """Return the upstream filters that a link with these settings may have subscribed to before this program
    started."""
    return names(settings.roots if settings.aggregate == "auto" else settings.aggregate, mapping)


def queue(settings: Upstream, session: UplinkSession) -> tuple[int, MessageTerms | None, int, int]:
    """Return the arguments of `Session.limit`: the policy, the queue of a `latest` subscription, messages, bytes."""
    policy = POLICIES.index(settings.policy)
    message_terms = None
    if policy == LATEST:
        message_terms = MessageTerms(session, SubscriptionTerms(policy, 0.0))
    return _plain(policy), message_terms, settings.queue_messages, settings.queue_bytes


def _plain(policy: int) -> int:
    """Return the policy of a queue beside its `latest` lane, which takes no more when it is full of topics."""
    return DROP_NEWEST if policy == LATEST else policy


def password(settings: Upstream) -> str:
    """The password of a link, "" for none. Raises ValueError when its file cannot be read or is empty."""
    if not settings.password_file:
        return settings.password
    try:
        with open_file(settings.password_file) as file:
            found = file.readline().decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"password_file {settings.password_file}: it is not UTF-8") from error
    except OSError as error:
        raise ValueError(f"password_file {settings.password_file}: {error.strerror or error}") from error
    if not found:
        raise ValueError(f"password_file {settings.password_file}: its first line is empty")
    return found


def unreadable(settings: Settings) -> list[str]:
    """Return the faults of the files that links need, one line each. It reads the files: not for an event loop."""
    found: list[str] = []
    for number, link in enumerate(settings.upstream):
        for read in (password, tls):
            try:
                read(link)
            except ValueError as error:
                found.append(f'upstream[{number}] "{link.name}": {error}')
    return found


def connect_terms(settings: Upstream, whole: Settings, limits: Limits, broker_id: str) -> ConnectTerms:
    """Return the link's CONNECT parameters and limits. Raises ValueError if the password cannot be read."""
    made = ConnectTerms()
    made.client_id = settings.client_id or f"canopy-{broker_id}-{settings.name}"
    made.user_name = settings.username or None
    secret = password(settings)
    made.password = secret.encode() if secret else None
    made.keep_alive = settings.keep_alive
    made.session_expiry = settings.session_expiry
    made.status_topic = settings.status_topic
    made.receive_maximum = limits.receive_maximum
    made.max_inflight = limits.max_inflight
    made.max_packet_size = min(limits.max_packet_size, MAX_PACKET)
    made.queue_policy = _plain(POLICIES.index(settings.policy))
    made.live_messages = whole.queue.live_messages
    made.live_bytes = whole.queue.live_bytes
    return made


def tls(settings: Upstream) -> ssl.SSLContext | None:
    """Return the TLS context of the connection. Raises ValueError when a file cannot be used."""
    if not settings.remote.tls:
        return None
    try:
        check_files(settings.ca_file, settings.cert_file, settings.key_file)
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            show_certificate(context, settings.cert_file, settings.key_file)
    except OSError as error:
        raise ValueError(f"ca_file, cert_file or key_file cannot be used: {error}") from error
    return context


def show_certificate(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Have a link show a certificate. Raises OSError; ValueError: the key is encrypted."""
    asked: list[bool] = []

    def tell() -> str:
        # Without this OpenSSL would ask on the terminal, and the event loop would wait for the answer.
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(cert_file, key_file, tell)
    except OSError as error:
        if asked:
            why = "the private key is encrypted, and a link has no password for it"
            raise ValueError(f"key_file {key_file}: {why}") from error
        raise
