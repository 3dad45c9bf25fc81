"""A CONNECT that is not answered yet.

Owns what is known of the client until then, and the wait for access control (`AccessControl`). `ServerProtocol` drops
it when the client is accepted or its connection has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.codec import reasons
from broker.core.codec.errors import Refused
from broker.core.codec.packets import V31, Connack, Connect, Will
from broker.core.codec.topic_names import has_control
from broker.core.connection.connect import identity, opening
from broker.core.connection.connect.authenticating import Authentication
from broker.core.connection.connect.handshake import Terms
from broker.core.hooks import LATER, Origin, Ticket
from broker.core.principal import Principal
from broker.core.queues.live.outbox import Outbox
from broker.core.routing.router import Router
from broker.core.session.session import Session


class PendingConnect:
    """`client_id`: the client's own, or an assigned one (`connack`); `present`: its client had a session."""

    def __init__(self, connect: Connect, origin: Origin, router: Router) -> None:
        self.connect = connect
        self.client_id = connect.client_id
        self.present = False
        self._principal: Principal | None = None
        self._origin = origin
        self._router = router
        self._ticket: Ticket | None = None
        self._asking = False  # access control, which may answer by its ticket before it returns
        self._early_answer = LATER
        self._refusal = ""  # why its will is refused
        self._will: Will | None = None  # that its CONNECT had
        self._left_out = ""  # why that will is left out
        self._told: Callable[[int], None] | None = None  # who hears of a late answer

    def ask(self, authentication: Authentication | None, told: Callable[[int], None] | None) -> int:
        """Ask access control, if there is one: a reason code, or LATER, and `told` hears of it.

        Whoever decides about clients is asked last, also when an authentication method was satisfied.
        """
        access_control = self._router.access_control
        if access_control is not None or authentication is not None:
            proved = None if authentication is None else authentication.principal
            self._ticket = Ticket(self._decided, proved)
        if access_control is None or self._ticket is None:
            return reasons.SUCCESS
        self._told = told
        self._asking = True
        try:
            answer = access_control.admit(self.connect, self._origin, self._ticket)
        finally:
            self._asking = False
        return self._early_answer if answer == LATER else answer

    def _decided(self, reason_code: int) -> None:
        """`Ticket.answer` was called."""
        if self._asking:
            self._early_answer = reason_code
        elif self._told is not None:
            self._told(reason_code)

    @property
    def detail(self) -> str:
        """Why the client was refused, for the log."""
        return self._refusal if self._ticket is None or self._refusal else self._ticket.detail

    def connack(self, terms: Terms, authentication: Authentication | None, max_packet: int) -> Connack | None:
        """The CONNACK with which it may come in; None when the client can take none: then nothing has been done yet."""
        connect = self.connect
        # Without an identifier, from here on as if the client had brought it; the CONNACK tells [MQTT-3.1.3-7].
        assigned = "" if connect.client_id else self._router.new_client_id()
        self.client_id = connect.client_id or assigned
        return opening.connack_for(connect, terms, assigned, authentication, self._router, max_packet)

    def identify(self, now: float) -> None:
        """Find out who the client is.

        Raises:
            Refused: nobody who may come in.
        """
        connect = self.connect
        router = self._router
        principal = identity.principal_of(connect, self._ticket, self._origin, self.client_id)
        if principal.user_name != connect.user_name:
            # Who the client proved to be may be another one than it says: by a token, a certificate or a service.
            name = principal.user_name
            if name is not None and not router.limits.control_characters and has_control(name):
                raise Refused(
                    "authenticated as a user name with a control character", reasons.BAD_USER_NAME_OR_PASSWORD
                )
            opening.check_ban(self.client_id, principal.user_name, self._origin.host, router, now)
        self._principal = principal
        self._will = connect.will
        self._left_out = opening.leave_will_out(connect, principal, router)
        self._refusal = opening.check_client(connect, principal, router)
        if self._refusal:
            raise Refused("not authorized to publish to the will's topic", reasons.NOT_AUTHORIZED)  # section 5.4.2

    @property
    def user_name(self) -> str | None:
        """Whom the CONNECT names; then whom the client proved to be."""
        return self.connect.user_name if self._principal is None else self._principal.user_name

    def open_session(self, terms: Terms, connack: Connack, outbox: Outbox, now: float) -> Session:
        """Open or resume the session of a client that is identified. Raises Refused."""
        principal = self._principal
        assert principal is not None
        session, self.present = opening.open_session(
            self.connect, self.client_id, principal, terms, outbox, self._router, now
        )
        if self._left_out and self._will is not None:
            opening.note_will(session, self._will, self._left_out, self._router, now)
        # Whether there was a session to go on with [MQTT-3.2.2-3], so never after a clean start [MQTT-3.2.2-2]
        # [MQTT3-3.2.2-1]. In 3.1 the byte is reserved.
        version = self.connect.version
        connack.session_present = self.present and version != V31
        tap = self._router.tap
        if tap is not None:
            address, clean_start = self._origin.address, self.connect.clean_start
            tap.connected(self.client_id, address, principal.user_name, version, clean_start, connack.session_present)
        return session

    def over(self) -> None:
        """The client is in, or its connection has ended: an answer of access control means nothing any more."""
        self._ticket = self._told = None
