"""`canopy serve --workers`, with real processes: starts, ends, signals, restarts.

The workers here are no mesh (`apart`): what is shown is the same for those that are.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e import wire
from tests.process.test_notify import Listener
from tests.support.daemon import PATIENCE, Daemon, environment

COMMAND: Final = (sys.executable, "-P", "-m", "tests.workers.live.apart")
LONG: Final = PATIENCE * 2
"""Seconds for what takes the start of several processes."""


def serving(*arguments: str, environ: dict[str, str] | None = None) -> Daemon:
    return Daemon("--workers", "2", *arguments, command=COMMAND, patience=LONG, environ=environ)


def failing(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """The exit code of one that does not start, and its lines."""
    ended = subprocess.run(
        [*COMMAND, "serve", "--workers", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=LONG,
        env=environment(**(environ or {})),
    )
    return ended.returncode, ended.stderr.splitlines()


def pids(daemon: Daemon) -> dict[str, int]:
    """The workers' processes, as it said at the start."""
    found: dict[str, int] = next(
        line["pids"] for line in map(as_json, daemon.lines) if line["event"] == "workers serve"
    )
    return found


def as_json(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return found


def until(condition: Callable[[], object]) -> None:
    """Wait for something of another process for which there is no event."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Connecting:
    """Clients that connect and disconnect all the time; each has to be accepted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ending = threading.Event()
        self.accepted = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run, name="connecting clients")

    def __enter__(self) -> Connecting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), LONG) as client:
                    client.sendall(wire.connect(f"client-{self.accepted}"))
                    answer = client.recv(4, socket.MSG_WAITALL)
                    if answer[:1] != b"\x20" or answer[3] != 0:
                        self.failures.append(f"answered with {answer!r}")
                    client.sendall(wire.disconnect())
                    # To its end: what it said has arrived.
                    while client.recv(4_096):
                        pass
            except OSError as error:
                self.failures.append(repr(error))
            self.accepted += 1


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with serving() as running:
        yield running


def test_workers_serve_one_port_and_end_together(daemon: Daemon) -> None:
    """One start is told, and each line of a worker names it; the supervisor's process is the daemon's."""
    lines = [as_json(line) for line in daemon.lines]
    assert [line["event"] for line in lines].count("started") == 1
    assert daemon.started["pid"] == daemon.process.pid
    serve = next(line for line in lines if line["event"] == "workers serve")
    assert set(serve["pids"]) == {"w0", "w1"}
    folder = Path(serve["folder"])
    assert folder.stat().st_mode & 0o777 == 0o700
    clients = [daemon.connect(wire.connect(f"client-{number}")) for number in range(20)]
    code, after = daemon.end()
    for client in clients:
        client.close()
    assert code == 0
    ended = [as_json(line) for line in after]
    stopping = {line["worker"]: line["connections"] for line in ended if line["event"] == "stopping"}
    assert sum(stopping.values()) == 20
    assert min(stopping.values()) > 0
    assert {line["worker"] for line in ended if line["event"] == "stopped"} == {"w0", "w1"}
    assert not folder.exists()


@pytest.mark.long
def test_a_worker_that_is_killed_is_started_again_and_nobody_is_refused_meanwhile(daemon: Daemon) -> None:
    before = pids(daemon)
    with Connecting(daemon.port) as clients:
        until(lambda: clients.accepted > 10)
        os.kill(before["w1"], signal.SIGKILL)
        ended = daemon.until("worker ended")[-1]
        assert (ended["worker"], ended["pid"], ended["reason"]) == ("w1", before["w1"], "ended by signal 9")
        again = daemon.until("worker serves again")[-1]
        assert again["worker"] == "w1"
        assert again["pid"] not in before.values()
        accepted = clients.accepted
        until(lambda: clients.accepted > accepted + 10)
    # Whoever it was serving lost the connection.
    assert len(clients.failures) <= 1
    assert not any("refused" in each.lower() for each in clients.failures)
    assert is_there(before["w0"])


@pytest.mark.long
def test_a_rolling_restart_replaces_each_worker_and_refuses_nobody(daemon: Daemon) -> None:
    before = pids(daemon)
    with Connecting(daemon.port) as clients:
        until(lambda: clients.accepted > 10)
        daemon.process.send_signal(signal.SIGUSR2)
        lines = daemon.until("rolling restart done")
        accepted = clients.accepted
        until(lambda: clients.accepted > accepted + 10)
    assert clients.failures == []
    steps = [
        (line["event"], line["worker"]) for line in lines if line["event"] in ("worker leaves", "worker serves again")
    ]
    assert steps == [
        ("worker leaves", "w0"),
        ("worker serves again", "w0"),
        ("worker leaves", "w1"),
        ("worker serves again", "w1"),
    ]
    until(lambda: not any(is_there(pid) for pid in before.values()))


@pytest.mark.long
def test_workers_go_when_their_supervisor_is_killed(daemon: Daemon) -> None:
    running = pids(daemon)
    folder = next(line["folder"] for line in map(as_json, daemon.lines) if line["event"] == "workers serve")
    daemon.process.kill()
    until(lambda: not any(is_there(pid) for pid in running.values()))
    assert not Path(folder).exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", daemon.port), PATIENCE)


@pytest.mark.long
def test_a_signal_to_all_processes_is_as_good_as_one_to_the_supervisor(daemon: Daemon) -> None:
    """As systemd sends it: a worker that was told by both still ends in order."""
    for pid in pids(daemon).values():
        os.kill(pid, signal.SIGTERM)
    code, lines = daemon.end()
    assert code == 0
    assert {line["worker"] for line in map(as_json, lines) if line["event"] == "stopped"} == {"w0", "w1"}


@pytest.mark.long
def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """Also where a worker would wait for a client's queue."""
    config = tmp_path / "canopy.toml"
    config.write_text("[shutdown]\nflush_timeout = 3600.0\n")
    with serving("--config", str(config)) as daemon:
        running = pids(daemon)
        os.kill(running["w0"], signal.SIGSTOP)
        daemon.process.send_signal(signal.SIGTERM)
        daemon.until("stopped")
        assert daemon.end(signal.SIGTERM)[0] == 128 + signal.SIGTERM
        os.kill(running["w0"], signal.SIGCONT)
        until(lambda: not any(is_there(pid) for pid in running.values()))


@pytest.mark.long
def test_a_worker_that_hangs_is_killed_and_started_again() -> None:
    with serving("--set", "workers.hang_timeout=3") as daemon:
        running = pids(daemon)
        os.kill(running["w0"], signal.SIGSTOP)
        hangs = daemon.until("worker does not answer")[-1]
        assert (hangs["worker"], hangs["pid"]) == ("w0", running["w0"])
        assert daemon.until("worker serves again")[-1]["worker"] == "w0"


@pytest.mark.long
class TestReload:
    @pytest.fixture
    def config(self, tmp_path: Path) -> Path:
        file = tmp_path / "canopy.toml"
        file.write_text("[log]\nlevel = 'info'\n")
        return file

    def test_all_workers_take_up_settings_and_a_mistake_is_told_once(self, config: Path) -> None:
        with serving("--config", str(config)) as daemon:
            config.write_text("[limits]\nmax_packet_size = 5000\n[routing]\ntrie = 'compact'\n")
            daemon.process.send_signal(signal.SIGHUP)
            lines = [*daemon.until("settings reloaded"), *daemon.until("settings reloaded")]
            assert {line["worker"] for line in lines if line["event"] == "settings reloaded"} == {"w0", "w1"}
            restart = [line["detail"] for line in lines if line["event"] == "setting takes a restart"]
            assert restart == ['routing.trie: "nodes" stays in force; "compact" takes a restart']
            config.write_text("[limits]\nmax_packet_size = 'x'\n")
            daemon.process.send_signal(signal.SIGHUP)
            assert "max_packet_size" in daemon.until("settings not reloaded")[-1]["detail"]
            config.write_text("[recorder]\ndirectory = 'x'\ndeliveries = true\n")
            daemon.process.send_signal(signal.SIGHUP)
            assert daemon.until("settings not reloaded")[-1]["detail"].startswith("recorder.deliveries: ")
            config.write_text("[store]\npath = 'x'\n[mesh]\nname = 'site'\nnode = 'a'\n")
            daemon.process.send_signal(signal.SIGHUP)
            # Told by the supervisor, which has the places of stores and nodes in its hands.
            for name in ("store.path", "mesh.name", "mesh.node"):
                while not (line := daemon.until("setting takes a restart")[-1])["detail"].startswith(f"{name}: "):
                    assert "worker" in line
            _, after = daemon.end()
            assert not any("settings not reloaded" in line for line in after)

    def test_a_listener_comes_and_goes_in_all_workers(self, config: Path, tmp_path: Path) -> None:
        path = tmp_path / "mqtt"
        with serving("--config", str(config)) as daemon:
            config.write_text(f"[[listener]]\nurl = 'mqtt+unix://{path}'\n")
            daemon.process.send_signal(signal.SIGHUP)
            for _ in range(2):
                assert f"mqtt+unix://{path}" in daemon.until("settings reloaded")[-1]["listening"]
            until(path.exists)
            for _ in range(10):
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(PATIENCE)
                    client.connect(str(path))
                    client.sendall(wire.connect("x"))
                    assert client.recv(1) == b"\x20"
            # A worker that is started again has it, too.
            os.kill(pids(daemon)["w1"], signal.SIGKILL)
            daemon.until("worker serves again")
            config.write_text("")
            daemon.process.send_signal(signal.SIGHUP)
            for _ in range(2):
                assert len(daemon.until("settings reloaded")[-1]["listening"]) == 1
            until(lambda: not path.exists())

    def test_a_listener_in_the_place_of_another_takes_a_restart_and_workers_start_without_it(
        self, config: Path
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config.write_text(f"[[listener]]\nname = 'one'\nurl = 'mqtt://127.0.0.1:{port}'\n")
        with serving("--config", str(config)) as daemon:
            config.write_text(f"[[listener]]\nname = 'other'\nurl = 'mqtt://127.0.0.1:{port}'\n")
            daemon.process.send_signal(signal.SIGHUP)
            daemon.until("settings reloaded")
            daemon.until("settings reloaded")
            os.kill(pids(daemon)["w1"], signal.SIGKILL)
            assert daemon.until("worker serves again")[-1]["worker"] == "w1"


@pytest.mark.long
def test_systemd_is_told_by_the_supervisor_alone(tmp_path: Path) -> None:
    systemd = Listener(str(tmp_path / "notify"))
    try:
        with serving(environ={"NOTIFY_SOCKET": systemd.address}) as daemon:
            ready = systemd.next()
            assert ready["READY"] == "1"
            assert daemon.url in ready["STATUS"]
            assert daemon.end()[0] == 0
            assert [told.get("STOPPING") for told in systemd.waiting()] == ["1"]
    finally:
        systemd.close()


class TestStartsThatFail:
    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            url = f"mqtt://127.0.0.1:{other.getsockname()[1]}"
            code, lines = failing("--listen", url)
        assert code == 1
        (line,) = lines
        assert line.startswith(f"canopy: cannot listen on {url}: ")

    @pytest.mark.long
    def test_what_a_worker_finds_wrong_is_told_once(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text("[access]\nacl_file = '/nowhere/acl'\n")
        code, lines = failing("--port", "0", "--config", str(config))
        assert code == 1
        assert [line for line in lines if line.startswith("canopy: ")] == [lines[-1]]
        assert lines[-1].count("/nowhere/acl") == 1
        assert not any("w1" in line for line in lines)

    def test_what_workers_cannot_share(self) -> None:
        code, lines = failing("--port", "0", "--set", "mesh.name=site", "--set", "mesh.listen=['unixsock-stream/x']")
        assert code == 2
        (line,) = lines
        assert line.startswith("canopy: mesh.listen[0]: ")

    @pytest.mark.long
    def test_a_worker_that_always_ends_at_its_start(self, tmp_path: Path) -> None:
        sets = ("--set", "hooks=['tests.workers.live.dying:Plugin']", "--set", "workers.max_start_failures=2")
        code, lines = failing("--port", "0", *sets, environ={"DIES_WHILE": str(tmp_path)})
        assert code == 1
        assert [as_json(line)["event"] for line in lines[:-1]] == ["worker did not start"]
        assert lines[-1] == "canopy: worker w0: ended with exit code 7"

    @pytest.mark.long
    def test_a_worker_that_cannot_be_started_again_ends_all(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken"
        sets = ("--set", "hooks=['tests.workers.live.dying:Plugin']", "--set", "workers.max_start_failures=2")
        with serving(*sets, environ={"DIES_WHILE": str(broken)}) as daemon:
            broken.touch()
            os.kill(pids(daemon)["w1"], signal.SIGKILL)
            assert daemon.process.wait(LONG) == 1
            daemon.close()
            assert daemon.lines[-1] == "canopy: stopped: worker w1 did not start 2 times: ended with exit code 7"
            assert sum("worker did not start" in line for line in daemon.lines) == 2
