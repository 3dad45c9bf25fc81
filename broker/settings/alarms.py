"""`[alarms]`: when operators are told that something is wrong, and where."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from broker.settings.values import MOST_MESSAGES, SecondsOrOff, Section, wrong

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=MOST_MESSAGES, allow_inf_nan=False)]

URLS = "an http:// or https:// URL without user, password and fragment"


def _url(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong(URLS) from None
    unfit = "@" in parts.netloc or parts.fragment or any(letter <= " " for letter in text) or port == 0
    if parts.scheme not in ("http", "https") or not parts.hostname or unfit:
        raise wrong(URLS)
    return text


class Alarms(Section):
    """Alarms. A bound of 0: there is no such alarm."""

    interval: SecondsOrOff = 5.0
    """Seconds between two looks. 0: no alarms."""
    raise_after: SecondsOrOff = 10.0
    """Seconds for which a value has to be at its bound or above until the alarm is raised. What does not come and go
    by itself (the store, the recorder, a disk, a certificate) is told at once."""
    clear_after: SecondsOrOff = 60.0
    """Seconds for which a value has to be below `clear_ratio` times its bound until the alarm is cleared."""
    clear_ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.8
    """That share of the bound."""
    loop_lag: SecondsOrOff = 0.2
    """Seconds by which the event loop is late, on average between two looks."""
    queue_memory: Share = 0.8
    """The share of `queue.total_bytes` that waits for clients."""
    room: Share = 0.9
    """The share that is used of a bound on all filters, sessions or retained messages."""
    disk_used: Share = 0.9
    """The share of the disk that is used where the store or the recorder writes."""
    certificate_days: Annotated[int, Field(ge=0, le=3_650)] = 14
    """Days before a certificate expires: of a listener, of HTTP."""
    upstream_down: SecondsOrOff = 60.0
    """Seconds for which an upstream broker cannot be reached."""
    drop_rate: Rate = 100.0
    """Messages dropped in a second, over all clients, but for those that expired, grew too old, or were replaced."""
    authentication_failures: Rate = 10.0
    """Wrong credentials in a second."""
    store: bool = True
    """Whether a store that cannot be written is an alarm."""
    recorder: bool = True
    """Whether a recorder that cannot record is an alarm."""
    history: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Alarms that were cleared and are remembered; the oldest are forgotten."""
    webhook: Annotated[str, AfterValidator(_url)] = ""
    """Where alarms are posted as JSON when they are raised and cleared. Empty: nowhere."""
    webhook_timeout: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 5.0
    """Seconds for one attempt."""
    webhook_queue: Annotated[int, Field(ge=1, le=100_000)] = 100
    """What waits to be posted; of more, the oldest are left out."""
    webhook_retries: Annotated[int, Field(ge=0, le=100)] = 5
    """Attempts after the first, each after a longer pause."""
