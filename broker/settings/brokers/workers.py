"""`[workers]`: how many processes serve the same listeners."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, PlainValidator

from broker.settings.values import Section, wrong

MOST: Final = 64
"""Processes: more than that no machine has use for, since each speaks to each."""


def _count(value: object) -> int | Literal["auto"]:
    # bool is an int to Python.
    if value == "auto" or (type(value) is int and 1 <= value <= MOST):
        return value
    raise wrong(f'an integer from 1 to {MOST}, or "auto"')


Count: TypeAlias = Annotated[int | Literal["auto"], PlainValidator(_count)]

Seconds: TypeAlias = Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)]


class Workers(Section):
    """Processes that share the listeners and are one broker. Several need the extra `mesh`."""

    count: Count = 1
    """Processes; "auto": as many as this machine has processors. 1: the broker is one process."""
    directory: str = ""
    """The folder in which the workers' private folder is made. Empty: the system's for what does not outlive a
    program."""
    drain_timeout: Seconds = 30.0
    """Seconds in which the clients of a worker are moved to the others before it is restarted. 0: at once."""
    hang_timeout: Seconds = 30.0
    """Seconds after which a worker that does not answer is killed, and started again. 0: never."""
    max_restart_delay: Annotated[float, Field(ge=0.1, le=3_600, allow_inf_nan=False)] = 30.0
    """Seconds until a worker that has ended is started again, at most: the first time half a second, then twice as long
    each time."""
    max_start_failures: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Failed starts of a worker, one after the other, after which all end."""
