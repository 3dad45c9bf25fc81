"""Another node, as one node sees it: whether it is there, and which frame comes next in each direction.

Owns the greeting of two nodes and the numbers of their frames. Knows no transport, event loop or clock: callers pass
`now`, send what `greeting` and `frame` make, and tell rooms what follows (`LEFT`, `JOINED`).

Two nodes greet each other until each has heard its own epoch back. Whoever cannot go on (a gap, silence, an overflow)
takes a new epoch and greets again; the other hears an epoch it does not know, lets go, and greets again too. What was
sent in an epoch that is over is not taken for what is sent now, since each frame names both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.mesh import frames

NOTHING: Final = 0
"""Nothing follows."""

ANSWER: Final = 1
"""The node is to be greeted at once."""

LEFT: Final = 2
"""The node was there, and is not any more."""

JOINED: Final = 4
"""The node is there now. ANSWER may come together with one of the others."""


class Member:
    """One other node.

    `incarnation`: ours, a number above 0. `versions`: the lowest and the highest that we understand. `epochs` makes our
    next epoch, above all before it, also those that other members took: a node may be forgotten and come back.
    """

    def __init__(self, node: str, incarnation: int, versions: tuple[int, int], epochs: Callable[[], int]) -> None:
        self.node = node
        self.incarnation = 0
        """Its own; 0: it has not greeted yet."""
        self.there = False
        self.refused = False
        """No version is understood by both."""
        self.version = 0
        """What is spoken with it; 0: not agreed on."""
        self.their_versions = (0, 0)
        self.heard_at = 0.0
        """When it gave the last sign of life."""
        self.said_at = 0.0
        """When a frame was made for it last."""
        self._versions = versions
        self._ours = incarnation
        # What we are in, and the last that we heard of from it (0: none).
        self._epochs = epochs
        self._epoch = epochs()
        self._theirs = 0
        # The numbers of the last frames.
        self._sent = 0
        self._received = 0

    # -- what is sent --------------------------------------------------------------------------------------------------

    def greeting(self) -> bytes:
        """What is sent to it until it is there."""
        lowest, highest = self._versions
        stand = frames.REFUSES if self.refused else frames.THERE if self.there else frames.ASKS
        return frames.Greeting(lowest, highest, stand, self._ours, self._epoch, self._theirs).encode()

    def frame(self, messages: list[bytes], now: float) -> bytes:
        """The next frame for it. One without messages is a sign of life, and shows whether others were lost."""
        self._sent += 1
        self.said_at = now
        return frames.encode_frame(self._epoch, self._theirs, self._sent, messages)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def hears_greeting(self, data: bytes, now: float) -> int:
        """A greeting came. Raises ProtocolFault."""
        heard = frames.decode_greeting(data)
        if heard.incarnation < self.incarnation or heard.epoch < self._theirs:
            return NOTHING  # of a process that is gone, or of before
        self.heard_at = now
        outcome = NOTHING
        if heard.epoch > self._theirs:
            outcome = self.begin_anew() if self.there else NOTHING
            self.incarnation = heard.incarnation
            self._theirs = heard.epoch
            self._agree(heard.lowest, heard.highest)
        if self.refused:
            return outcome | (ANSWER if heard.stand == frames.ASKS else NOTHING)
        if heard.echo != self._epoch:
            return outcome | ANSWER
        if not self.there:
            self.there = True
            outcome |= JOINED
        return outcome | (ANSWER if heard.stand == frames.ASKS else NOTHING)

    def hears_frame(self, data: bytes, now: float) -> tuple[int, list[tuple[int, bytes]]]:
        """A frame came: what follows, and its messages. LEFT where one before it is missing. Raises ProtocolFault."""
        epoch, echo, number = frames.decode_frame(data)
        if epoch != self._theirs or echo != self._epoch or self.refused:
            return NOTHING, []  # of an epoch that is over
        outcome = NOTHING
        if not self.there:
            if number != 1:
                return ANSWER, []
            # Its greeting was lost; but only who has heard our epoch can name it.
            self.there = True
            outcome = JOINED
        elif number != self._received + 1:
            return self.begin_anew() | ANSWER, []
        self._received = number
        self.heard_at = now
        return outcome, frames.decode_messages(data)

    def begin_anew(self) -> int:
        """Let go of it, and have it hear so by the next greeting."""
        left = LEFT if self.there else NOTHING
        self.there = False
        self._epoch = self._epochs()
        self._sent = self._received = 0
        return left

    def process_gone(self) -> int:
        """Its process is gone; another one with its name may have begun before that."""
        self.incarnation = self._theirs = 0
        self.refused = False
        return self.begin_anew()

    def _agree(self, lowest: int, highest: int) -> None:
        self.their_versions = (lowest, highest)
        common = min(highest, self._versions[1])
        self.refused = common < max(lowest, self._versions[0])
        self.version = 0 if self.refused else common
