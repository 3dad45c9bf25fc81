"""A broker joins its mesh: the bus is made of the settings, and what stands on it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from broker.mesh.zenoh.files import fault
from broker.net.listening.listeners import StartupError
from broker.settings import Mesh as MeshSettings

if TYPE_CHECKING:
    from broker.mesh.mesh import Mesh
    from broker.net.server import Server
    from broker.store.groups.principals import RuleTexts


MISSING: Final = 'mesh.name needs the extra `mesh`: in a clone of Canopy, pip install ".[mesh]"'


def unusable(settings: MeshSettings) -> list[str]:
    """Why a broker could not join a mesh with these settings, a line each. It reads files."""
    if find_spec("zenoh") is None:
        return [MISSING]
    why = fault(settings)
    return [why] if why else []


async def join(server: Server, settings: MeshSettings, rules: RuleTexts, failed: Callable[[str], None]) -> Mesh:
    """Become a node that has met the others. `rules`: see `Mesh`. `failed`: called with a line when this turns out to
    be none.

    Raises:
        StartupError: the package is not installed, or the mesh cannot be joined so; in one line.
    """
    try:
        from broker.mesh.zenoh.bus import ZenohBus
        from broker.mesh.zenoh.session import MeshError
    except ImportError as error:
        raise StartupError(f"{MISSING} ({error})") from None
    from broker.mesh.mesh import Mesh

    bus = ZenohBus(settings, server.log, server.faults, failed)
    mesh = Mesh(server, settings, bus, rules)
    mesh.close = bus.stop
    await mesh.streams.listen()
    try:
        await bus.start()
    except MeshError as error:
        mesh.let_go()
        await mesh.streams.stop()
        raise StartupError(str(error)) from None
    if server.companions is not None:
        server.companions.meets()
    await mesh.meet(bus.seen())
    return mesh
