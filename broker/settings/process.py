"""`[shutdown]` and `[runtime]`: how the process ends, and what it runs on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from broker.settings.values import SecondsOrOff, Section


class Shutdown(Section):
    """How the broker stops."""

    flush_timeout: SecondsOrOff = 5.0
    """Seconds that queues are given to drain. 0: none."""
    hooks_timeout: SecondsOrOff = 5.0
    """Seconds that calls of `async` plug-ins are given to come to an end, before they are cancelled. 0: none."""


class Runtime(Section):
    """The event loop and the process."""

    uvloop: bool = True
    """Whether uvloop is used where it is installed. Obeyed by the `canopy` command."""
    gc_freeze: bool = True
    """Whether objects of the start are taken out of garbage collection. Obeyed by the `canopy` command."""
    tcp_backlog: Annotated[int, Field(ge=1, le=65_535)] = 1024
    """Connections the system holds ready for acceptance, on each listener."""
    tcp_nodelay: bool = True
    """Whether small packets are sent at once."""
