"""A connection as what is shared by all connections knows it: the rounds of the event loop, and the delays.

Owns the interface by which they wake it, give it its turns and end it, and what they note of it.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.net.timers import WheelItem


@mypyc_attr(allow_interpreted_subclasses=True)
class Endpoint(WheelItem):
    """A connection, as the rounds know it: of a client, to another broker, or to a subscription of the program."""

    def __init__(self) -> None:
        super().__init__()
        # The number of the first round in which it may read on: its receivers have been written to by then.
        self.ready_in: i64 = 0
        # The connection waits for a turn in which to read on, or to write.
        self.waits = False
        self.waits_to_write = False
        # How long its messages may wait for more, once that was asked: a `PeerDelay`.
        self.delay: object | None = None

    def wake(self, now: float) -> None:
        """Write, or wake the writer: the send buffer has something to take. `now`: the loop's clock."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called when the send buffer was closed, perhaps the protocol with it."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """End this connection after a fault of the broker while it was served. Must not raise."""
        raise NotImplementedError

    def check_failed(self, error: Exception) -> None:
        self.failed(error)

    def turn(self, work: i64) -> None:
        """Continue an unfinished read for so much work. Must not raise."""
        raise NotImplementedError

    def write_turn(self) -> None:
        """Write a batch. Must not raise."""
        raise NotImplementedError

    def end_in_turn(self) -> None:
        """End the connection, for which `Rounds.end` was called. Must not raise."""
        raise NotImplementedError
