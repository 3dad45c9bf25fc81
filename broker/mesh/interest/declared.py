"""What is declared to other nodes of what is wanted here, within the bound of the one that takes least.

Owns `Declared`: the keys (topic filters and share groups) with their states, and what has changed in this turn. It
stands below a ledger (`broker.upstream.filters`), whose declarations it takes. A wider filter is declared for what
finds no room.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from broker.mesh.interest.wire import ABSENT, MASK, WANTED, mark
from broker.upstream.filters.ledger import UpstreamSubscriptions

WIDES: Final = 16
"""Wide filters that are declared at most, so many as there are first levels that begin with `$`, and one."""

WIDE_BYTES: Final = 256
"""Bytes of a wide filter at most. What has a longer first level is undeclared where there is no room."""

UNBOUNDED: Final = 1 << 62
"""A bound where nobody has named one."""

SPARE: Final = 16
"""One in so many places stays free when those that were left out come back: who goes and comes finds room."""


class Places:
    """Names, each at a place of its own. Walked downwards from the last place, none is missed, whoever comes and goes.

    One that is new takes the next place; the last one takes the place of one that goes.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._places: dict[str, int] = {}

    def has(self, name: str) -> bool:
        """Whether a name is there."""
        return name in self._places

    def add(self, name: str) -> None:
        """A name that is not there."""
        self._places[name] = len(self.names)
        self.names.append(name)

    def discard(self, name: str) -> None:
        """A name that is there."""
        place = self._places.pop(name)
        last = self.names.pop()
        if last != name:
            self.names[place] = last
            self._places[last] = place


class Declared(UpstreamSubscriptions):
    """The table. `count`, `digest`: how many keys are declared, and the sum of their marks.

    `changed`: the keys that have changed since the caller last took them, each with the state that it had.
    `undeclared`: for how many nothing is declared.

    Promises: what finds no room is *left out*, and in its place a wide filter is declared, `#` or `$level/#`, that
    matches all of its topics: the other nodes then send more than is wanted, and nothing is lost. For wide filters some
    places are kept free. Share groups come before filters, which make room for them; for a group there is no wide
    filter, so that groups alone, beyond the bound, are `undeclared`. Each call costs the same whatever is in the table;
    what takes more is done by `settle`, in turns.
    """

    def __init__(self) -> None:
        self.filters = Places()
        self.groups = Places()
        self.wides: dict[str, int] = {}
        self.count = 0
        self.digest = 0
        self.changed: dict[str, int] = {}
        self.undeclared = 0
        # The bound, and the bytes of what stands in `filters` and `groups`.
        self._most = UNBOUNDED
        self._most_bytes = UNBOUNDED
        self._bytes = 0
        self._states: dict[str, int] = {}
        # What was left out: filters with what is declared in their place ("": nothing), groups with their states.
        self._left_out: OrderedDict[str, str] = OrderedDict()
        self._crowded: OrderedDict[str, int] = OrderedDict()

    @property
    def left_out(self) -> int:
        """How many filters and groups found no room."""
        return len(self._left_out) + len(self._crowded)

    def state(self, key: str) -> int:
        """What is declared of a key."""
        if self.filters.has(key) or key in self.wides:
            return WANTED
        return self._states.get(key, ABSENT)

    def limit(self, most: int, most_bytes: int) -> None:
        """Another bound, in keys and in bytes of them. `settle` brings the table within it."""
        self._most = most
        self._most_bytes = most_bytes

    def fits(self, most: int, most_bytes: int) -> bool:
        """Whether all can be declared to a node that takes so much."""
        return self._size() + WIDES <= most and self._bytes + WIDES * WIDE_BYTES <= most_bytes

    # -- what the ledger says ------------------------------------------------------------------------------------------

    def declare(self, topic_filter: str) -> None:
        """The others are to have this filter."""
        if self._has_room(topic_filter):
            self._enter(topic_filter)
        else:
            self._leave_out(topic_filter)

    def withdraw(self, topic_filter: str) -> None:
        """And no more."""
        if topic_filter in self._left_out:
            self._take_back(topic_filter)
        else:
            self._remove(topic_filter)

    def put_group(self, key: str, state: int) -> None:
        """The state of a share group: as often as it likes."""
        if key in self._crowded:
            if state != ABSENT:
                self._crowded[key] = state
                return
            del self._crowded[key]
            self.undeclared -= 1
        elif self.groups.has(key) or (state != ABSENT and self._has_room(key)):
            self._set_group(key, state)
        elif state != ABSENT:
            self._crowded[key] = state
            self.undeclared += 1

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has something to do."""
        if self._overfull() or (self._crowded and self.filters.names):
            return True
        if self._crowded and self._has_room(next(iter(self._crowded))):
            return True
        return bool(self._left_out) and self._has_spare(next(iter(self._left_out)))

    def settle(self, units: int) -> int:
        """Have things leave that do not fit, and come back that do: so many at most. How many it was."""
        done = 0
        while done < units and self.unsettled:
            done += 1
            if self._overfull():
                self._make_room()
            elif self._crowded:
                first = next(iter(self._crowded))
                if self._has_room(first):
                    self.undeclared -= 1
                    self._set_group(first, self._crowded.pop(first))
                else:
                    self._make_room()
            else:
                first = next(iter(self._left_out))
                self._enter(first)
                self._take_back(first)
        return done

    def _make_room(self) -> None:
        if self.filters.names:
            last = self.filters.names[-1]
            # What stands for it comes first.
            self._leave_out(last)
            self._remove(last)
            return
        last = self.groups.names[-1]
        self._crowded[last] = self._states[last]
        self.undeclared += 1
        self._set_group(last, ABSENT)

    def _size(self) -> int:
        return len(self.filters.names) + len(self.groups.names)

    def _overfull(self) -> bool:
        return self._size() > 0 and not self.fits(self._most, self._most_bytes)

    def _has_room(self, key: str) -> bool:
        most = self._most - WIDES
        most_bytes = self._most_bytes - WIDES * WIDE_BYTES
        return self._size() < most and self._bytes + _bytes(key) <= most_bytes

    def _has_spare(self, key: str) -> bool:
        if self._size() >= self._most - WIDES - self._most // SPARE:
            return False
        return self._bytes + _bytes(key) <= self._most_bytes - WIDES * WIDE_BYTES - self._most_bytes // SPARE

    # -- entries -------------------------------------------------------------------------------------------------------

    def _enter(self, topic_filter: str) -> None:
        before = self.state(topic_filter)
        self.filters.add(topic_filter)
        self._bytes += _bytes(topic_filter)
        self._note(topic_filter, before)

    def _remove(self, topic_filter: str) -> None:
        before = self.state(topic_filter)
        self.filters.discard(topic_filter)
        self._bytes -= _bytes(topic_filter)
        self._note(topic_filter, before)

    def _set_group(self, key: str, state: int) -> None:
        before = self.state(key)
        if before == state:
            return
        if state == ABSENT:
            self.groups.discard(key)
            self._bytes -= _bytes(key)
            del self._states[key]
        else:
            if before == ABSENT:
                self.groups.add(key)
                self._bytes += _bytes(key)
            self._states[key] = state
        self._note(key, before)

    def _leave_out(self, topic_filter: str) -> None:
        wide = _wide(topic_filter)
        count = self.wides.get(wide, 0)
        if len(wide) * 4 > WIDE_BYTES or (count == 0 and len(self.wides) >= WIDES):
            self._left_out[topic_filter] = ""
            self.undeclared += 1
            return
        self._left_out[topic_filter] = wide
        before = self.state(wide)
        self.wides[wide] = count + 1
        self._note(wide, before)

    def _take_back(self, topic_filter: str) -> None:
        wide = self._left_out.pop(topic_filter)
        if not wide:
            self.undeclared -= 1
            return
        before = self.state(wide)
        self.wides[wide] -= 1
        if self.wides[wide] == 0:
            del self.wides[wide]
        self._note(wide, before)

    def _note(self, key: str, before: int) -> None:
        after = self.state(key)
        if after == before:
            return
        if before != ABSENT:
            self.count -= 1
            self.digest -= mark(key, before)
        if after != ABSENT:
            self.count += 1
            self.digest += mark(key, after)
        self.digest &= MASK
        self.changed.setdefault(key, before)


def _wide(topic_filter: str) -> str:
    """What matches every topic that the filter matches, and is as wide as can be [MQTT-4.7.2-1]."""
    if topic_filter.startswith("$"):
        return topic_filter.split("/", 1)[0] + "/#"
    return "#"


def _bytes(key: str) -> int:
    return len(key) if key.isascii() else len(key.encode())
