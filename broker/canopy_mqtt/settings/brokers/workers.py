"""`[workers]`: the number of processes that serve the clients of this broker."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from canopy_mqtt.settings.values import Section

MOST: Final = 64
"""Workers at most: each has a link to each other one."""


class Workers(Section):
    """Processes that serve the same listeners as one broker."""

    count: Annotated[int, Field(ge=1, le=MOST)] = 1
    """1: the broker is one process."""
