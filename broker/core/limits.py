"""The settings that the core uses, as plain numbers. Owns their names and defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.codec.packets import NEVER, V5, V31, V311
from broker.core.queues.policies.queue_policy import DROP_NEWEST

if TYPE_CHECKING:
    from broker.core.queues.policies.queue_policy import QueueRule


class Limits:
    """The limits of the settings, as numbers. 0 means unlimited where the field says so."""

    def __init__(self) -> None:
        self.max_packet_size = 8_388_608
        self.max_connect_size = 100_000
        self.max_payload_size = 0
        self.max_client_id_length = 256
        self.max_topic_levels = 128
        self.max_subscriptions_per_client = 0
        self.max_shared_subscriptions_per_client = 100
        self.max_client_bytes = 0
        # Bytes that all clients of one user, or of one address, may hold together.
        self.max_user_bytes = 0
        self.max_filter_bytes_per_client = 33_554_432
        self.max_filter_bytes = 1_610_612_736
        self.max_alias_bytes_per_client = 262_144
        self.max_alias_bytes = 67_108_864
        self.max_user_properties = 1_000
        self.max_connections = 0
        self.max_publish_rate = 0.0
        self.max_publish_bytes = 0
        self.publish_patience = 60.0
        self.max_loop_lag = 0.0
        self.max_qos = 2
        self.receive_maximum = 1024
        self.max_inflight = 1024
        self.max_inflight_bytes = 0
        self.upgrade_outgoing_qos = False
        self.topic_alias_maximum = 64
        self.topic_alias_outbound = 0
        self.max_keep_alive = 0
        # What clients are told that have to use another server (section 4.11); empty: nothing.
        self.server_reference = ""
        self.versions: tuple[int, ...] = (V31, V311, V5)
        self.auto_id_prefix = "canopy-"
        self.control_characters = False
        self.retain_available = True
        self.allow_anonymous = True
        self.allow_empty_client_id = True
        self.max_session_expiry = NEVER
        self.queue_qos0 = False
        self.max_sessions = 250_000
        self.max_session_bytes = 402_653_184
        self.max_empty_sessions = 50_000
        # Whether a client may take up the session of another user (`identity.check_owner`).
        self.any_user_takes_over = False
        self.live_messages = 10_000
        self.live_bytes = 8_388_608
        self.session_messages = 10_000
        self.session_bytes = 33_554_432
        # While a store cannot write: publishes of QoS 1 and 2 are refused, rather than left without an answer.
        self.store_refuses = False
        # Seconds that a client whose broker died has to come back before its will is published, at least.
        self.will_grace = 0.0
        self.queue_policy = DROP_NEWEST
        self.queue_max_age = 0.0
        self.total_messages = 0
        self.total_bytes = 0
        self.tell_publisher = False
        self.tell_loss = True
        # Seconds that a publisher may be held back for subscribers that are behind; 0.0: not at all.
        self.hold_publishers = 0.0
        # Seconds for which it waits for one that takes nothing.
        self.standstill = 0.5
        # Policies that a 5.0 subscriber may choose.
        self.subscriber_policies: tuple[int, ...] = (0, 1, 2, 3)
        self.rules: tuple[QueueRule, ...] = ()
        self.max_retained_messages = 0
        self.max_retained_bytes = 0
        self.max_retained_bytes_per_client = 0
        # Whether a retained message is sent only while its publisher may publish it.
        self.check_retained_publisher = False
        # Links that a message may have come over before it goes nowhere; 0: any number.
        self.hop_limit = 8
        # Who may be a link: shell patterns over user names, and over client identifiers.
        self.link_users: tuple[str, ...] = ()
        self.link_client_ids: tuple[str, ...] = ()
        # Seconds that the acknowledgement of a request waits for links; 0.0: not at all.
        self.answer_timeout = 5.0
        # The topic below which the broker tells who is connected (UTF-8); empty: nowhere.
        self.presence_topic = b""
