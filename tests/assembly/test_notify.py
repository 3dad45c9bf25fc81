"""What systemd is told, over a real datagram socket: by the module, and by a daemon that starts, reloads and stops."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from canopy_mqtt.assembly.notify import MAX_STATUS_LENGTH, Supervisor
from tests.support.daemon import PATIENCE, Daemon
from tests.support.waiting import until


class Listener:
    """The supervisor's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def next(self) -> dict[str, str]:
        """One notification that is not about the watchdog."""
        while (told := self._read()) == {"WATCHDOG": "1"}:
            pass
        return told

    def watchdog(self) -> None:
        """Wait for the watchdog to be fed."""
        while self._read() != {"WATCHDOG": "1"}:
            pass

    def waiting(self) -> list[dict[str, str]]:
        """What has been told and not read."""
        self._socket.setblocking(False)
        told: list[dict[str, str]] = []
        try:
            while True:
                told.append(self._read())
        except BlockingIOError:
            self._socket.settimeout(PATIENCE)
            return told

    def _read(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._socket.recv(65_536).decode().split("\n"))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    abstract = request.param == "abstract"
    listener = Listener(f"@canopy-test-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify"))
    yield listener
    listener.close()


class TestSupervisor:
    def test_it_is_told_what_happens(self, systemd: Listener) -> None:
        supervisor = Supervisor.of({"NOTIFY_SOCKET": systemd.address})
        supervisor.ready("listening\nREADY=0")
        assert systemd.next() == {"READY": "1", "STATUS": "listening READY=0"}
        supervisor.reloading()
        told = systemd.next()
        assert told["RELOADING"] == "1"
        assert int(told["MONOTONIC_USEC"]) > 0
        supervisor.stopping()
        assert systemd.next()["STOPPING"] == "1"
        assert systemd.waiting() == []

    def test_a_status_is_cut(self, systemd: Listener) -> None:
        Supervisor(systemd.address).ready("x" * 100_000)
        assert systemd.next()["STATUS"] == "x" * MAX_STATUS_LENGTH

    @pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
    async def test_without_one_nothing_is_sent(self, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "socket", None)
        supervisor = Supervisor.of({**environ, "WATCHDOG_USEC": "1"})
        supervisor.ready("here")
        supervisor.reloading()
        supervisor.stopping()

    def test_one_that_has_gone_or_does_not_read_holds_up_nobody(self, systemd: Listener, tmp_path: Path) -> None:
        Supervisor(str(tmp_path / "gone")).ready("here")
        supervisor = Supervisor(systemd.address)
        for _ in range(10_000):
            supervisor.stopping()
        # What its socket took, and no more.
        assert 0 < len(systemd.waiting()) < 10_000

    async def test_the_event_loop_feeds_the_watchdog(self, systemd: Listener) -> None:
        supervisor = Supervisor.of({"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "2000"})
        supervisor.ready("here")
        supervisor.ready("again")
        fed: list[dict[str, str]] = []

        def twice() -> bool:
            fed.extend(told for told in systemd.waiting() if told == {"WATCHDOG": "1"})
            return len(fed) >= 3

        await until(twice)
        supervisor.close()
        systemd.waiting()
        await asyncio.sleep(0.01)
        assert systemd.waiting() == []

    @pytest.mark.parametrize("wrong", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}])
    async def test_a_watchdog_of_another_process_is_not_fed(self, systemd: Listener, wrong: dict[str, str]) -> None:
        supervisor = Supervisor.of({"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "1", **wrong})
        supervisor.ready("here")
        await asyncio.sleep(0.01)
        assert [told.get("READY") for told in systemd.waiting()] == ["1"]
        supervisor.close()


def test_a_daemon_tells_of_its_start_its_reloads_and_its_stop(systemd: Listener, tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text("[log]\nlevel = 'warning'\n")
    # Short enough for the test, long enough not to fill the socket.
    environ = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "400000"}
    with Daemon("--config", str(file), environ=environ) as daemon:
        told = systemd.next()
        assert told == {"READY": "1", "STATUS": f"listening on {daemon.url}"}
        systemd.watchdog()
        for text, outcome in (
            ("[log]\nlevel = 'error'\n", "settings reloaded"),
            ("[log]\nlevel = 'loud'\n", f"settings not reloaded: {file}"),
        ):
            file.write_text(text)
            os.kill(daemon.process.pid, signal.SIGHUP)
            assert systemd.next()["RELOADING"] == "1"
            told = systemd.next()
            assert told["READY"] == "1"
            assert f"{daemon.url}; {outcome}" in told["STATUS"]
        code, _ = daemon.end()
        assert code == 0
        assert systemd.next()["STOPPING"] == "1"
    assert [told for told in systemd.waiting() if told != {"WATCHDOG": "1"}] == []
