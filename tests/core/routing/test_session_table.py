"""What sessions take by themselves, the limits on it, and which sessions end for others."""

from __future__ import annotations

from canopy_mqtt.core.causes import NOT_ALLOWED
from canopy_mqtt.core.codec.packets import NEVER, V5, V311, Will
from canopy_mqtt.core.queues.message import Message
from tests.core.harness import Client, Network, limits
from tests.core.recount import check_accounts
from tests.support.runs import for_each

QUOTA_EXCEEDED = 0x97


def kept(network: Network, name: str, version: int = V5, *filters: str) -> Client:
    """A client whose session outlives its connection."""
    client = network.idle(name, version)
    answer = client.connect(clean=False, expiry=NEVER if version == V5 else None)
    if answer.reason_code == 0 and filters:
        client.subscribe(*filters, qos=1)
    return client


def test_empty_sessions_make_room() -> None:
    """Clients that come, leave nothing and never come back keep nobody out; each takes the place of another."""
    network = Network(limits(max_sessions=10))
    for number in range(100):
        kept(network, f"flood{number}").cut()
    assert len(network.router.sessions) == 10
    assert list(network.router.sessions) == [f"flood{number}" for number in range(90, 100)]
    assert kept(network, "late", V5, "t").connack.reason_code == 0


@for_each(("version", "refused"), [(V5, QUOTA_EXCEEDED), (V311, 3)])
def test_sessions_that_hold_something_stay(version: int, refused: int) -> None:
    """Where no session is empty, newcomers are refused, and nobody loses a subscription or a message."""
    network = Network(limits(max_sessions=5))
    for number in range(5):
        kept(network, f"c{number}", V5, "t").cut()
    network.settle()
    newcomer = kept(network, "new", version)
    assert newcomer.connack.reason_code == refused
    assert newcomer.closed
    back = network.idle("c3")
    assert back.connect(clean=False, expiry=NEVER).session_present
    assert len(network.router.sessions) == 5


def test_the_empty_ones_are_bounded_by_themselves() -> None:
    """Of clients that are away and hold nothing only so many are kept, and the oldest go first."""
    network = Network(limits(max_empty_sessions=3))
    holds = kept(network, "holds", V5, "t")
    holds.cut()
    for number in range(10):
        kept(network, f"e{number}").cut()
        network.settle()
    assert list(network.router.sessions) == ["holds", "e7", "e8", "e9"]
    assert network.idle("e8").connect(clean=False, expiry=NEVER).session_present
    assert network.router.session_table.empty_count == 2


@for_each("what", ["subscription", "message", "will", "connection", "incoming"])
def test_what_is_not_empty(what: str) -> None:
    """Each of these keeps a session from being ended for another."""
    network = Network(limits(max_sessions=2))
    client = network.idle("c")
    client.connect(
        clean=False, expiry=NEVER, will=Will("w", b"x", 0, False, 1_000) if what == "will" else None, receive_maximum=1
    )
    publisher = network.client("p")
    if what in ("subscription", "message"):
        client.subscribe("t", qos=1)
    if what == "message":
        client.answering = False
        publisher.publish("t", b"x", 1)
        client.unsubscribe("t")
    if what == "incoming":
        client.post("t", b"x", 2)
        client.wire.to_channel()
    if what != "connection":
        client.cut()
        network.settle()
    assert network.idle("new").connect().reason_code == QUOTA_EXCEEDED
    assert set(network.router.sessions) == {"c", "p"}


@for_each(("version", "refused"), [(V5, QUOTA_EXCEEDED), (V311, 3)])
def test_wills_and_names_are_bounded(version: int, refused: int) -> None:
    """A will's payload and properties count, and a user name: they are kept for as long as the session."""
    network = Network(limits(max_session_bytes=500_000))
    codes = []
    for number in range(20):
        client = network.idle(f"c{number}", version)
        codes.append(client.connect(will=Will("w", b"x" * 60_000), user_name="u" * 30_000).reason_code)
    granted = codes.count(0)
    assert 3 <= granted <= 5
    assert codes == [0] * granted + [refused] * (20 - granted)
    assert network.router.session_table.bytes <= 500_000
    # Who is there may come again.
    assert network.idle("c0", version).connect(will=Will("w", b"y" * 60_000), user_name="u" * 30_000).reason_code == 0
    assert network.router.session_table.bytes <= 500_000


def test_wills_that_wait_for_their_turn_are_bounded() -> None:
    """A client that comes and dies again and again, while a message is on its way to very many, is refused in the end.

    None of the wills that were taken is lost.
    """
    network = Network(limits(max_session_bytes=500_000))
    router = network.router
    readers = [network.client(name) for name in "ab"]
    for reader in readers:
        reader.subscribe("t", qos=1)
    before = router.session_table.bytes
    router.fanout.at_once = 1
    router.publish(Message(b"t", b"first", 1, False, b"", 0.0, ""), None)
    accepted = 0
    for _ in range(20):
        client = network.idle("c")
        client.connect(will=Will("t", b"x" * 60_000), settle=False)
        client.wire.to_channel()
        accepted += client.wire.protocol.accepted
        client.wire.lose()
    assert 3 <= accepted == len(router.wills.line) < 9
    check_accounts(router)
    network.settle()
    assert [len(reader.inbox) for reader in readers] == [1 + accepted] * 2
    assert router.session_table.bytes == before


def test_publishes_that_are_not_released_are_bounded() -> None:
    """A client of 3.1.1 knows no Receive Maximum: what it makes the broker remember counts, until it is released."""
    network = Network(limits(receive_maximum=10, max_session_bytes=20_000))
    table = network.router.session_table
    releases, other = network.client("releases", V311), network.client("other", V311)
    before = most = table.bytes
    for client, count in ((releases, 50), (other, 500)):
        for _ in range(count):
            if not client.wire.protocol.close_cause:
                client.post("t", b"x", 2)
                while client.wire.to_channel() or client.wire.flush(1) or client.wire.go_on():
                    pass
            most = max(most, table.bytes)
        if client is releases:
            assert table.bytes == before + 49 * 64
            network.settle()
            assert table.bytes == before + 10 * 64
    assert before + 100 * 64 < most <= 20_000
    assert other.wire.protocol.close_cause == NOT_ALLOWED
    assert releases.wire.protocol.close_cause == ""
