"""What the operator allows, as plain numbers: the core's side of the settings. Owns the names and the defaults."""

from __future__ import annotations

from broker.core.session import NEVER


class Limits:
    """What the operator allows; the numbers behind the settings' sections. 0 means unlimited where it says so."""

    def __init__(self) -> None:
        self.max_packet_size = 1_048_576
        self.max_client_id_length = 256
        self.max_topic_levels = 128
        self.max_subscriptions_per_client = 0
        self.max_connections = 0
        self.max_qos = 2
        self.receive_maximum = 1024
        self.max_inflight = 1024
        self.topic_alias_maximum = 64
        self.topic_alias_outbound = 0
        self.max_keep_alive = 0
        self.retain_available = True
        self.wildcard_subscriptions = True
        self.shared_subscriptions = True
        self.subscription_identifiers = True
        self.allow_anonymous = True
        self.allow_empty_client_id = True
        self.max_session_expiry = NEVER
        self.queue_qos0 = False
        self.max_sessions = 0
        self.live_messages = 10_000
        self.live_bytes = 8_388_608
        self.session_messages = 10_000
        self.session_bytes = 33_554_432
        self.max_retained_messages = 0
        self.max_retained_bytes = 0
