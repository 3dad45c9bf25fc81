"""Makes the core's limits from the settings, at the start and at a reload."""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec.packets import NEVER, V5, V31, V311
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import POLICIES, UNSET, QueueRule
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.settings import MAX_PACKET, MAX_STORED_NAME, QueueRuleSettings, Settings

VERSIONS: Final = {"3.1": V31, "3.1.1": V311, "5.0": V5}
"""The protocol levels of the versions of MQTT (section 3.1.2.2)."""

MAX_WINDOW: Final = 65_535
"""Unacknowledged publishes that the protocol allows in one direction (MQTT 5.0, section 3.1.2.11.3)."""

EMPTY_PART: Final = 5
"""One of this many sessions (`session.max_sessions`) may be an empty one of an offline client: its end costs the client
only Session Present, and more of them would let clients that never come back take the room of others."""

KIND_PART: Final = 17
"""The part of `limits.max_client_bytes` (2 MiB by default) that neither subscriptions nor retained messages of one
client can take from what else it keeps."""

ALIAS_PART: Final = 256
"""The part of `limits.max_alias_bytes` one client may take (256 KiB by default: 64 aliases of 3,900 bytes), so that a
few clients cannot take it all."""

MAX_ALIAS_BYTES: Final = 66_000
"""Bytes of the longest topic name as an alias: however low the limit of all clients is, each has room for one."""

NAMES: Final = tuple(name for name in dir(Limits()) if not name.startswith("_"))
"""Every limit of the core. Compiled, an object has no `__dict__`."""


def change(router: Router, settings: Settings) -> None:
    """Apply these settings to a router that is in use."""
    before = router.limits
    made = limits(settings)
    if router.access_control is not None:
        # Access control has set it: it knows what each listener allows.
        made.allow_anonymous = before.allow_anonymous
    # Draining has set it: the broker to which clients shall go.
    made.server_reference = before.server_reference
    # A worker has set it, or the part that has made the store.
    made.relays_retained = before.relays_retained
    made.retained_in_store = before.retained_in_store
    made.presence_crosses = before.presence_crosses
    for name in NAMES:
        setattr(before, name, getattr(made, name))
    router.limits_changed()


def limits(settings: Settings) -> Limits:
    """Return the core's limits. Where the core has no value for "no limit" (0), it gets the largest possible one."""
    made = Limits()
    sections = (settings.limits, settings.mqtt, settings.session, settings.queue, settings.store, settings.federation)
    for section in sections:
        # Settings and limits of the same name have the same meaning.
        for name, value in section:
            if hasattr(made, name):
                setattr(made, name, value)
    made.max_packet_size = settings.limits.max_packet_size or MAX_PACKET
    made.receive_maximum = settings.mqtt.receive_maximum or MAX_WINDOW
    made.max_inflight = settings.mqtt.max_inflight or MAX_WINDOW
    made.max_session_expiry = settings.session.max_expiry or NEVER
    made.max_stored_name = MAX_STORED_NAME if settings.store.url else 0
    made.store_refuses = settings.store.on_failure == "refuse"
    made.versions = tuple(VERSIONS[version] for version in settings.mqtt.versions)
    made.link_users = tuple(settings.federation.link_users)
    made.link_client_ids = tuple(settings.federation.link_client_ids)
    made.node = settings.cluster.node if settings.cluster.others else ""
    made.link_bytes = settings.cluster.link_bytes
    made.presence_topic = settings.presence.topic.encode()
    made.max_session_bytes = settings.session.max_bytes
    made.max_empty_sessions = settings.session.max_sessions // EMPTY_PART
    made.any_user_takes_over = settings.session.takeover == "any-user"
    queue = settings.queue
    made.queue_policy = POLICIES.index(queue.policy)
    made.queue_max_age = queue.max_age
    made.listener_delays = any(listener.max_delay for listener in settings.listeners)
    made.tell_publisher = queue.on_full == "tell-publisher"
    made.subscriber_policies = tuple(POLICIES.index(policy) for policy in queue.subscriber_policies)
    made.rules = tuple(_rule(rule) for rule in queue.rules)
    made.max_retained_messages = settings.retained.max_messages
    made.max_retained_bytes = settings.retained.max_bytes
    made.max_filter_bytes_per_client = made.max_retained_bytes_per_client = kind_share(made.max_client_bytes)
    made.max_alias_bytes_per_client = alias_share(made.max_alias_bytes)
    made.check_retained_publisher = settings.retained.check_publisher
    return made


def kind_share(of_client: int) -> int:
    """Return the bytes that the subscriptions of a client alone may take, and its retained messages, where it may keep
    `of_client` in all. 0: no limit."""
    return of_client - of_client // KIND_PART


def alias_share(of_all: int) -> int:
    """Return the bytes that the topic aliases of one client may take where those of all may take `of_all`. 0: no
    limit."""
    return max(of_all // ALIAS_PART, MAX_ALIAS_BYTES) if of_all else 0


def _rule(rule: QueueRuleSettings) -> QueueRule:
    numbers = ("depth", "live_messages", "live_bytes", "session_messages", "session_bytes")
    values: dict[str, int] = {name: UNSET if getattr(rule, name) is None else getattr(rule, name) for name in numbers}
    return QueueRule(
        client_id=rule.client_id or "",
        user=rule.user or "",
        topic_filter=rule.topic_filter or "",
        policy=UNSET if rule.policy is None else POLICIES.index(rule.policy),
        max_age=float(UNSET) if rule.max_age is None else rule.max_age,
        max_delay=float(UNSET) if rule.max_delay is None else rule.max_delay,
        **values,
    )
