"""The hashes that `canopy passwd` writes for a file that mosquitto reads too, held against the real mosquitto."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt.security.passwords.hashes import Kind
from canopy_mqtt.security.passwords.passwd import set_password
from tests.e2e import wire
from tests.e2e.links.network import Process, mosquitto_command


def _prepare(folder: Path, port: int, kind: Kind) -> list[str]:
    """The password file, and what starts a mosquitto that reads it."""
    users = folder / "users"
    set_password(users, "alice", "pässword 1", kind, create=True)
    salt = users.read_text(encoding="utf-8").split("$")[-2]
    assert len(base64.b64decode(salt)) == 12
    users.chmod(0o644)
    command = mosquitto_command(folder, port)
    config = Path(command[-1])
    text = config.read_text(encoding="utf-8").replace("allow_anonymous true", "allow_anonymous false")
    config.write_text(f"{text}user root\npassword_file {users}\n", encoding="utf-8")
    return command


@pytest.mark.parametrize("kind", ["pbkdf2-sha512", "sha512"])
async def test_mosquitto_knows_the_user(tmp_path: Path, kind: Kind) -> None:
    """mosquitto 2.0 reads salts of 12 bytes alone, which it writes itself."""
    port = free_port()
    command = await asyncio.to_thread(_prepare, tmp_path, port, kind)
    mosquitto = Process(command, " running")
    await mosquitto.start()
    try:
        answers: list[int] = []
        for password in ("pässword 1", "password 1"):
            peer = await wire.Peer.open("127.0.0.1", port)
            await peer.send(wire.connect("c", user="alice", password=password.encode()))
            answers.append((await peer.expect(wire.CONNACK)).code)
            peer.abort()
        assert answers[0] == 0
        assert answers[1] != 0
    finally:
        await asyncio.shield(mosquitto.end())
