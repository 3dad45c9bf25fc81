"""Requests: publishes with a Response Topic whose acknowledgement tells whether anybody was reached, also over links.

A request goes to links of other brokers. Each of them says in its own acknowledgement whether it reached anybody (0x10:
it did not), and the publisher is told what they said.
"""

from __future__ import annotations

from broker.core.queues.message import Message, MessageCopy
from broker.core.queues.peer import Peer


class AskedLink:
    """One connection of a link, as requests see it.

    `silent`: a request has waited for it in vain, and it has not answered since. Then it is not asked while it has
    anything to acknowledge: a link that acknowledges nothing delays the requests of one `answer_timeout`, and not every
    request for as long as it is connected.
    """

    def __init__(self) -> None:
        self.silent = False

    def takes(self, request: Request, owes: bool) -> bool:
        """A request has been sent to it; whether it is asked. `owes`: it has anything to acknowledge besides that.

        One that is not being routed any more is answered without it.
        """
        if not request.routing or (self.silent and owes):
            return False
        self.silent = False
        request.ask(self)
        return True


class Request:
    """A publish that waits for what links say of it. `packet_id` and `qos` (1 or 2) are its publisher's.

    Promises:
    - The publisher is told once: that somebody was reached, as soon as one link says so, or that nobody was, as soon as
      all have said that. Nothing but 0x10 counts as "nobody".
    - Nothing waits for a link that says nothing for `limits.answer_timeout` seconds, nor for one that is gone: whatever
      else becomes of a delivery (dropped, expired, given to another, its connection ended) counts as reached, since
      nobody can know. A link that was waited for in vain is not asked again before it has acknowledged (`AskedLink`).
    - Bounded: a request is referred to by its deliveries, which are bounded by their queues, and by the publisher's
      connection, which may have no more of them than its Receive Maximum. It refers to that connection until it has
      answered.
    """

    # Whether it goes on to be asked when a connection ends.
    lasting = False

    def __init__(self, packet_id: int, qos: int) -> None:
        self.packet_id = packet_id
        self.qos = qos
        # Links that took it and say whom it reached; those that have not said so yet; and whether it reached anybody.
        self.asked = 0
        self.left = 0
        self.reached = False
        # Those that have not acknowledged it.
        self._awaited: list[AskedLink] = []
        # Whether it is being routed: links that take it later (from another member of a group) are not asked.
        self.routing = True
        # Whom to tell. None: the answer does not wait, was given, or is of no use to anybody any more.
        self.peer: Peer | None = None

    def waits(self, peer: Peer, count: int) -> bool:
        """Every queue has had it: whether the answer waits for links, so that `peer` is told of it later.

        `count`: how many sessions and groups it was for. With any besides the links that were asked, it has reached
        somebody. A peer that is not interested any more sets `peer` to None.
        """
        if self.left == 0 or self.reached or count > self.asked:
            return False
        self.peer = peer
        return True

    def ask(self, link: AskedLink) -> None:
        """A link has taken it."""
        self.asked += 1
        self.left += 1
        self._awaited.append(link)

    def heard(self, link: AskedLink) -> None:
        """A link has acknowledged it, in time or not. `settle` follows."""
        if link in self._awaited:
            self._awaited.remove(link)
        link.silent = False

    def settle(self, reached: bool) -> None:
        """One of the links has said whether it reached anybody, or never will (then it counts as reached)."""
        self.left -= 1
        if reached:
            self.reached = True
        elif self.left > 0:
            return
        self._tell(self.reached)

    def give_up(self) -> None:
        """Too long has been waited for a link that says nothing: nobody can know."""
        for link in self._awaited:
            link.silent = True
        self._tell(True)

    def _tell(self, reached: bool) -> None:
        peer = self.peer
        if peer is not None:
            self.peer = None
            peer.answer(self.packet_id, self.qos, reached)


class NodeRequest(Request):
    """A publish whose acknowledgement waits until all nodes of a mesh that want the message have it, and says whether
    anybody was reached. It waits on while the connection to a node is made again."""

    lasting = True

    def waits(self, peer: Peer, count: int) -> bool:
        """See `Request.waits`; here for each node and link that was asked."""
        if self.left == 0:
            return False
        if count > self.asked:
            self.reached = True
        self.peer = peer
        return True

    def settle(self, reached: bool) -> None:
        """See `Request.settle`; the publisher is told when the last has said so."""
        self.left -= 1
        if reached:
            self.reached = True
        if self.left == 0:
            self._tell(self.reached)


class RequestMessage(MessageCopy):
    """The message of a request: the links that take it are asked."""

    def __init__(self, message: Message, request: Request) -> None:
        super().__init__(message)
        self.request = request
