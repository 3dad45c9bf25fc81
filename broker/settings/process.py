"""`[shutdown]`: how the process ends."""

from __future__ import annotations

from broker.settings.values import SecondsOrOff, Section


class Shutdown(Section):
    """How the broker stops."""

    flush_timeout: SecondsOrOff = 5.0
    """Seconds that queues are given to drain, and calls of `async` plug-ins to come to an end. 0: none."""
