"""Control packets to one client that wait for a commit: PUBACK, PUBREC, PUBCOMP, SUBACK …

Owns their order. Promises: none is sent before what it acknowledges is committed, and they are sent in the order in
which they came here [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4]: packets without anything to commit follow those that
are held. Those that end a publish count against Receive Maximum meanwhile, and their bytes as unread by the client, so
what is held is bounded. It ends with the connection.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from broker.core.persistence.commits import Commits, Waiter
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.windows.receive_window import ended_publishes

FILTERS_ANSWER: Final = 128
"""Bytes that a held SUBACK or UNSUBACK counts for besides its own: about what is kept of it. Each stands for notes of
its own, and Receive Maximum does not bound how many there are."""


class HeldGroup:
    """Packets that are sent when a number is committed; each piece may contain several.

    What a client can have held in any number tells the journal nothing, and so stands in one group: a few bytes each.
    """

    def __init__(self, number: i64) -> None:
        self.number: i64 = number
        self.packets: list[bytes] = []


class HeldAnswers(Waiter):
    """The held packets of one connection, in `Outbox.held` if there is a store that commits later."""

    def __init__(self, outbox: Outbox, commits: Commits) -> None:
        super().__init__()
        self.commits = commits
        self._outbox = outbox
        self._window = outbox.receive_window
        self._line: deque[HeldGroup] = deque()

    def send(self, packet: bytes, number: i64) -> None:
        """Send it when everything told up to `number` is committed. 0: it stands for nothing that was told."""
        line = self._line
        if not line:
            if number <= self.commits.committed:
                self._outbox.acknowledge(packet)
                return
            if self._outbox.closed:
                return
            self.commits.wait_for(self, number)
        if not line or number > line[-1].number:
            line.append(HeldGroup(number))
        line[-1].packets.append(packet)
        window = self._window
        window.held += ended_publishes(packet)
        window.held_bytes += _size(packet)

    def committed(self, number: i64) -> i64:
        """Send what is committed. How many pieces."""
        line = self._line
        window = self._window
        count: i64 = 0
        while line and line[0].number <= number:
            for packet in line.popleft().packets:
                window.held -= ended_publishes(packet)
                window.held_bytes -= _size(packet)
                self._outbox.acknowledge(packet)
                count += 1
        if line:
            self.commits.wait_for(self, line[0].number)
        return count

    def drop(self) -> None:
        """The connection is over: nobody waits any more.

        A QoS 2 publish stays known to its session; whatever the client misses an answer to it sends again.
        """
        self.commits.leave(self)
        window = self._window
        for group in self._line:
            for packet in group.packets:
                window.held -= ended_publishes(packet)
                window.held_bytes -= _size(packet)
        self._line.clear()


def _size(packet: bytes) -> i64:
    """Bytes that a held packet counts for."""
    size: i64 = len(packet)
    if packet[0] >= 0x90:
        size += FILTERS_ANSWER
    return size


def send_promise(outbox: Outbox, packet: bytes, kept: bool) -> None:
    """Queue a control packet that says that something was done. `kept`: a journal was told of it, now or earlier.

    Then it waits for everything that was told so far: what was told of it on an earlier connection counts, too.
    """
    held = outbox.held
    if held is None:
        outbox.control(packet)
    else:
        assert isinstance(held, HeldAnswers)
        held.send(packet, held.commits.told if kept else 0)
