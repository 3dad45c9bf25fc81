"""Sessions that go on in another broker."""

from __future__ import annotations

import pytest

from broker.core.codec.packets import Will
from broker.core.routing.wills import WillListener
from broker.core.session.session import Session
from tests.core.harness import Network


class Told(WillListener):
    """Writes down whether each session that it is told of has a will."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def will_changed(self, session: Session) -> None:
        self.heard.append(session.will is not None)


@pytest.mark.parametrize("gone", [False, True], ids=["with the session", "before the session"])
def test_that_a_will_has_gone_is_told_once(gone: bool) -> None:
    network = Network()
    client = network.client("c", expiry=100, will=Will("w", b"will", delay=100))
    client.cut()
    network.settle()
    told = Told()
    network.router.wills.listener = told
    session = network.router.sessions["c"]
    if gone:
        session.will = None
    network.router.release(session, network.now)
    assert told.heard == [False]
    assert "c" not in network.router.sessions
