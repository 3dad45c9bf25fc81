"""The births of Sparkplug's edge nodes and devices: which alias means which metric, from which number on.

Promises: a lookup goes by the sequence number of the message, so that it is the same in any order.
An NBIRTH ends what the births of the node's devices said before it. What is kept is bounded (`Limits.births`, names);
beyond that births are not taken, and the data after them are dead letters: what was said before them does not hold.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.sparkplug_message import BIRTHS, place, read
from canopy_pipeline.tables.plans import Limits

Named = dict[int, tuple[str, int | None]]
"""alias → name, datatype."""
Birth = tuple[str, str, str | None, int, list[tuple[int, str, int | None]]]
"""Group, node, device if it is of one, number, and the names, as commits keep them."""
MAX_NAME: Final = 1_024
"""Characters of a metric's name that are kept; a longer one names nothing."""
NAME_UNIT: Final = 64
"""Characters of a name that count as one: a longer one counts as several."""


class Births:
    """All births of a stretch of the record, and the last ones before it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.names = 0
        self.refused = 0
        """Births that did not fit."""
        self._said: dict[tuple[str, str, str | None], list[tuple[int, Named]]] = {}

    def take(self, topic: str, payload: bytes | None, seq: int) -> None:
        """Note a birth; numbers rise. Ignore a payload that is no birth or is damaged: it is a dead letter itself."""
        where = place(topic)
        if where is None or where[1] not in BIRTHS or payload is None or len(payload) > self.limits.payload_bytes:
            return
        try:
            said = read(payload, self.limits.items)
        except BadPayloadError:
            return
        group, _, node, device = where
        made: Named = {
            metric.alias: (metric.name, metric.datatype if metric.HasField("datatype") else None)
            for metric in said.metrics
            if metric.HasField("alias") and metric.HasField("name") and len(metric.name) <= MAX_NAME
        }
        self._keep((group, node, device), seq, made)

    def _keep(self, whose: tuple[str, str, str | None], seq: int, made: Named) -> None:
        told = self._said.setdefault(whose, [])
        if told and told[-1][1] == made:
            # Said again: it costs a number, not its names.
            made = told[-1][1]
            cost = 1
        else:
            cost = _cost(made)
        if self.names + cost > self.limits.births:
            self.refused += 1
            if not told:
                del self._said[whose]
            elif told[-1][1]:
                # At most one of these for each that was kept.
                told.append((seq, {}))
            return
        self.names += cost
        told.append((seq, made))

    def name(self, group: str, node: str, device: str | None, alias: int, seq: int) -> tuple[str, int | None] | None:
        """Return the metric (name, data type) of an alias in a message with this number; None if no birth names it."""
        born, of_node = self._before((group, node, None), seq)
        if device is not None:
            begun, of_device = self._before((group, node, device), seq)
            # Devices are born again after their node.
            if begun > born and alias in of_device:
                return of_device[alias]
        return of_node.get(alias)

    def _before(self, whose: tuple[str, str, str | None], seq: int) -> tuple[int, Named]:
        told = self._said.get(whose, [])
        # A birth may use its own aliases.
        at = bisect_right(told, seq, key=lambda each: each[0])
        return told[at - 1] if at else (0, {})

    def settle(self) -> None:
        """Keep only the last birth of each node and device: the stretch is done."""
        self.names = 0
        for whose, told in self._said.items():
            del told[:-1]
            self._said[whose] = told
            self.names += _cost(told[-1][1])

    def state(self) -> list[Birth]:
        """The last births."""
        return [
            (*whose, told[-1][0], [(alias, *about) for alias, about in told[-1][1].items()])
            for whose, told in self._said.items()
        ]

    @classmethod
    def of(cls, state: list[Birth], limits: Limits) -> Births:
        """The births that `state` gave."""
        made = cls(limits)
        for group, node, device, seq, named in state:
            made._keep((group, node, device), seq, {alias: (name, datatype) for alias, name, datatype in named})
        return made


def newest(*states: list[Birth]) -> list[Birth]:
    """Return the last birth of each node and device in several states."""
    found: dict[tuple[str, str, str | None], Birth] = {}
    for entry in sorted((each for state in states for each in state), key=lambda each: each[3]):
        found[entry[:3]] = entry
    return [*found.values()]


def _cost(made: Named) -> int:
    """Return the share of `Limits.births` that a birth takes."""
    return 1 + sum(1 + len(name) // NAME_UNIT for name, _ in made.values())
