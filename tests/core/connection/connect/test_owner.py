"""A client whose session may be at another broker: its CONNECT waits until whoever sees to that has answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core.codec.packets import V5, V311, Connect, Publish, Will
from broker.core.hooks import LATER, AccessControl, Origin, Owner, OwnerClaim, Ticket
from broker.core.principal import Principal
from tests.core.harness import Client, Network


class Waiting(OwnerClaim):
    """Counts how often it is over."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self.told = told
        self.ended = 0

    def over(self) -> None:
        self.ended += 1


class Asked(Owner):
    """Has each client wait, but for those who `may` have their session at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, bool]] = []
        self.claims: list[Waiting] = []
        self.may = False

    def claim(
        self, client_id: str, user_name: str | None, clean_start: bool, told: Callable[[int], None]
    ) -> OwnerClaim | None:
        self.asked.append((client_id, user_name, clean_start))
        if self.may:
            return None
        self.claims.append(Waiting(told))
        return self.claims[-1]


@pytest.fixture
def owner() -> Asked:
    return Asked()


@pytest.fixture
def network(owner: Asked) -> Network:
    made = Network()
    made.router.owner = owner
    return made


def coming(network: Network, client_id: str = "c", version: int = V5) -> Client:
    """A client that has sent CONNECT, and a PUBLISH behind it."""
    client = network.idle(client_id, version)
    client.connect(clean=False, settle=False, user_name="u")
    client.send(Publish(b"a", b"early", 1, packet_id=1))
    network.settle()
    return client


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_waits_for_its_session(network: Network, owner: Asked, version: int) -> None:
    """What it has sent behind its CONNECT waits, too."""
    client = coming(network, version=version)
    assert owner.asked == [("c", "u", False)]
    assert (client.packets, client.wire.protocol.waiting) == ([], True)
    assert "c" not in network.router.sessions
    [claim] = owner.claims
    claim.told(0)
    network.settle()
    assert [type(each).__name__ for each in client.packets] == ["Connack", "Ack"]
    assert claim.ended == 1
    client.cut()
    assert claim.ended == 1


def test_a_client_that_need_not_wait_does_not(network: Network, owner: Asked) -> None:
    owner.may = True
    assert coming(network).connack.reason_code == 0


def test_a_client_without_an_identifier_is_not_asked_for(network: Network, owner: Asked) -> None:
    assert coming(network, "").connack.reason_code == 0
    assert owner.asked == []


@pytest.mark.parametrize(("version", "code"), [(V5, 0x88), (V311, 3)])
def test_a_client_can_be_refused(network: Network, owner: Asked, version: int, code: int) -> None:
    client = coming(network, version=version)
    owner.claims[0].told(0x88)
    network.settle()
    assert client.connack.reason_code == code
    assert client.closed
    assert owner.claims[0].ended == 1
    assert network.router.sessions == {}


def test_a_client_that_goes_meanwhile_leaves_nothing(network: Network, owner: Asked) -> None:
    client = coming(network)
    client.cut()
    assert owner.claims[0].ended == 1
    owner.claims[0].told(0)
    network.settle()
    assert network.router.sessions == {}
    assert client.packets == []


def test_nobody_is_asked_for_whom_the_settings_refuse(network: Network, owner: Asked) -> None:
    """What is refused here has changed nothing elsewhere."""
    network.router.limits.presence_topic = b"canopy/clients"
    client = network.idle("c")
    client.connect(will=Will("canopy/clients/c", b"", 0))
    assert client.connack.reason_code == 0x87
    assert owner.asked == []


class Late(AccessControl):
    """Admits by its ticket, and says so twice."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        del connect, origin
        self.tickets.append(ticket)
        return LATER


def test_access_control_comes_first_and_its_second_answer_says_nothing(network: Network, owner: Asked) -> None:
    """It is known then who the client is."""
    network.router.access_control = late = Late()
    client = coming(network)
    assert owner.asked == []
    [ticket] = late.tickets
    ticket.principal = Principal("proved")
    ticket.answer(0)
    network.settle()
    assert owner.asked == [("c", "proved", False)]
    ticket.answer(0)
    network.settle()
    assert client.packets == []
    owner.claims[0].told(0)
    network.settle()
    assert client.connack.reason_code == 0
    assert network.session("c").user_name == "proved"
    assert len(owner.asked) == 1


def test_two_connections_of_one_client_take_over_in_the_order_of_their_answers(network: Network, owner: Asked) -> None:
    """[MQTT-3.1.4-3]"""
    first, second = coming(network), coming(network)
    owner.claims[1].told(0)
    owner.claims[0].told(0)
    network.settle()
    assert (first.end, second.end) == (-2, 0x8E)
