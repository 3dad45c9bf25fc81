"""The settings that the core uses, as plain numbers.

Owns their names and defaults. `canopy_mqtt.core_limits` sets them from the settings of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_mqtt.core.codec.packets import NEVER, V5, V31, V311
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST

if TYPE_CHECKING:
    from canopy_mqtt.core.queues.queue_terms import QueueRule


class Limits:
    """The limits of the settings. 0 means unlimited where the setting says so."""

    def __init__(self) -> None:
        self.max_packet_size = 8_388_608
        self.max_connect_size = 100_000
        self.max_payload_size = 0
        self.max_client_id_length = 256
        self.max_topic_levels = 128
        # Bytes of a filter, or of the topic of a retained message, that the store takes. 0: of any.
        self.max_stored_name = 0
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
        # The Server Reference for clients that have to use another server (section 4.11); empty: none.
        self.server_reference = ""
        self.versions: tuple[int, ...] = (V31, V311, V5)
        self.auto_id_prefix = "canopy-"
        self.control_characters = False
        self.retain_available = True
        # True if a node that joins gets what other nodes have retained, too: it lost all at its end, and they serve on.
        self.relays_retained = False
        # True if other nodes read from a store what is retained here (`core.shared`): to them it is a live message.
        self.retained_in_store = False
        self.allow_anonymous = True
        self.allow_empty_client_id = True
        self.max_session_expiry = NEVER
        self.queue_qos0 = False
        self.max_sessions = 250_000
        self.max_session_bytes = 402_653_184
        self.max_empty_sessions = 50_000
        # True if a client may resume the session of another user (`identity.check_owner`).
        self.any_user_takes_over = False
        self.live_messages = 10_000
        self.live_bytes = 8_388_608
        self.session_messages = 10_000
        self.session_bytes = 33_554_432
        # True if publishes of QoS 1 and 2 are refused while a store cannot write; else they get no answer until it can.
        self.store_refuses = False
        # Seconds that each client has to reconnect after a restart of the broker before its will is published.
        self.will_grace = 0.0
        self.queue_policy = DROP_NEWEST
        self.queue_max_age = 0.0
        # Seconds for which messages to a peer may wait for more; True if some listener has such a delay of its own.
        self.max_delay = 0.0
        self.listener_delays = False
        self.total_messages = 0
        self.total_bytes = 0
        self.tell_publisher = False
        self.tell_loss = True
        # Seconds that a publisher may be held for subscribers with long queues; 0.0: never.
        self.hold_publishers = 0.0
        # Seconds that it waits for a subscriber that reads nothing.
        self.standstill = 0.5
        # The policies that a 5.0 subscriber may choose.
        self.subscriber_policies: tuple[int, ...] = (0, 1, 2, 3)
        self.rules: tuple[QueueRule, ...] = ()
        self.max_retained_messages = 0
        self.max_retained_bytes = 0
        self.max_retained_bytes_per_client = 0
        # True if a retained message is sent only while its publisher may still publish it.
        self.check_retained_publisher = False
        # A message that has come over this many links is not routed; 0: any number.
        self.hop_limit = 8
        # Clients that may be links: shell patterns of user names, and of client identifiers.
        self.link_users: tuple[str, ...] = ()
        self.link_client_ids: tuple[str, ...] = ()
        # The name of this node of a cluster; empty: there are no other nodes.
        self.node = ""
        # Bytes that wait for another node of the cluster.
        self.link_bytes = 67_108_864
        # Seconds that the acknowledgement of a request waits for links; 0.0: it does not wait.
        self.answer_timeout = 5.0
        # The topic below which the broker publishes which clients are connected (UTF-8); empty: nowhere.
        self.presence_topic = b""
        # True if the other nodes keep these messages, too: nodes that are one broker.
        self.presence_crosses = False
