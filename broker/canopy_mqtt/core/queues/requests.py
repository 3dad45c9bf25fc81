"""Publishes with a Response Topic, whose acknowledgement says whether a subscriber received it, also over links.

A request is sent to the links of other brokers. Each of them says in its acknowledgement whether it reached a
subscriber (0x10: it did not), and the publisher is told the result.
"""

from __future__ import annotations

from mypy_extensions import i64

from canopy_mqtt.core.codec.reason_codes import NO_MATCHING_SUBSCRIBERS
from canopy_mqtt.core.queues.delivery import LOST
from canopy_mqtt.core.queues.message import Message, MessageCopy


class Peer:
    """The interface of the connection behind a send buffer: a client's, or a link's."""

    def answer(self, request: Request) -> None:
        """Acknowledge its request, of which it is known now whether it reached a subscriber (`Request.reached`)."""
        raise NotImplementedError

    def take_over(self, now: float) -> None:
        """End, since another connection has come with the same client identifier [MQTT-3.1.4-3]."""
        raise NotImplementedError

    def overflow(self, now: float) -> None:
        """End, since its queue ran over, and the policy says so."""
        raise NotImplementedError

    def max_delay(self) -> float:
        """Return the seconds for which its messages may wait for more, by settings and requests; 0.0: none."""
        return 0.0


class AskedLink:
    """One connection of a link, as requests use it.

    It is `silent` from when a request has waited for it in vain until it answers. A silent link is not asked while it
    has anything to acknowledge: one that acknowledges nothing delays the requests of one `answer_timeout`, and not
    every request for as long as it is connected.
    """

    def __init__(self) -> None:
        self.silent = False

    def ask(self, request: Request, owes: bool) -> LinkAnswer | None:
        """Return what waits for its acknowledgement of a request that was sent to it; None: it is not asked.

        `owes`: it has anything to acknowledge besides that. A request that is not being routed any more is answered
        without it.
        """
        if not request.routing or (self.silent and owes):
            return None
        self.silent = False
        request.asked += 1
        request.left += 1
        request.awaited.append(self)
        return LinkAnswer(request, self)


class LinkAnswer:
    """Tells a request what one link has said of it."""

    def __init__(self, request: Request, link: AskedLink) -> None:
        self._request = request
        self._link = link

    def settled(self, code: i64) -> None:
        """Take the link's reason code, in time or not; `LOST` counts as reached."""
        request, link = self._request, self._link
        if code != LOST:
            if link in request.awaited:
                request.awaited.remove(link)
            link.silent = False
        request.settle(code != NO_MATCHING_SUBSCRIBERS)


class Request:
    """A publish that waits for the answers of links. `packet_id` and `qos` (1 or 2) are its publisher's.

    Promises:
    - The publisher is told once: that a subscriber was reached, as soon as one link says so, or that none was, as soon
      as all have said that. Only 0x10 says that none was.
    - No request waits for a link that says nothing for `limits.answer_timeout` seconds, nor for one that is gone: a
      lost delivery (dropped, expired, given to another, its connection ended) counts as reached, since it may have
      been.
    - Bounded: a request is referred to by its deliveries, which are bounded by their queues, and by the publisher's
      connection, which may have no more of them than its Receive Maximum. It refers to that connection until it has
      answered.
    """

    def __init__(self, packet_id: int, qos: int) -> None:
        self.packet_id = packet_id
        self.qos = qos
        # Links that took it and will say whom it reached; those that have not said so yet; True once it reached one.
        self.asked = 0
        self.left = 0
        self.reached = False
        # Those that have not acknowledged it.
        self.awaited: list[AskedLink] = []
        # True while it is being routed: links that take it later (from another member of a group) are not asked.
        self.routing = True
        # The connection to tell. None: the answer does not wait, was given, or is of no use any more.
        self.peer: Peer | None = None
        # Until when the answer waits (`WaitingRequests`).
        self.until = 0.0

    def waits(self, peer: Peer, count: int) -> bool:
        """Return whether the answer waits for links, after every queue has had it: `peer` is told of it later then.

        It was for `count` sessions and groups. With any besides the links that were asked, it has reached a subscriber.
        A peer that is not interested any more sets `peer` to None.
        """
        if self.left == 0 or self.reached or count > self.asked:
            return False
        self.peer = peer
        return True

    def settle(self, reached: bool) -> None:
        """Take what a link has said of a delivery: whether it reached a subscriber."""
        self.left -= 1
        if reached:
            self.reached = True
        elif self.left > 0:
            return
        self._tell(self.reached)

    def give_up(self) -> None:
        """Answer without the links that have said nothing for too long: it may have reached a subscriber there."""
        for link in self.awaited:
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
        """The time at which to call `give_up`; 0.0: nothing is known to wait."""
        self._last = 0.0

    def wait(self, request: Request, until: float) -> bool:
        """Let the answer wait until a time at most, and not less long than those before it.

        Return True if `due` has become known. The caller puts the request into `by_id`.
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
        """Answer the requests whose time has come, and return their number. `due` is the next one's time then."""
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
