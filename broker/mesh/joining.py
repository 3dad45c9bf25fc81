"""A broker joins its mesh: the bus is made of the settings, and what stands on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from broker.mesh.zenoh.files import expires, fault, refused
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


def suspicious(settings: MeshSettings) -> list[str]:
    """What keeps the other nodes from this one, a line each, where it can be used. It reads files."""
    return [] if fault(settings) else list(refused(settings))


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

    lines, ends = await asyncio.to_thread(lambda: (suspicious(settings), expires(settings)))
    for line in lines:
        server.log.warning("suspicious setting", detail=line)
    failing: asyncio.Future[str] = server.loop.create_future()

    def fail(why: str) -> None:
        if not failing.done():
            failing.set_result(why)

    bus = ZenohBus(settings, server.log, server.faults, fail)
    mesh = Mesh(server, settings, bus, rules)
    mesh.close = bus.stop
    mesh.certificates = ends
    await mesh.streams.listen()
    try:
        await bus.start()
    except MeshError as error:
        mesh.let_go()
        await mesh.streams.stop()
        raise StartupError(str(error)) from None
    if server.companions is not None:
        server.companions.meets()
    meeting = asyncio.create_task(mesh.meet(bus.seen()))
    try:
        await asyncio.wait((meeting, failing), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise StartupError(failing.result())
        await meeting
    except BaseException:
        # Nobody else knows of the mesh yet.
        meeting.cancel()
        await asyncio.wait((meeting,))
        await mesh.stop(0.0)
        raise
    failing.add_done_callback(lambda done: failed(done.result()))
    return mesh
