"""AUTH exchanges of section 4.12, with a method made for the test: who may begin one, and whom it finds."""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import V5, Auth, Connect
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.hooks import FORBIDDEN, AccessControl, AuthExchange, AuthMethod, Origin, PeerCertificate, Ticket
from canopy_mqtt.core.principal import Principal
from tests.core.harness import Client, Network, bag


class CountingExchange(AuthExchange):
    """Challenges with a number; the client must answer with the next. Two rounds; 'no' fails."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def start(self, connect: Connect, data: bytes | None) -> None:
        assert connect.client_id
        self.rounds = 0
        self._step(data)

    def proceed(self, data: bytes | None) -> None:
        self._step(data)

    def again(self, data: bytes | None) -> None:
        self.rounds = 0
        self._step(data)

    def _step(self, data: bytes | None) -> None:
        if data != b"%d" % self.rounds:
            self.reason_code, self.data = 0x87, None
            return
        self.rounds += 1
        self.reason_code = 0x18 if self.rounds < 3 else 0
        self.data = b"%d" % (10 * self.rounds)


class Counting(AuthMethod):
    """The method's factory."""

    def begin(self) -> AuthExchange:
        return CountingExchange()


def _method(data: bytes) -> Properties:
    return bag(s={0x15: "counting"}, b={0x16: data})


class Proves(Counting):
    """Finds out who the client is: each run one of these users."""

    def __init__(self, *users: str) -> None:
        self.users = list(users)

    def begin(self) -> AuthExchange:
        return ProvingExchange(self.users)


class ProvingExchange(CountingExchange):
    def __init__(self, users: list[str]) -> None:
        super().__init__()
        self.users = users

    def _step(self, data: bytes | None) -> None:
        super()._step(data)
        if self.reason_code == 0:
            self.principal = Principal(self.users.pop(0), ("proven",))


class Watches(AccessControl):
    """Notes who was known already when it was asked."""

    def __init__(self) -> None:
        self.known: list[str | None] = []
        self.forbidden = ""

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        del principal
        return FORBIDDEN if topic_filter == self.forbidden else qos

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        del connect, origin
        self.known.append(None if ticket.principal is None else ticket.principal.user_name)
        return 0


class Bars(AccessControl):
    """Lets nobody begin, until it does; hears who failed."""

    def __init__(self) -> None:
        self.code = 0x8A
        self.refused: list[tuple[str, int]] = []

    def bars(self, connect: Connect, origin: Origin) -> int:
        del connect, origin
        return self.code

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        del origin
        self.refused.append((connect.client_id, reason_code))


class TestAuth:
    """Exchanges of section 4.12."""

    def say(self, client: Client, code: int, data: bytes) -> None:
        """Send an AUTH."""
        client.send(Auth(code, _method(data)))
        client.network.settle()

    def test_a_barred_client_begins_nothing(self) -> None:
        """It learns nothing about what would be the right answer."""
        network = Network()
        network.router.auth_methods["counting"] = Counting()
        network.router.access_control = keeper = Bars()
        client = network.idle("c")
        assert client.connect(properties=_method(b"0")).reason_code == 0x8A
        assert client.got(Auth) == []
        keeper.code = 0
        client = network.idle("c")
        client.connect(properties=_method(b"no"))
        assert client.connack.reason_code == 0x87
        assert keeper.refused == [("c", 0x87)]

    def test_large_challenge(self) -> None:
        """An AUTH that the client cannot take is not sent: the connection ends [MQTT-3.1.2-24] [MQTT-3.15.2-2]."""
        network = Network()
        network.router.auth_methods["counting"] = Counting()
        client = network.idle("c")
        client.connect(properties=_method(b"0"), max_packet=16)
        assert client.closed
        assert client.got(Auth) == []
        assert network.router.sessions == {}

    def test_whom_an_exchange_has_found(self) -> None:
        """That is who the client is, and access control is told before it decides."""
        network = Network()
        network.router.auth_methods["counting"] = Proves("alice", "alice", "bob")
        watches = network.router.access_control = Watches()
        client = network.idle("c")
        client.dial().protocol.origin.certificate = PeerCertificate("CN=device-1")
        client.send(Connect("c", V5, properties=_method(b"0")))
        network.settle()
        for data in (b"1", b"2"):
            self.say(client, 0x18, data)
        assert client.connack.reason_code == 0
        assert watches.known == ["alice"]
        first = network.session("c").principal
        assert (first.user_name, first.groups, first.client_id) == ("alice", ("proven",), "c")
        for code, data in ((0x19, b"0"), (0x18, b"1"), (0x18, b"2")):
            self.say(client, code, data)
        assert client.got(Auth)[-1].reason_code == 0
        assert network.session("c").principal is not first
        # On the connection nothing has changed.
        assert network.session("c").principal.certificate == first.certificate == "CN=device-1"
        # Whoever authenticates again as somebody else would have that user's rights, and the session of another.
        for code, data in ((0x19, b"0"), (0x18, b"1"), (0x18, b"2")):
            self.say(client, code, data)
        assert client.end == 0x87

    def test_who_may_do_less_after_it(self) -> None:
        """Subscriptions that are not allowed any more end, and the client is told to go: it would wait in vain."""
        network = Network()
        network.router.auth_methods["counting"] = Proves("alice", "alice", "alice")
        watches = network.router.access_control = Watches()
        client = network.idle("c")
        client.connect(properties=_method(b"0"))
        for data in (b"1", b"2"):
            self.say(client, 0x18, data)
        assert client.subscribe("a", "b") == [0, 0]
        for forbidden in ("other", "a"):
            watches.forbidden = forbidden
            for code, data in ((0x19, b"0"), (0x18, b"1"), (0x18, b"2")):
                self.say(client, code, data)
            assert client.closed is (forbidden == "a")
        assert client.end == 0x87
