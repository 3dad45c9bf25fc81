"""Counts for the limits of a broker what is in a shared store, and not in its memory.

Owns how much of that each account is charged with. Promises: `session.max_sessions`, `limits.max_filter_bytes` and
`limits.max_user_bytes`, and what is fair, go by what all nodes keep, as it was about a second ago; in a store so large
that counting takes long, as long ago as `SHARE` of the time allows. What sessions of this node hold is counted by the
core, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.accounts import SESSION_SIZE, SESSIONS
from canopy_mqtt.core.routing.session_table import SESSION_BYTES
from canopy_mqtt.store.shared.calls import Subscribe
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.schema import FILTER_BYTES

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.router import Router

SHARE: Final = 0.05
"""The part of the time that a node has the database count."""
SOME: Final = 1_000
"""Accounts that are looked at in one turn: first those whose clients have come or left."""
LOOKS: Final = 2
"""Looks at an account after a client has left: the first one may be before that is written."""
REMEMBERED: Final = 60.0
"""Seconds for which an account is charged after its last client has left: it may be back with another identifier."""
ELSEWHERE: Final = """
SELECT count(*), coalesce(sum(filters), 0)::bigint FROM session WHERE node IS DISTINCT FROM $1 OR incarnation <> $2
"""
ELSEWHERE_OF: Final = """
SELECT account, count(*), sum(filters)::bigint FROM session
    WHERE account = ANY ($3) AND (node IS DISTINCT FROM $1 OR incarnation <> $2) GROUP BY account
"""
"""Sessions that are not here, and the bytes that count for their subscriptions; of all accounts, or by account."""


def size_of(subscriptions: Iterable[Subscribe]) -> int:
    """Return the bytes that count for subscriptions, as the database counts them."""
    return sum(FILTER_BYTES + len(each.filter.encode()) for each in subscriptions)


class Charge:
    """What an account holds elsewhere."""

    def __init__(self) -> None:
        self.sessions = self.filters = 0
        self.looks = LOOKS
        """Looks that are due at once."""
        self.until = 0.0
        """When it may be forgotten; 0.0: it is not known yet that it has no client here."""


class Holdings:
    """Charges the accounts of a router."""

    def __init__(self, database: SharedDatabase) -> None:
        self._database = database
        self._router: Router | None = None
        self._charges: dict[str, Charge] = {}
        """Of accounts that have or had clients here, in the order in which they were looked at."""
        self._at = 0.0

    def attach(self, router: Router) -> None:
        self._router = router

    def change(self, account: str, sessions: int, filters: int) -> None:
        """A client of the account comes or leaves, and with it what counts elsewhere: until the next look."""
        charge = self._charges.get(account)
        if charge is None:
            charge = self._charges[account] = Charge()
        charge.looks, charge.until = LOOKS, 0.0
        self._charge(account, charge, max(charge.sessions + sessions, 0), max(charge.filters + filters, 0))
        if self._router is not None:
            self._router.session_table.elsewhere = max(self._router.session_table.elsewhere + sessions, 0)
            self._router.table.elsewhere = max(self._router.table.elsewhere + filters, 0)

    async def turn(self, now: Callable[[], float]) -> None:
        """Look into the database, if it is time. `now`: a clock in seconds that only goes forward. Raises FAILURES."""
        began = now()
        router = self._router
        if router is None or began < self._at:
            return
        whose = self._database.node, self._database.incarnation
        [[router.session_table.elsewhere, router.table.elsewhere]] = await self._database.sweep(ELSEWHERE, *whose)
        due = [name for name, each in self._charges.items() if each.looks]
        names = dict.fromkeys(islice([*due, *self._charges], 2 * SOME))
        some = list(islice(names, SOME))
        if some:
            found = {
                name: (sessions, filters)
                for name, sessions, filters in await self._database.sweep(ELSEWHERE_OF, *whose, some)
            }
            for name in some:
                self._look(name, *found.get(name, (0, 0)), now())
        self._at = now() + (now() - began) / SHARE

    def _look(self, name: str, sessions: int, filters: int, now: float) -> None:
        charge = self._charges.pop(name)
        charge.looks = max(charge.looks - 1, 0)
        self._charge(name, charge, sessions, filters)
        assert self._router is not None
        account = self._router.accounts.named(name)
        if account.held[SESSIONS] > charge.sessions or charge.looks:
            charge.until = 0.0
        elif charge.until == 0.0:
            charge.until = now + REMEMBERED
        elif now >= charge.until:
            self._charge(name, charge, 0, 0)
            return
        self._charges[name] = charge

    def _charge(self, name: str, charge: Charge, sessions: int, filters: int) -> None:
        if self._router is not None:
            accounts = self._router.accounts
            account = accounts.named(name)
            grown = sessions - charge.sessions
            accounts.rooms[SESSIONS].change(account, grown)
            accounts.rooms[SESSION_SIZE].change(account, grown * SESSION_BYTES)
            accounts.filters.change(account, filters - charge.filters)
        charge.sessions, charge.filters = sessions, filters
