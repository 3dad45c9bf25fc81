"""What clients that receive do to a broker, as rules of a Hypothesis machine: the base of the machines on the ledger.

Owns the network, the three receivers and their moods: they connect, read or not, are written to a little, acknowledge
or not, are cut off, leave. The network has to let any user take over a session. Promises nothing about the broker;
what has to hold is for the machine that inherits to say.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from canopy_mqtt.core.codec.packets import V5, V311
from canopy_mqtt.core.session.session import Session
from tests.core.harness import Client, Network, bag

NAMES: Final = ("a", "b", "c")

names = st.sampled_from(NAMES)


class Receivers(RuleBasedStateMachine):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self.clients: dict[str, Client] = {}
        # All sessions there ever were: those that ended keep their drops in the totals.
        self.known: list[Session] = []

    def _meet(self) -> None:
        for session in self.network.router.sessions.values():
            if session not in self.known:
                self.known.append(session)

    def _up(self, client: Client) -> bool:
        return not client.wire.cut and not client.wire.protocol.close_cause

    @rule(
        name=names,
        max_packet=st.sampled_from((0, 0, 60, 100, 400)),
        version=st.integers(0, 2),
        frozen=st.booleans(),
        expiry=st.sampled_from((1_000, 1_000, 0)),
        receive=st.integers(1, 3),
        user=st.sampled_from((None, "u1")),
    )
    def connect(
        self,
        name: str,
        max_packet: int,
        version: int,
        frozen: bool,
        expiry: int,
        receive: int = 3,
        user: str | None = None,
    ) -> None:
        """A receiver connects: back, or in place of its own connection, with or without the session."""
        client = self.clients[name]
        old = client.link
        if old is not None and self._up(client):
            # A takeover: what would still go to the old connection would go to nobody.
            old.frozen = True
            old.down.clear()
        elif old is not None:
            old.lose()
        client.version = V311 if version == 2 else V5
        v5 = client.version == V5
        client.connect(
            clean=expiry == 0,
            expiry=expiry if v5 else None,
            max_packet=max_packet if v5 and max_packet else None,
            receive_maximum=receive if v5 else None,
            properties=bag(i={0x22: 5}) if v5 else None,
            user_name=user,
            frozen=frozen,
        )
        if old is not None:
            old.lose()
        self._meet()

    @rule(name=names, frozen=st.booleans())
    def freeze(self, name: str, frozen: bool) -> None:
        """A receiver stops reading, or goes on."""
        self.clients[name].wire.frozen = frozen
        self.network.settle()

    @rule(name=names, size=st.integers(1, 400), batches=st.integers(1, 3))
    def write_a_little(self, name: str, size: int, batches: int) -> None:
        """The writer of a receiver that does not read gets rid of a part."""
        link = self.clients[name].wire
        if link.frozen and not link.cut:
            link.frozen, link.batch = False, size
            link.flush(batches)
            link.frozen, link.batch = True, 1 << 30

    @rule(name=names, answering=st.booleans())
    def answering(self, name: str, answering: bool) -> None:
        """A receiver stops acknowledging, or goes on."""
        client = self.clients[name]
        client.answering = answering
        if answering and self._up(client):
            client.answer()

    @rule(name=names)
    def cut(self, name: str) -> None:
        """A connection is lost."""
        self.clients[name].cut()

    @rule(name=names)
    def leave(self, name: str) -> None:
        """A connection ends in order."""
        if self._up(self.clients[name]):
            self.clients[name].disconnect()
