"""A durable session that brokers share (`core.shared`), while it is here.

Messages of QoS 1 and 2 come to it from the store, in the order in which the store has them: the live ones would come
twice. QoS 0 is live.
"""

from __future__ import annotations

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import EXCLUDED
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import MessageTerms
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup


class SharedSession(Session):
    """The session of a client that has, or had, a Session Expiry Interval above 0.

    With QoS 2, nothing comes that the store does not know: if the connection ended before its PUBCOMP, the identifier
    would be free here, and in use for the client, which would take the next message with it for the same one.
    """

    def __init__(
        self, client_id: str, max_messages: int, max_bytes: int, counters: Counters, who: Principal | None = None
    ) -> None:
        super().__init__(client_id, max_messages, max_bytes, counters, who)
        self.max_live_qos = 1

    def keep(self, journal: Journal) -> None:
        """Have it kept also where it ends with this connection: what it has is in the store, and comes from there."""
        self.keep_in(journal)
        journal.session_kept(self.client_id, self.principal, self.expiry_interval, 0.0)
        if self.will is not None:
            journal.will_set(self.client_id, self.will, 0.0)

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
        message_terms: MessageTerms | None = None,
    ) -> int:
        """Offer a message: as `Session.deliver`; EXCLUDED: it comes from the store."""
        if qos > 0:
            return EXCLUDED
        return super().deliver(message, qos, retain, identifiers, group, message_terms)
