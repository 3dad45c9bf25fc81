"""Estimates the rates of publishes by topic, prefix and publisher from a sample.

Each arriving PUBLISH has a length: its bytes and `SAMPLE_SHARE` more. The sampler draws points on the sum of these
lengths, one in `gap` on average and independent of all others. The core calls `take` for a PUBLISH with a point
(`core.hooks.PublishSampler`). A point stands for `gap` of the length, so that a PUBLISH of length m with a message of s
bytes counts gap / m messages and gap * s / m bytes for each of its points: on average exactly one message and s bytes,
and never much more. With little traffic, gap is 1 and every PUBLISH counts. The amount of traffic decides how many are
sampled, and chance decides which: no order of messages hides any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.framing import frame_body, frame_end, topic_end
from canopy_mqtt.core.hooks import SAMPLE_SHARE, PublishSampler
from canopy_mqtt.observe.sampling.space_saving import SpaceSaving, shortened

if TYPE_CHECKING:
    from mypy_extensions import i64

CERTAIN_GAPS: Final = 64
"""A PUBLISH as long as this many gaps counts as one message: only one in 10^27 of them has no point."""

GAP_GROWTH: Final = 4
"""Factor by which the gap grows when the budget is used up."""

MAX_GAP: Final = 1 << 40
"""Bytes: more than a machine can receive within a second."""

MAX_PREFIX_LEVELS: Final = 3
"""Levels of the longest prefix that is counted."""

MESSAGES: Final = 0
BYTES: Final = 1
TOPICS: Final = 0
PREFIXES: Final = 1
PUBLISHERS: Final = 2
KINDS: Final = 3


class Window:
    """The recent traffic. After `seconds` its weight is e times smaller, as in a load average."""

    def __init__(self, seconds: float, max_names: int) -> None:
        self.seconds = seconds
        # The decayed sum of all time (s); a count divided by it is a rate.
        self.span = 0.0
        # By `MESSAGES` and `BYTES`, and in each by `TOPICS`, `PREFIXES` and `PUBLISHERS`.
        self.counted: list[list[SpaceSaving]] = [
            [SpaceSaving(max_names), SpaceSaving(max_names), SpaceSaving(max_names)],
            [SpaceSaving(max_names), SpaceSaving(max_names), SpaceSaving(max_names)],
        ]

    def add(self, kind: int, name: bytes, messages: float, size: float, squared: float, size_squared: float) -> None:
        """Add messages and bytes of a name, and their variances."""
        self.counted[MESSAGES][kind].add(name, messages, squared)
        self.counted[BYTES][kind].add(name, size, size_squared)

    def pass_time(self, elapsed: float) -> None:
        """Decay everything by `elapsed` seconds."""
        factor = math.exp(-elapsed / self.seconds)
        self.span = self.span * factor + self.seconds * (1.0 - factor)
        for counted in self.counted:
            for each in counted:
                if each.total > 0.0:
                    each.decay(factor)


class Sampler(PublishSampler):
    """Samples publishes from its making on."""

    def __init__(
        self, windows: tuple[float, ...], max_names: int, rate: int, random: Callable[[], float], now: float
    ) -> None:
        """`max_names`: names in each list; `rate`: publishes to sample between two calls of `renew`, about.

        `random` returns numbers from 0 to 1, without 1.
        """
        super().__init__()
        self.until = 0
        # The length that a point stands for.
        self.gap: i64 = 1
        self.windows = [Window(seconds, max_names) for seconds in windows]
        # Publishes with a point since the start.
        self.sampled: i64 = 0
        self._random = random
        # Publishes that may still be sampled before the gap grows, and after each `renew`.
        self._budget: i64 = rate
        self._rate: i64 = rate
        # True if the gap has grown since the last `renew`.
        self._grown = False
        self._at = now

    def pass_time(self, now: float) -> None:
        """Decay all counts until `now`. Call it before reading any, and often."""
        elapsed = now - self._at
        if elapsed <= 0.0:
            return
        self._at = now
        for window in self.windows:
            window.pass_time(elapsed)

    def renew(self) -> None:
        """Start a new budget, once a second. If less than a third of the last one was used, sample more from now on."""
        used: i64 = self._rate - self._budget
        if not self._grown and used * 3 < self._rate and self.gap > 1:
            self.gap = self.gap // 2
            # Points are independent, so the next one may be drawn from any place on.
            self.until = self._draw()
        self._grown = False
        self._budget = self._rate

    def skip(self) -> None:
        self.until = self._draw()

    def take(self, buffer: bytes, start: i64, end: i64, count: i64, topic: bytes, mount: bytes, publisher: str) -> None:
        point: i64 = self.until + (end - start) + count * SAMPLE_SHARE
        who = shortened(publisher.encode("utf-8", "surrogatepass"))
        while start < end:
            stop: i64 = end if count == 1 else frame_end(buffer, start, end)
            if stop < 0:
                break
            length: i64 = stop - start + SAMPLE_SHARE
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
        """Count a PUBLISH that has a point. Return the place of the first point behind it."""
        self.sampled += 1
        gap: i64 = self.gap
        if length >= gap * CERTAIN_GAPS:
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
        if self._budget <= 0 and self.gap < MAX_GAP:
            self.gap *= GAP_GROWTH
            self._budget = self._rate
            self._grown = True

    def _draw(self) -> i64:
        """Draw the distance to the next point: geometric, so that each place is as likely as any other."""
        gap: i64 = self.gap
        if gap <= 1:
            return 0
        # The number in the first logarithm is above 0 and at most 1.
        drawn = math.log(1.0 - self._random()) / math.log(1.0 - 1.0 / float(gap))
        return int(drawn)

    def _add(self, messages: float, variance: float, size: i64, topic: bytes, publisher: bytes) -> None:
        long = float(size)
        weight = messages * long
        squared = variance * long * long
        prefixes: list[bytes] = []
        at: i64 = topic.find(b"/")
        levels: i64 = 0
        while at >= 0 and levels < MAX_PREFIX_LEVELS:
            prefixes.append(shortened(topic[: at + 1]))
            at = topic.find(b"/", at + 1)
            levels += 1
        name = shortened(topic)
        for window in self.windows:
            window.add(TOPICS, name, messages, weight, variance, squared)
            window.add(PUBLISHERS, publisher, messages, weight, variance, squared)
            for prefix in prefixes:
                window.add(PREFIXES, prefix, messages, weight, variance, squared)
