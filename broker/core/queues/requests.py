"""Requests: publishes with a Response Topic, whose acknowledgement says whether anybody received it, also over links.

A request is sent to the links of other brokers. Each of them says in its acknowledgement whether it reached anybody
(0x10: it did not), and the publisher is told the result.
"""

from __future__ import annotations

from broker.core.queues.message import Message, MessageCopy


class Peer:
    """The interface of the connection behind an outbox: a client's, or a link's."""

    def answer(self, request: Request) -> None:
        """It is known whether its request reached a subscriber (`Request.reached`): acknowledge it."""
        raise NotImplementedError

    def take_over(self, now: float) -> None:
        """Another connection has come with the same client identifier: this one ends [MQTT-3.1.4-3]."""
        raise NotImplementedError

    def overflow(self, now: float) -> None:
        """Its queue ran over, and the policy is to end it then."""
        raise NotImplementedError

    def comes_from(self, host: str) -> bool:
        """Whether it is a client's connection from that IP address."""
        del host
        return False


class AskedLink:
    """One connection of a link, as requests use it.

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
    """A publish that waits for the answers of links. `packet_id` and `qos` (1 or 2) are its publisher's.

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
        # Until when the answer waits (`WaitingRequests`).
        self.until = 0.0

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
        """A link has said of a delivery whether it reached anybody, or never will (then it counts as reached)."""
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
            self.reached = reached
            peer.answer(self)


class WaitingRequests:
    """The requests of one connection that wait for answers. They have one time limit together, as most are answered
    long before."""

    def __init__(self) -> None:
        self.by_id: dict[int, Request] = {}
        """By the packet identifiers of their publisher."""
        self.due = 0.0
        """When to call `give_up`; 0.0: nothing is known to wait."""
        self._last = 0.0

    def wait(self, request: Request, until: float) -> bool:
        """The answer waits until a time at most, if not for less than those before it; whether `due` has become known.

        The caller puts it into `by_id`.
        """
        if until < self._last:
            until = self._last
        self._last = until
        request.until = until
        if self.due > 0.0:
            return False
        self.due = until
        return True

    def give_up(self, now: float) -> int:
        """Wait no longer for those whose time has come: how many they are. `due` is the next one's time."""
        over: list[Request] = []
        self.due = 0.0
        for request in self.by_id.values():
            if request.until > now:
                self.due = request.until
                break
            over.append(request)
        for request in over:
            request.give_up()
        return len(over)


class RequestMessage(MessageCopy):
    """The message of a request: the links that receive it are asked."""

    def __init__(self, message: Message, request: Request) -> None:
        super().__init__(message)
        self.request = request
