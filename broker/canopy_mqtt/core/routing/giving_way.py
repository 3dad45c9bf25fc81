"""Makes room for an account that is short of it, where that is fair (`canopy_mqtt.core.principal`).

Owns what gives way: sessions. First the empty ones of clients that are away, of any account, since nothing is lost with
them; then those of the largest account above its fair share, if the client is away, in the order in which the clients
left. Such a session ends as at its expiry: its will is published, and its messages are counted as lost
(`session-ended`). A connected client loses nothing. The work of one call is bounded, and charged to the client.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.jobs import END_SESSION_WORK, STEP_WORK
from canopy_mqtt.core.principal import FILTERS, MAX_USER_BYTES, SESSION_SIZE, SETTINGS, Principal
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session

MAX_ENDED: Final = 256
"""Sessions that may end for one that comes: a will of 400 KB takes the room of all these empty ones."""


def session_room(router: Router, client_id: str, principal: Principal, will: Will | None, now: float) -> str:
    """See that a client may have its session: the setting that leaves no room for it; empty: there is room."""
    limits = router.limits
    table = router.session_table
    accounts = router.accounts
    account = accounts.of(principal)
    grows = table.grows_by(client_id, principal, will)
    until: i64 = router.budget.used + STEP_WORK
    lacking = -1
    for _ in range(MAX_ENDED):
        lacking = table.lacking(limits, account, client_id, grows)
        if lacking < 0:
            break
        room = accounts.rooms[lacking]
        ending: Session | None = None
        if table.is_fair(limits, lacking, account, grows):
            ending = table.oldest_empty()
        gives = ending is None
        if gives and router.budget.used < until:
            need, bound = 1, limits.max_sessions
            if lacking == SESSION_SIZE:
                need, bound = grows, limits.max_session_bytes
            ending = table.giver(room, account, need, bound)
        if ending is None or ending.client_id == client_id:
            break
        if gives:
            accounts.give_way(ending.account.owner, room)
        router.budget.used += END_SESSION_WORK
        router.end_session(ending, now)
    else:
        lacking = table.lacking(limits, account, client_id, grows)
    if lacking >= 0:
        accounts.refuse(account, accounts.rooms[lacking], SETTINGS[lacking])
        return SETTINGS[lacking]
    if grows > 0 and 0 < limits.max_user_bytes < account.bytes + grows:
        accounts.refuse(account, accounts.rooms[SESSION_SIZE], MAX_USER_BYTES)
        return MAX_USER_BYTES
    return ""


def filter_room(router: Router, session: Session, name: str, group_name: str, topic_filter: str, now: float) -> str:
    """See that a client may have another subscription, by what it takes; one that it has already it may replace.

    The setting that leaves no room for it; empty: there is room. `name` as the client wrote it, `topic_filter` without
    `$share/name/`.
    """
    if name in session.subscriptions:
        return ""
    limits = router.limits
    table = router.table
    accounts = router.accounts
    owner = session.account.owner
    cost: i64 = table.cost(name, group_name, topic_filter)
    if cost > table.own_room(limits, session):
        if 0 < limits.max_user_bytes < owner.bytes + cost:
            accounts.refuse(owner, accounts.filters, MAX_USER_BYTES)
            return MAX_USER_BYTES
        return "limits.max_client_bytes"
    until: i64 = router.budget.used + STEP_WORK
    while not table.is_fair(limits, session, cost):
        ending: Session | None = None
        if router.budget.used < until:
            if table.leaving and accounts.filters.is_below_share(owner, int(cost), limits.max_filter_bytes):
                # Of sessions that are over.
                table.work_off(table.drops)
                continue
            ending = router.session_table.giver(accounts.filters, owner, int(cost), limits.max_filter_bytes)
        if ending is None:
            accounts.refuse(owner, accounts.filters, SETTINGS[FILTERS])
            return SETTINGS[FILTERS]
        accounts.give_way(ending.account.owner, accounts.filters)
        router.budget.used += END_SESSION_WORK
        router.end_session(ending, now)
    return ""
