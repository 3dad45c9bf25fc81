"""The real daemon as a process of its own: start, banner, logs, orderly stop, and every start that cannot work.

Clients here are a few bytes over a socket, so that nothing of the broker's own code is on both sides.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_load.brokers.process import free_port
from canopy_mqtt.command.cli import app
from tests.support.daemon import COMMAND, PATIENCE, Daemon, canopy, environment

# CONNECT of MQTT 3.1.1 and 5.0: clean, keep alive 60 s, client identifier "log-me".
CONNECT_4 = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06log-me"
CONNECT_5 = b"\x10\x13\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x06log-me"
CAP_NET_BIND_SERVICE = 10
PR_CAPBSET_DROP = 24
UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


def failing(*arguments: str, prepare: Callable[[], None] | None = None) -> tuple[int, str]:
    """Exit code and standard error of a `canopy serve` that ends by itself. Standard output stays empty."""
    if prepare is None:
        done = canopy("serve", *arguments)
    else:
        command = [*COMMAND, "serve", *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=PATIENCE,
            preexec_fn=prepare,
            check=False,
        )
    assert done.stdout == ""
    return done.returncode, done.stderr


def one_line(stderr: str) -> str:
    """Why it did not start. Where the system allows few files, the log says so before."""
    told = [line for line in stderr.splitlines() if not line.startswith("{")]
    assert len(told) == 1, stderr
    assert told[0].startswith("canopy: ")
    return told[0]


def test_starts_serves_and_stops() -> None:
    """By SIGINT; the others here end theirs by SIGTERM. As from a shell, and not forked."""
    with Daemon(command=COMMAND) as daemon:
        assert daemon.started["version"] == version("canopy-mqtt")
        assert (daemon.started["level"], daemon.started["store"]) == ("info", "memory")
        health = ["health", "--target", daemon.url]
        assert CliRunner().invoke(app, health).exit_code == 0
        status, _ = daemon.end(signal.SIGINT)
        assert status == 0
        assert CliRunner().invoke(app, health).exit_code == 1


def test_stopping_tells_5_0_clients_why_and_closes_3_1_1_clients() -> None:
    """DISCONNECT with Server shutting down (0x8B) is for clients that know reasons."""
    with (
        Daemon() as daemon,
        daemon.connect(CONNECT_5) as five,
        daemon.connect(CONNECT_4.replace(b"log-me", b"other1")) as four,
    ):
        status, _ = daemon.end()
        assert status == 0
        told = five.recv(100)
        assert told[0] == 0xE0
        assert told[2] == 0x8B
        assert five.recv(100) == b""
        assert four.recv(100) == b""


def test_without_a_terminal_each_event_is_a_line_of_json() -> None:
    with Daemon("--log-level", "debug") as daemon:
        daemon.connect(CONNECT_4).close()
        _, lines = daemon.end()
        events = [json.loads(line) for line in lines]
        assert all({"event", "level", "timestamp"} <= event.keys() for event in events)
        assert any("log-me" in event.values() for event in events)


def test_no_line_is_lost_when_a_signal_ends_it() -> None:
    """Nor does one overtake another: lines about clients are built in another way than all others."""
    names = [f"log-{number:02}" for number in range(50)]
    with Daemon() as daemon:
        for name in names:
            daemon.connect(CONNECT_4.replace(b"log-me", name.encode())).close()
        status, lines = daemon.end()
    events = [json.loads(line) for line in lines]
    assert status == 0
    assert [event["client_id"] for event in events if event["event"] == "client connected"] == names
    assert sorted(event["client_id"] for event in events if event["event"] == "client disconnected") == names
    assert events[-1]["event"] == "stopped"
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)


def test_no_line_is_lost_when_an_exception_ends_it() -> None:
    code = """
import structlog
from canopy_mqtt.assembly import daemon
from canopy_mqtt.command import cli

def run(*arguments, **more):
    for number in range(100):
        structlog.get_logger().error("the end", number=number)
    raise LookupError("nobody expects this")

daemon.run = run
cli.app(["serve"])
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1
    assert "LookupError" in done.stderr
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["number"] for line in told] == list(range(100))


def test_below_the_level_nothing_is_written() -> None:
    with Daemon("--log-level", "error") as daemon:
        daemon.connect(CONNECT_4).close()
        assert daemon.end() == (0, [])


def test_settings_reach_the_broker() -> None:
    """A broker that offers no QoS 2 tells so in CONNACK [MQTT-3.2.2-9]."""
    with Daemon("--set", "mqtt.max_qos=1") as daemon:
        connection = socket.create_connection(("127.0.0.1", daemon.port), PATIENCE)
        with connection:
            connection.sendall(CONNECT_5)
            head = connection.recv(2, socket.MSG_WAITALL)
            properties = connection.recv(head[1], socket.MSG_WAITALL)[2:]
        assert b"\x24\x01" in properties


class TestSignals:
    """The signals that other brokers' scripts send, and how some supervisors start a process."""

    def test_signals_that_mean_nothing_do_not_end_it(self) -> None:
        """mosquitto saves on SIGUSR1; a line of the log says what is different here."""
        with Daemon("--set", "log.level=info") as daemon:
            client = daemon.connect(CONNECT_4)
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN):
                daemon.process.send_signal(number)
                line = daemon.until("signal ignored")[-1]
                assert (line["signal"], line["level"]) == (signal.Signals(number).name, "warning")
                assert line["detail"]
            client.sendall(b"\xc0\x00")
            assert client.recv(2, socket.MSG_WAITALL) == b"\xd0\x00"
            client.close()
            assert daemon.end()[0] == 0

    @pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
    def test_without_a_standard_stream(self, tmp_path: Path, closed: tuple[int, ...]) -> None:
        """It serves all the same, and no socket and no file of a store gets the number of a standard stream."""
        port = free_port()
        closing = " ".join(f"{number}>&-" for number in closed)
        command = (
            f"exec {shlex.join(COMMAND)} serve --listen mqtt://127.0.0.1:{port} --store {tmp_path / 's'} {closing}"
        )
        supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        supervisor.bind(str(tmp_path / "n"))
        supervisor.settimeout(PATIENCE)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], env=environment(NOTIFY_SOCKET=str(tmp_path / "n")), stdout=subprocess.DEVNULL
        )
        try:
            while b"READY=1" not in supervisor.recv(4_096):
                pass
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
                client.sendall(CONNECT_4)
                assert client.recv(4, socket.MSG_WAITALL)[0] == 0x20
            for number in closed:
                assert os.readlink(f"/proc/{process.pid}/fd/{number}") == os.devnull
        finally:
            supervisor.close()
            process.terminate()
            assert process.wait(PATIENCE) == 0


class TestHangup:
    """SIGHUP to a real process."""

    def test_the_file_is_read_again(self, tmp_path: Path) -> None:
        config = tmp_path / "canopy.toml"
        config.write_text("[mqtt]\nmax_qos = 1\n")
        with Daemon("--config", str(config), "--set", "log.level=info") as daemon:
            # The flag is stronger than the file.
            config.write_text('[mqtt]\nmax_qos = 2\n[log]\nlevel = "debug"\n')
            daemon.process.send_signal(signal.SIGHUP)
            told = daemon.until("settings reloaded")
            assert [(line["event"], line["detail"], line["level"]) for line in told[:-1]] == [
                ("setting takes a restart", "mqtt.max_qos: 1 stays in force; 2 takes a restart", "warning")
            ]
            config.write_text("[mqtt]\nmax_qos = 3\n")
            daemon.process.send_signal(signal.SIGHUP)
            (line,) = daemon.until("settings not reloaded")
            assert line["detail"] == f"{config}: line 2: mqtt.max_qos: found 3; allowed: 0 or 1 or 2"
            config.write_text("")
            daemon.process.send_signal(signal.SIGHUP)
            (line,) = daemon.until("settings not reloaded")
            assert line["detail"] == f"{config}: is empty, and was not at the start; what was in it stays in force"
            daemon.connect(CONNECT_4).close()
            assert daemon.end()[0] == 0

    def test_a_pipe_is_not_read_again(self) -> None:
        """As `--config <(command)` names it: it is empty by then, and the defaults have no users."""
        settings = r"<(printf '[mqtt]\nmax_qos = 1\n')"
        command = ["bash", "-c", f'exec {shlex.join(COMMAND)} "$@" --config {settings}', "bash"]
        with Daemon(command=command) as daemon:
            daemon.process.send_signal(signal.SIGHUP)
            (line,) = daemon.until("settings not reloaded")
            assert line["detail"].endswith(": can be read only once; what was in it stays in force")
            assert daemon.end()[0] == 0

    def test_the_level_of_the_log_is_changed(self, tmp_path: Path) -> None:
        """Lines about subscriptions come with it."""
        config = tmp_path / "canopy.toml"
        config.write_text('[log]\nlevel = "warning"\n')
        with Daemon("--config", str(config)) as daemon:
            daemon.connect(CONNECT_4).close()
            config.write_text('[log]\nlevel = "debug"\n')
            daemon.process.send_signal(signal.SIGHUP)
            told = daemon.until("settings reloaded")
            assert [line["event"] for line in told] == ["settings reloaded"]
            with daemon.connect(CONNECT_4) as connection:
                connection.sendall(b"\x82\x06\x00\x01\x00\x01t\x00")
                subscribed = daemon.until("subscribed")
                assert subscribed[-1]["level"] == "debug"
                assert "client connected" in [line["event"] for line in subscribed]
            assert daemon.end()[0] == 0

    def test_without_a_file_the_daemon_stays_as_it_is(self) -> None:
        with Daemon() as daemon:
            for _ in range(3):
                daemon.process.send_signal(signal.SIGHUP)
            daemon.until("nothing to reload")
            daemon.connect(CONNECT_4).close()
            # However late it comes: the last ones meet a process that is about to end.
            daemon.process.send_signal(signal.SIGTERM)
            while daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGHUP)
                with suppress(subprocess.TimeoutExpired):
                    daemon.process.wait(0.005)
            assert daemon.process.returncode == 0


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, stderr = failing("--listen", f"mqtt://127.0.0.1:{port}")
    assert status == 1
    assert str(port) in one_line(stderr)
    assert "in use" in stderr


@pytest.mark.skipif(
    not UNPRIVILEGED.exists() or int(UNPRIVILEGED.read_text()) < 2, reason="this system knows no privileged ports"
)
def test_a_privileged_port() -> None:
    port = int(UNPRIVILEGED.read_text()) - 1

    def give_up_the_privilege() -> None:
        # Only the superuser holds it, and loses it with the next program it starts.
        if os.geteuid() == 0:
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_NET_BIND_SERVICE, 0, 0, 0)

    status, stderr = failing("--listen", f"mqtt://127.0.0.1:{port}", prepare=give_up_the_privilege)
    assert status == 1
    assert str(port) in one_line(stderr)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours(host: str) -> None:
    status, stderr = failing("--listen", f"mqtt://{host}:1883")
    assert status == 1
    assert host in one_line(stderr)


def test_too_few_file_descriptors() -> None:
    def poor() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    arguments = ("--listen", "mqtt://127.0.0.1:0", "--set", "limits.max_connections=1000")
    status, stderr = failing(*arguments, prepare=poor)
    assert status == 1
    assert "limits.max_connections" in one_line(stderr)
    assert "200" in stderr


def test_wrong_settings_are_told_apart_from_a_failed_start() -> None:
    status, stderr = failing("--set", "mqtt.max_qos=7")
    assert status == 2
    assert "mqtt.max_qos" in one_line(stderr)
