"""Makes the core's limits from the settings, at the start and at a reload."""

from __future__ import annotations

from typing import Final

from broker.core.codec.packets import NEVER, V5, V31, V311
from broker.core.limits import Limits
from broker.core.queues.policies.queue_policy import POLICIES, UNSET, QueueRule
from broker.core.routing.router import Router
from broker.settings import LARGEST_PACKET, QueueRuleSettings, Settings

VERSIONS: Final = {"3.1": V31, "3.1.1": V311, "5.0": V5}
"""The protocol levels of the versions of MQTT (section 3.1.2.2)."""

LARGEST_WINDOW: Final = 65_535
"""Unacknowledged publishes that the protocol allows in one direction (MQTT 5.0, section 3.1.2.11.3)."""


EMPTY_PART: Final = 5
"""That part of `session.max_sessions` may be empty sessions of clients that are away: nobody loses anything by their
end but Session Present, and with more of them a flood of clients that never come back would take the room of others."""

ALIAS_PART: Final = 256
"""That part of `limits.max_alias_bytes` one client may take (256 KiB by default: 64 aliases of 3,900 bytes), so that a
few clients cannot take it all."""

LONGEST_ALIAS: Final = 66_000
"""Bytes that the longest topic name takes as an alias: however low the bound of all clients is, one has room."""


NAMES: Final = tuple(name for name in dir(Limits()) if not name.startswith("_"))
"""Every limit of the core. Compiled, an object has no `__dict__`."""


def change(router: Router, settings: Settings) -> None:
    """Have a router that is in use keep to these settings."""
    before = router.limits
    made = limits(settings)
    if router.access_control is not None:
        # It knows more than the settings of the core: what a listener allows.
        made.allow_anonymous = before.allow_anonymous
    # Not of the settings: where clients are to go while the broker is drained.
    made.server_reference = before.server_reference
    for name in NAMES:
        setattr(before, name, getattr(made, name))
    router.limits_changed()


def limits(settings: Settings) -> Limits:
    """The settings as the core knows them. A 0 that the core has no word for becomes the most that is possible."""
    made = Limits()
    for section in (settings.limits, settings.mqtt):
        for name, value in section:
            if hasattr(made, name):
                setattr(made, name, value)
    made.max_packet_size = settings.limits.max_packet_size or LARGEST_PACKET
    made.receive_maximum = settings.mqtt.receive_maximum or LARGEST_WINDOW
    made.max_inflight = settings.mqtt.max_inflight or LARGEST_WINDOW
    made.max_session_expiry = settings.session.max_expiry or NEVER
    made.store_refuses = settings.store.on_failure == "refuse"
    made.will_grace = settings.store.will_grace
    made.versions = tuple(VERSIONS[version] for version in settings.mqtt.versions)
    made.hop_limit = settings.federation.hop_limit
    made.link_users = tuple(settings.federation.link_users)
    made.link_client_ids = tuple(settings.federation.link_client_ids)
    made.answer_timeout = settings.federation.answer_timeout
    made.presence_topic = settings.presence.topic.encode()
    made.queue_qos0 = settings.session.queue_qos0
    made.max_sessions = settings.session.max_sessions
    made.max_session_bytes = settings.session.max_bytes
    made.max_empty_sessions = settings.session.max_sessions // EMPTY_PART
    made.any_user_takes_over = settings.session.takeover == "any-user"
    queue = settings.queue
    made.queue_policy = POLICIES.index(queue.policy)
    made.queue_max_age = queue.max_age
    made.live_messages = queue.live_messages
    made.live_bytes = queue.live_bytes
    made.session_messages = queue.session_messages
    made.session_bytes = queue.session_bytes
    made.total_messages = queue.total_messages
    made.total_bytes = queue.total_bytes
    made.tell_publisher = queue.on_full == "tell-publisher"
    made.tell_loss = queue.tell_loss
    made.hold_publishers = queue.hold_publishers
    made.subscriber_policies = tuple(POLICIES.index(policy) for policy in queue.subscriber_policies)
    made.rules = tuple(_rule(rule) for rule in queue.rules)
    made.max_retained_messages = settings.retained.max_messages
    made.max_retained_bytes = settings.retained.max_bytes
    made.max_client_bytes = settings.limits.max_client_bytes
    made.max_user_bytes = settings.limits.max_user_bytes
    # One bound for a client: it holds for its subscriptions and its retained messages alone, too.
    made.max_filter_bytes_per_client = made.max_retained_bytes_per_client = made.max_client_bytes
    made.max_alias_bytes_per_client = alias_share(made.max_alias_bytes)
    made.check_retained_publisher = settings.retained.check_publisher
    return made


def alias_share(of_all: int) -> int:
    """Bytes that the topic aliases of one client may take where those of all may take `of_all`. 0: no limit."""
    return max(of_all // ALIAS_PART, LONGEST_ALIAS) if of_all else 0


def _rule(rule: QueueRuleSettings) -> QueueRule:
    return QueueRule(
        client_id=rule.client_id or "",
        user=rule.user or "",
        topic_filter=rule.topic_filter or "",
        policy=UNSET if rule.policy is None else POLICIES.index(rule.policy),
        max_age=float(UNSET) if rule.max_age is None else rule.max_age,
        depth=_or_unset(rule.depth),
        live_messages=_or_unset(rule.live_messages),
        live_bytes=_or_unset(rule.live_bytes),
        session_messages=_or_unset(rule.session_messages),
        session_bytes=_or_unset(rule.session_bytes),
    )


def _or_unset(value: int | None) -> int:
    return UNSET if value is None else value
