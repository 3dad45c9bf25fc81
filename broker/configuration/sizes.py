"""Limits in bytes that contradict each other: reported at the start and by `canopy check-config`.

Owns the comparison of the largest packet with what has to hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.settings import Settings
from broker.settings.values import LARGEST_PACKET

WAITING: Final = (
    "queue.live_bytes",
    "queue.session_bytes",
    "queue.total_bytes",
    "mqtt.max_inflight_bytes",
    "limits.max_client_bytes",
    "retained.max_bytes",
)
"""Limits on messages that wait, are in flight, or are retained. Each lets one message pass where nothing else is."""


def contradicting(settings: Settings) -> Iterator[str]:
    """One line for each contradiction."""
    limits = settings.limits
    largest = limits.max_packet_size or LARGEST_PACKET
    packet = f"limits.max_packet_size = {limits.max_packet_size}" + ("" if limits.max_packet_size else f" ({largest})")
    if limits.max_payload_size > largest:
        yield f"limits.max_payload_size = {limits.max_payload_size} has no effect, because {packet} is lower"
    if 0 < limits.max_partial_bytes < largest:
        yield (
            f"{packet} is above limits.max_partial_bytes = {limits.max_partial_bytes}: a packet that comes in pieces "
            "may end its own connection"
        )
    below = []
    for name in WAITING:
        section, key = name.split(".")
        value = getattr(getattr(settings, section), key)
        if 0 < value < largest:
            below.append(f"{name} = {value}")
    if below:
        yield (
            f"{packet} is above {', '.join(below)}: a message larger than such a limit is accepted only while nothing "
            "else is there, and whatever else comes is dropped"
        )
    if settings.recorder.directory and 0 < settings.recorder.queue_bytes < largest:
        yield (
            f"{packet} is above recorder.queue_bytes = {settings.recorder.queue_bytes}: the recorder leaves out larger "
            "messages, and records a gap"
        )
