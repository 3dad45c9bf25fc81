"""Estimates the cost of publishes by topic, prefix and publisher from a sample.

Each arriving PUBLISH has a length: its bytes and `SHARE` more. The sampler draws points on the sum of these lengths,
one in `gap` on average and independent of all others. The handler of a PUBLISH subtracts its length from `until` and
calls `take` if that is below 0; this is the only work for a publish without a point. A point stands for `gap` of the
length, so a PUBLISH of m and a message of s bytes counts, for each of its points, for gap / m messages and gap * s / m
bytes: on average for exactly one message and s bytes, and never for much more. With little traffic, gap is 1 and all
are counted. The traffic decides how much is sampled, and never what: no order of messages hides any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.core.codec.framing import frame_body, frame_end
from broker.core.codec.publish_layout import topic_end
from broker.core.sampling.space_saving import SpaceSaving, shortened

if TYPE_CHECKING:
    from mypy_extensions import i64

SHARE: Final = 256
"""What a PUBLISH counts for beside its bytes, so that small ones are seen as well as large ones."""

NEVER: Final = 1 << 62
"""What is left until the next point when none is drawn: more than comes in in a century."""

CERTAIN: Final = 64
"""A PUBLISH as long as so many gaps is counted as it is: it has a point but for one in 10^27."""

SPARSER: Final = 4
"""By what the gap grows when the budget is used up."""

LARGEST_GAP: Final = 1 << 40
"""More than a machine can take in within a second."""

LEVELS: Final = 3
"""Levels of the longest prefix that is counted."""

MESSAGES: Final = 0
BYTES: Final = 1
TOPICS: Final = 0
PREFIXES: Final = 1
PUBLISHERS: Final = 2
KINDS: Final = 3


class Window:
    """The recent traffic: after `seconds` it weighs e times less, as in a load average."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds = seconds
        # How much time is in it, decayed alike (s): what a count is divided by for a rate.
        self.span = 0.0
        # By `MESSAGES` and `BYTES`, and in each by `TOPICS`, `PREFIXES` and `PUBLISHERS`.
        self.counted: list[list[SpaceSaving]] = [
            [SpaceSaving(most), SpaceSaving(most), SpaceSaving(most)],
            [SpaceSaving(most), SpaceSaving(most), SpaceSaving(most)],
        ]

    def add(self, kind: int, name: bytes, messages: float, size: float, squared: float, size_squared: float) -> None:
        """Count so many messages and bytes of a name; their variances."""
        self.counted[MESSAGES][kind].add(name, messages, squared)
        self.counted[BYTES][kind].add(name, size, size_squared)

    def pass_time(self, elapsed: float) -> None:
        """So many seconds have passed."""
        factor = math.exp(-elapsed / self.seconds)
        self.span = self.span * factor + self.seconds * (1.0 - factor)
        for counted in self.counted:
            for each in counted:
                if each.total > 0.0:
                    each.decay(factor)


class Sampler:
    """Samples publishes. While it is off, nothing calls `take`."""

    def __init__(self) -> None:
        # What is left until the next point; taken from by whoever handles a PUBLISH.
        self.until: i64 = NEVER
        # The length that a point stands for.
        self.gap: i64 = 1
        self.windows: list[Window] = []
        # Publishes with a point since the start.
        self.sampled: i64 = 0
        self._random: Callable[[], float] | None = None
        # Publishes that may still be taken before the gap grows, and how many may at first.
        self._budget: i64 = 0
        self._rate: i64 = 0
        # Whether the gap has grown since the last `renew`.
        self._sparser = False
        self._at = 0.0

    @property
    def on(self) -> bool:
        """Whether anything is sampled."""
        return self._random is not None

    def start(self, windows: tuple[float, ...], most: int, rate: int, random: Callable[[], float], now: float) -> None:
        """Begin. `most`: names in each list; `rate`: publishes that are taken between two calls of `renew`, about.

        `random` gives numbers from 0 up to, and not, 1.
        """
        self.windows = [Window(seconds, most) for seconds in windows]
        self._random = random
        self._rate = self._budget = rate
        self._at = now
        self.gap = 1
        self.until = 0

    def stop(self) -> None:
        """Sample nothing, and keep nothing."""
        self.until = NEVER
        self.windows = []
        self._random = None

    def pass_time(self, now: float) -> None:
        """Have it be `now`. Called before anything is read, and often."""
        elapsed = now - self._at
        if elapsed <= 0.0:
            return
        self._at = now
        for window in self.windows:
            window.pass_time(elapsed)

    def renew(self) -> None:
        """A second has passed: there is a new budget. Where the last one was hardly used, more is to be sampled."""
        used: i64 = self._rate - self._budget
        if not self._sparser and used * 3 < self._rate and self.gap > 1:
            self.gap = self.gap // 2
            # Any place is as good a beginning as any other.
            self.until = self._draw()
        self._sparser = False
        self._budget = self._rate

    def skip(self) -> None:
        """`until` is below 0, and nobody knows any more what it was that had the point."""
        self.until = self._draw()

    def take(self, buffer: bytes, start: i64, end: i64, count: i64, topic: bytes, mount: bytes, publisher: str) -> None:
        """`until` is below 0: of the `count` frames in `buffer[start:end]`, count those that have a point.

        `topic`: that of a single frame which bears none itself, but an alias.
        """
        point: i64 = self.until + (end - start) + count * SHARE
        who = shortened(publisher.encode("utf-8", "surrogatepass"))
        while start < end:
            stop: i64 = end if count == 1 else frame_end(buffer, start, end)
            if stop < 0:
                break
            length: i64 = stop - start + SHARE
            if point < length:
                name = topic
                if not name:
                    body: i64 = frame_body(buffer, start)
                    name = buffer[body + 2 : topic_end(buffer, body)]
                point = self._count(point, length, stop - start, mount + name, who)
            point -= length
            start = stop
        self.until = point

    def _count(self, point: i64, length: i64, size: i64, topic: bytes, publisher: bytes) -> i64:
        """Count a PUBLISH that has a point; where the first is that it does not have."""
        self.sampled += 1
        gap: i64 = self.gap
        if length >= gap * CERTAIN:
            self._add(1.0, 0.0, size, topic, publisher)
            self._spend()
            return length + self._draw()
        points: i64 = 0
        while point < length:
            points += 1
            point += 1 + self._draw()
        each = float(gap) / float(length)
        # An unbiased estimate of the variance, where points are independent.
        self._add(each * float(points), each * each * float(points), size, topic, publisher)
        before: i64 = self.gap
        self._spend()
        if self.gap != before:
            return length + self._draw()
        return point

    def _spend(self) -> None:
        self._budget -= 1
        if self._budget <= 0 and self.gap < LARGEST_GAP:
            self.gap *= SPARSER
            self._budget = self._rate
            self._sparser = True

    def _draw(self) -> i64:
        """How much is left out until the next point: geometric, so that each place is as likely as any other."""
        random = self._random
        gap: i64 = self.gap
        if gap <= 1 or random is None:
            return 0
        # From 0, and not, up to 1.
        drawn = math.log(1.0 - random()) / math.log(1.0 - 1.0 / float(gap))
        return int(drawn)

    def _add(self, messages: float, variance: float, size: i64, topic: bytes, publisher: bytes) -> None:
        long = float(size)
        weight = messages * long
        squared = variance * long * long
        prefixes: list[bytes] = []
        at: i64 = topic.find(b"/")
        levels: i64 = 0
        while at >= 0 and levels < LEVELS:
            prefixes.append(shortened(topic[: at + 1]))
            at = topic.find(b"/", at + 1)
            levels += 1
        name = shortened(topic)
        for window in self.windows:
            window.add(TOPICS, name, messages, weight, variance, squared)
            window.add(PUBLISHERS, publisher, messages, weight, variance, squared)
            for prefix in prefixes:
                window.add(PREFIXES, prefix, messages, weight, variance, squared)
