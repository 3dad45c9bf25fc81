"""`/events` for all workers: each second one snapshot made of theirs, while pages are open at this one.

A worker that does not answer has the totals that it had last, so that no chart shows its return as a burst.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final

from canopy_mqtt.admin.events import MAX_ALARMS, MAX_LINKS, MAX_RECENT, SAMPLE, EventFeed, EventStream, event, snapshot
from canopy_mqtt.admin.host import Host
from canopy_mqtt.observe.figures.merging import Sample, added
from canopy_mqtt.workers.asking import Siblings
from canopy_mqtt.workers.one_broker import Json
from canopy_mqtt.workers.ways import raised, reasons

TOTALS: Final = ("received", "sent", "bytes_in", "bytes_out", "dropped", "connections")
"""The columns of a sample that only grow."""

SECOND: Final = 1_000
"""Milliseconds."""

COPIED: Final = ("filters", "retained", "retained_bytes")
"""The totals of a snapshot that each worker has for all."""

Row = list[float]


class CrewFeed(EventFeed):
    """The snapshots of all workers, for the pages that are open at this one."""

    def __init__(self, broker: Host, max_streams: int, siblings: Siblings) -> None:
        super().__init__(broker, max_streams)
        self._siblings = siblings
        self._collecting: asyncio.Task[None] | None = None
        # The last snapshot of each worker.
        self._known: dict[str, Json] = {}
        siblings.answers["snapshot"] = self._own
        siblings.answers["history"] = self._own_history

    @property
    def name(self) -> str:
        return super().name.removesuffix(f"-{self._siblings.name}")

    async def history(self) -> list[Row]:
        """Return the kept samples of all workers, at the times of this one's."""
        heard = await self._siblings.ask_all("history")
        own = heard.found.pop(self._siblings.name)
        return [added_rows([row, *at_about(row[0], heard.found.values())]) for row in own]

    def greet(self, stream: EventStream) -> None:
        """Let a new page wait for the next snapshot, for a second at most."""

    def tell(self) -> None:
        """Begin to make a snapshot, unless one is still being made: a worker does not answer."""
        if self._collecting is None or self._collecting.done():
            self._collecting = self._broker.loop.create_task(self._collect())

    def close(self) -> None:
        super().close()
        if self._collecting is not None:
            self._collecting.cancel()

    async def _own(self) -> Json:
        return snapshot(self._broker, self.samples[-1])

    async def _own_history(self) -> list[Row]:
        return list(self.samples)

    async def _collect(self) -> None:
        try:
            heard = await self._siblings.ask_all("snapshot")
            self._known.update(heard.found)
            lines = reasons(heard._replace(found={name: each["not_ready"] for name, each in heard.found.items()}))
            made = one_snapshot(heard.found, [self._known[name] for name in heard.missing if name in self._known])
            self.put(event("snapshot", made | {"not_ready": lines}))
        except Exception as error:
            self._broker.faults.broke("http", error)


def added_rows(rows: list[Row]) -> Row:
    """Return the sample of all workers; the first is the one that says when."""
    made: list[float] = [sum(values) for values in zip(*rows, strict=True)]
    made[SAMPLE.index("at")] = rows[0][SAMPLE.index("at")]
    made[SAMPLE.index("lag")] = max(row[SAMPLE.index("lag")] for row in rows)
    return made


def at_about(at: float, others: Iterable[list[Row]]) -> list[Row]:
    """Return the sample of each of the others of about this time, if it was there then."""
    found: list[Row] = []
    for rows in others:
        behind = bisect_right(rows, at + SECOND, key=lambda row: row[0])
        if behind:
            found.append(rows[behind - 1])
    return found


def one_snapshot(found: dict[str, Json], missing: list[Json]) -> Json:
    """Return the snapshot of all workers. `missing`: the last ones of workers that do not answer."""
    all_of_them = list(found.values())
    first = all_of_them[0]
    away = [
        [value if name in TOTALS else 0 for name, value in zip(SAMPLE, each["sample"], strict=True)] for each in missing
    ]

    def newest(part: str, by: Callable[[Json], Any], most: int) -> list[Json]:
        return sorted((one for each in all_of_them for one in each[part]), key=by, reverse=True)[:most]

    slow = [each["slow"] for each in all_of_them]
    alarms = raised({name: each["alarms"]["active"] for name, each in found.items()}, "since")
    more = sum(each["alarms"]["count"] - len(each["alarms"]["active"]) for each in all_of_them)
    return {
        "sample": added_rows([*(each["sample"] for each in all_of_them), *away]),
        "uptime": max(each["uptime"] for each in all_of_them),
        "totals": {
            name: (max if name in COPIED else sum)(each["totals"][name] for each in all_of_them)
            for name in first["totals"]
        },
        "dropped": {
            cause: sum(each["dropped"][cause] for each in [*all_of_them, *missing]) for cause in first["dropped"]
        },
        "losers": newest("losers", _last_at, MAX_RECENT),
        "refused": newest("refused", _last_at, MAX_RECENT),
        "slow": {
            "count": sum(each["count"] for each in slow),
            "clients": sorted((one for each in slow for one in each["clients"]), key=lambda one: -one["delay"])[
                : max(len(each["clients"]) for each in slow)
            ],
        },
        "alarms": {
            "count": len(alarms) + more,
            "active": alarms[:MAX_ALARMS],
        },
        "upstream": [link for each in all_of_them for link in each["upstream"]][:MAX_LINKS],
        "store": {
            "kept": first["store"]["kept"],
            "failing": any(each["store"]["failing"] for each in all_of_them),
            "figures": _store({name: each["store"]["figures"] for name, each in found.items()}),
        },
    }


def _last_at(entry: Json) -> str:
    return str(entry["last_at"])


def _store(found: dict[str, Json]) -> Json:
    samples: dict[str, list[Sample]] = {
        worker: [((name,), value) for name, value in each.items()] for worker, each in found.items()
    }
    return {labels[0]: value for labels, value in added(samples)}
