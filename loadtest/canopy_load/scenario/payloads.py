"""The contents of payloads: sizes drawn from a distribution, templates, properties.

Owns: turning a scenario's `payload` and `properties` into what a ``Sender`` asks for.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from canopy_load.scenario.patterns import Pattern
from canopy_load.scenario.scenario_schema import Payload, Properties, Publish
from canopy_mqtt.core.codec.properties import encode_forward

DEFAULT_SIZE = 64

PLACE: Final = b"\x00correlation-mrk"
"""The placeholder of the correlation data in the properties of a request: as long as a mark."""


def sizes(payload: Payload, source: random.Random) -> tuple[int, Callable[[], int] | None]:
    """Return the one size, or a function that draws the next one."""
    if payload.between is not None:
        low, high = payload.between
        if low == high:
            return low, None
        return low, lambda: source.randint(low, high)
    if payload.sizes is not None:
        values = [int(key) for key in payload.sizes]
        if len(values) == 1:
            return values[0], None
        weights = list(payload.sizes.values())
        return values[0], lambda: source.choices(values, weights)[0]
    return payload.size or DEFAULT_SIZE, None


def template(text: str, run: str, group: str, client: int) -> Callable[[int], tuple[bytes, bytes]]:
    """Return a function from topic number to the payload before and behind the mark.

    Raises:
        ValueError: a pattern in it means nothing.
    """
    before, after = (Pattern(part) for part in text.split("%m"))

    def parts(number: int) -> tuple[bytes, bytes]:
        return before.expand(run, group, client, number).encode(), after.expand(run, group, client, number).encode()

    return parts


def properties(wanted: Properties, reply_to: str | None = None) -> bytes:
    """Return the encoded properties that a broker forwards. `reply_to`: the response topic of requests, whose
    correlation data comes where `PLACE` stands.

    Raises:
        ValueError: a value that cannot be written.
    """
    return encode_forward(
        payload_format=1 if wanted.text else None,
        content_type=wanted.content_type,
        response_topic=wanted.response_topic if reply_to is None else reply_to,
        correlation_data=PLACE if reply_to is not None else _bytes(wanted.correlation_data),
        user=list(wanted.user.items()) or None,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def choice(publish: Publish, source: random.Random) -> Callable[[], int] | None:
    """Return the function that draws the next topic's number; None: the topics take turns."""
    topics = publish.topics
    if publish.choose == "in-turn" or topics == 1:
        return None
    if publish.choose == "random":
        return lambda: source.randrange(topics)
    shares = _zipf(topics, publish.zipf)
    return lambda: min(bisect_left(shares, source.random()), topics - 1)


_shares: dict[tuple[int, float], list[float]] = {}


def _zipf(topics: int, exponent: float) -> list[float]:
    """Cumulative shares of topics by Zipf's law; the same list for all who ask for the same."""
    found = _shares.get((topics, exponent))
    if found is None:
        weights = list(accumulate((number + 1) ** -exponent for number in range(topics)))
        found = _shares[topics, exponent] = [weight / weights[-1] for weight in weights]
    return found
