"""The figures of all workers, as those of one broker: what `/metrics`, the API and `$SYS` have."""

from __future__ import annotations

from canopy_mqtt.observe.figures.catalogue import Found, merged
from canopy_mqtt.observe.figures.figure import Figure
from canopy_mqtt.workers.asking import SUPERVISOR, Away, Siblings


async def of_all(siblings: Siblings, what: str) -> tuple[list[tuple[Figure, Found]], list[str]]:
    """Ask all workers, and the supervisor, for their figures. Returns also who did not answer.

    `what`: the question, to which each answers with what it has, by the names of the figures.
    """
    answered, missing = await siblings.ask_all(what)
    found = siblings.counters[what].settle(answered, missing)
    for name in missing:
        found[name]["worker_up"] = [((name,), 0)]
    try:
        found[SUPERVISOR] = await siblings.ask(SUPERVISOR, "figures")
    except Away:
        missing.append(SUPERVISOR)
    return list(merged(found)), missing
