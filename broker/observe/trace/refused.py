"""What clients that are traced are refused, as entries of their traces.

Owns `RefusalSink`. Promises: it is told of refusals only while something is traced; a fault here costs the entry alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from broker.core.refusals import KINDS, SUBSCRIBE, Refusal, RefusalListener, Refused
from broker.core.routing.router import Router
from broker.net.connections.connection import Connection
from broker.observe.trace.kept import Denied


class Traced(Protocol):
    """A connection that is looked at (`traces.Looking`)."""

    def mask(self, topic: str, filters: bool) -> int:
        """The traces that want to know that something about a topic, or a filter, was refused."""

    def refused(self, denied: Denied, reason: str, mask: int) -> None:
        """The client was refused something."""


class RefusalSink(RefusalListener):
    """Passes refusals on to the connections that are looked at."""

    def __init__(
        self, router: Router, lookings: Mapping[Connection, Traced], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._router = router
        self._lookings = lookings
        self._failed = failed

    def refused(self, refused: Refused, refusal: Refusal) -> None:
        """See `RefusalListener`."""
        try:
            session = self._router.sessions.get(refused.client_id)
            outbox = None if session is None else session.outbox
            looking = None if outbox is None else self._lookings.get(cast(Connection, outbox.owner))
            mask = 0 if looking is None else looking.mask(refusal.topic, refusal.kind == SUBSCRIBE)
            if looking is None or not mask:
                return
            reason = refusal.settle(refused.principal, self._router.access_control)
            denied = Denied(KINDS[refusal.kind], refusal.topic, refusal.reason_code, int(refusal.count))
            looking.refused(denied, reason, mask)
        except Exception as error:
            self._failed(error)
