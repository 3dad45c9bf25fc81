"""The texts of failed assertions: what was expected, what came nearest to it, what else happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from canopy_mqtt.testing.record import Message
from canopy_mqtt.words import counted

MOST: Final = 10
"""Lines of each list."""

Payload = bytes | str | Callable[[bytes], object]
"""The expected payload: bytes, text in UTF-8, or a function that says whether it is right."""


def misses(message: Message, payload: Payload | None, qos: int | None, retain: bool | None) -> list[str]:
    """Return the differences between a message, whose topic is right, and the expected one."""
    found = []
    if callable(payload):
        if not payload(message.payload):
            found.append("the payload is not accepted")
    elif payload is not None and message.payload != (payload.encode() if isinstance(payload, str) else payload):
        found.append("another payload")
    if qos is not None and message.qos != qos:
        found.append(f"QoS {message.qos}")
    if retain is not None and message.retain is not retain:
        found.append("retained" if message.retain else "not retained")
    return found


def wanted(topic_filter: str, payload: Payload | None, qos: int | None, retain: bool | None) -> str:
    """Describe the expected message in a few words."""
    parts = [f"a message on {topic_filter!r}"]
    if callable(payload):
        parts.append(f"with a payload that {getattr(payload, '__name__', payload)} accepts")
    elif payload is not None:
        parts.append(f"with the payload {payload!r}")
    if qos is not None:
        parts.append(f"with QoS {qos}")
    if retain is not None:
        parts.append("retained" if retain else "not retained")
    return " ".join(parts)


def seen(
    messages: Sequence[Message],
    topical: Sequence[Message],
    why: Callable[[Message], list[str]],
    clients: Sequence[str],
    forgotten: int,
) -> str:
    """Describe the messages that came instead: `topical` are those on the right topic, `messages` all."""
    lines = []
    if topical:
        lines.append("on this topic:")
        lines += [f"  {message}" + _because(why(message)) for message in topical[-MOST:]]
        if len(topical) > MOST:
            lines.append(f"  … and {len(topical) - MOST} before these")
    else:
        lines.append("nothing was published on this topic.")
        others = Counter(message.topic for message in messages)
        if others:
            lines.append("published on other topics:")
            lines += [f"  {topic}: {counted(count, 'message')}" for topic, count in others.most_common(MOST)]
            if len(others) > MOST:
                lines.append(f"  … and {counted(len(others) - MOST, 'other topic')}")
    if forgotten:
        lines.append(f"forgotten: {counted(forgotten, 'older message')}.")
    lines.append("connected: " + (", ".join(map(repr, clients[:MOST])) if clients else "nobody"))
    if len(clients) > MOST:
        lines[-1] += f" and {len(clients) - MOST} more"
    return "\n".join(lines)


def _because(why: list[str]) -> str:
    return f"  <- {', '.join(why)}" if why else "  <- matches"
