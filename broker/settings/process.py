"""`[shutdown]`: how the process ends."""

from __future__ import annotations

from broker.settings.values import SecondsOrOff, Section


class Shutdown(Section):
    """How the broker stops."""

    flush_timeout: SecondsOrOff = 5.0
