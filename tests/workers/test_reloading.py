"""A reload: all workers take up other settings, or none does; and those that start later have them, too."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.e2e import wire
from tests.workers.crew import Crew


async def most(crew: Crew) -> list[wire.Value | None]:
    """The Keep Alive that each worker sets for a client that asks for a longer one."""
    found: list[wire.Value | None] = []
    for worker in range(2):
        peer = await crew.join(next(crew.names(worker)), keep_alive=500)
        found.append(peer.connack.get(wire.SERVER_KEEP_ALIVE))
        await peer.disconnect()
    return found


async def test_all_or_none(stack: AsyncExitStack, tmp_path: Path) -> None:
    config, rules = tmp_path / "canopy.toml", tmp_path / "acl"
    rules.write_text("topic readwrite #\n")

    def write(keep_alive: int) -> None:
        config.write_text(f'[mqtt]\nmax_keep_alive = {keep_alive}\n[access]\nacl_file = "{rules}"\n')

    write(100)
    crew = await Crew.started(stack, 2, "--config", str(config))
    assert await most(crew) == [100, 100]

    write(50)
    await crew.reload()
    assert await most(crew) == [50, 50]
    await crew.kill(1)
    assert await most(crew) == [50, 50]

    write(20)
    rules.write_text("nonsense\n")
    crew.daemon.process.send_signal(signal.SIGHUP)
    line = await crew.line("settings not reloaded")
    assert str(rules) in line["detail"]
    assert len(crew.told("settings not reloaded")) == 1
    assert await most(crew) == [50, 50]

    rules.write_text("topic readwrite #\n")
    config.write_text(f'[access]\nacl_file = "{rules}"\n')
    await crew.reload()
    assert await most(crew) == [None, None]
