"""Whose client speaks to the broker: our own, or another's.

Owns: the names of drivers, what each can play, and how each opens a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from loadtest.load.engine.clients.client_pool import Opener, open_socket
from loadtest.load.engine.job import Target
from loadtest.load.scenario.schema import Scenario

CANOPY: Final = "canopy"
AMQTT: Final = "amqtt"
NAMES: Final = (CANOPY, AMQTT)


class DriverError(Exception):
    """There is no such driver, its package is not installed, or it cannot play the scenario; the message is a line."""


def fitted(name: str, scenario: Scenario, targets: Sequence[Target] = ()) -> Scenario:
    """The scenario as the driver plays it: amqtt speaks MQTT 3.1.1 only, so that groups with 5.0 are played as 3.1.1,
    unless they use what 3.1.1 does not have.

    Raises:
        DriverError: the driver cannot play it, or there is no such driver here.
    """
    if name not in NAMES:
        raise DriverError(f"there is no driver {name!r}: {', '.join(NAMES)}")
    if name == CANOPY:
        return scenario
    for target in targets:
        if target.scheme != "mqtt":
            raise DriverError(f"{target}: amqtt plays on mqtt:// alone here: use --driver canopy")
    # Here, not above: a process of the generator needs none of it.
    from loadtest.load.compare.started_brokers import VersionConflict, with_version

    if find_spec("amqtt") is None:
        raise DriverError("amqtt is not installed: pip install amqtt")
    for group in scenario.groups:
        if group.reading is not None:
            raise DriverError(f"groups.{group.name}.reading: amqtt reads as fast as it can: use --driver canopy")
    try:
        return with_version(scenario, "3.1.1")
    except VersionConflict as error:
        why = str(error).partition(", this group has")[0]
        raise DriverError(f"{why}, amqtt speaks 3.1.1: use --driver canopy") from None


def opener(name: str) -> Opener:
    """What opens a client's connections.

    Raises:
        DriverError: an unknown name, or a package that is not installed.
    """
    if name == CANOPY:
        return open_socket
    if name != AMQTT:
        raise DriverError(f"there is no driver {name!r}: {', '.join(NAMES)}")
    try:
        from loadtest.load.engine.clients.amqtt_driver import open_amqtt
    except ImportError as error:
        raise DriverError(f"amqtt is not installed: pip install amqtt ({error})") from error
    return open_amqtt
