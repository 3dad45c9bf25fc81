"""The wills of a worker without a store, which the supervisor keeps: a worker that is killed takes its sessions along,
and the wills of its clients are due.

Owns what the worker has said of them (`told_wills`). The next process of the worker gets them back before its clients
come. Bounded by what the worker may keep of sessions: each will counts for that there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from canopy_mqtt.workers.process import WorkerProcess

Told = tuple[str, tuple[Any, ...], float]
"""The text of a principal, the fields of the will, and its time as in `Journal.will_set`: all processes of a machine
have the same clock."""

AT_ONCE: Final = 500
"""Wills that a worker gets back in one turn of its event loop."""


class KeptWills:
    """The wills of one worker, by client identifier or other name (`Journal.will_alone`)."""

    def __init__(self) -> None:
        self._wills: dict[str, Told] = {}

    def heard(self, changes: dict[str, Told | None]) -> None:
        """The worker tells of wills; None: of one that is over."""
        for name, told in changes.items():
            if told is None:
                self._wills.pop(name, None)
            else:
                self._wills[name] = told

    async def give_back(self, process: WorkerProcess) -> None:
        """Give them to the next process of the worker. Raises WorkerError."""
        wills = list(self._wills.items())
        for first in range(0, len(wills), AT_ONCE):
            await process.ask("has wills", "wills", wills[first : first + AT_ONCE])
