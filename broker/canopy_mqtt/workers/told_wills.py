"""The wills of a worker without a store, of which it tells the supervisor (`kept_wills`).

Each is told of once the turn of the event loop in which it has changed is over; a client without a will costs nothing.
A worker that gets some back treats them as a broker does that was killed and has a store: `store.will_grace`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.journal import Journal, LoneWillRecord
from canopy_mqtt.core.persistence.restore import restore_will
from canopy_mqtt.security.rules.claims import KeptRules
from canopy_mqtt.store.group_commit.principals import Principals

if TYPE_CHECKING:
    from canopy_mqtt.core.principal import Principal
    from canopy_mqtt.core.routing.router import Router
    from canopy_mqtt.workers.kept_wills import Told

PRINCIPALS: Final = Principals(KeptRules())


class ToldWills(Journal):
    """The wills of this worker. `tell` says something to the supervisor."""

    def __init__(self, router: Router, tell: Callable[..., None]) -> None:
        self._router = router
        self._tell = tell
        self._changes: dict[str, Told | None] = {}
        router.wills.keeper = self

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        fields = tuple(getattr(will, each) for each in Will.FIELDS)
        self._change(name, (PRINCIPALS.write(principal), fields, due))

    def will_cleared(self, client_id: str) -> None:
        self._change(client_id, None)

    def _change(self, name: str, told: Told | None) -> None:
        if not self._changes:
            asyncio.get_running_loop().call_soon(self.flush)
        self._changes[name] = told

    def flush(self) -> None:
        """Tell of all changes now."""
        if self._changes:
            self._tell("will", self._changes)
            self._changes = {}

    def take(self, some: Sequence[tuple[str, Told]]) -> None:
        """Take back wills of the process that was killed."""
        now = asyncio.get_running_loop().time()
        for name, (principal, fields, due) in some:
            due_in = due - now if due else None
            record = LoneWillRecord(name, PRINCIPALS.read(principal, name), Will(*fields), due_in)
            restore_will(self._router, record, now)
        self._tell("has wills")
