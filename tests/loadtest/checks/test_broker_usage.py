"""The broker from outside: whose socket it is, and what its process uses."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from canopy_load.checks.broker_usage import ProcessUsage, environment, find
from tests.support.runs import for_each

LISTEN = """
import socket, sys
kind = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=kind)
print(listener.getsockname()[1], flush=True)
{more}
sys.stdin.read()
"""


@contextmanager
def listening(host: str, more: str = "", port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that listens on a port of this address, any or this, until the block is left."""
    child = subprocess.Popen(
        [sys.executable, "-c", LISTEN.format(more=more), host, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        yield child, int(child.stdout.readline())
    finally:
        child.communicate()


def ipv6() -> list[str]:
    """The loopback address of IPv6, where this machine has one."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return []
    return ["::1"]


@for_each("host", ["127.0.0.1", "localhost", *ipv6()])
def test_the_process_behind_a_port_is_found(host: str) -> None:
    bound = "127.0.0.1" if host == "localhost" else host
    asked = host
    with listening(bound) as (child, port):
        assert find(asked, port) == child.pid
        assert find(asked, port) != os.getpid()


def test_a_listener_on_all_addresses_is_found_behind_each() -> None:
    with listening("0.0.0.0") as (child, port):
        assert find("127.0.0.1", port) == child.pid
    with socket.socket() as bound:
        # Nobody else listens on that port here.
        bound.bind(("127.0.0.1", 0))
        with listening("127.0.0.2", port=bound.getsockname()[1]) as (child, port):
            assert find("127.0.0.1", port) is None
            assert find("127.0.0.2", port) == child.pid


def test_of_those_who_share_the_socket_it_is_the_parent() -> None:
    fork = "import os\nif os.fork() == 0: sys.stdin.read(); os._exit(0)\nprint('forked', flush=True)"
    with listening("127.0.0.1", fork) as (child, port):
        assert child.stdout is not None
        child.stdout.readline()
        assert find("127.0.0.1", port) == child.pid


def test_a_forwarder_is_not_the_broker() -> None:
    rename = "open('/proc/self/comm', 'w').write('docker-proxy'); print('renamed', flush=True)"
    with listening("127.0.0.1", rename) as (child, port):
        assert child.stdout is not None
        child.stdout.readline()
        assert find("127.0.0.1", port) is None


def test_where_nothing_is_to_be_found_there_is_none() -> None:
    with socket.socket() as bound:  # taken, but nobody listens
        bound.bind(("127.0.0.1", 0))
        assert find("127.0.0.1", bound.getsockname()[1]) is None
    assert find("192.0.2.1", 1883) is None  # of the block for documentation: nobody's
    assert find("127.0.0.1", 99_999_999) is None
    assert find("..", 1883) is None


def test_what_a_process_uses_grows_with_its_work() -> None:
    work = (
        "for _ in sys.stdin:\n"
        "    if _ == 'end\\n': break\n"
        "    kept = bytearray(30_000_000); sum(range(1_000_000)); print('done', flush=True)"
    )
    with listening("127.0.0.1", work) as (child, port):
        assert child.stdin is not None
        assert child.stdout is not None
        seen = ProcessUsage(child.pid)
        cpu, memory = seen.cpu_seconds(), seen.memory()
        assert cpu is not None
        assert memory is not None
        assert find("127.0.0.1", port) == seen.pid
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        after, larger = seen.cpu_seconds(), seen.memory()
        assert after is not None
        assert larger is not None
        assert after > cpu
        assert larger > memory + 20_000_000
        child.stdin.write("end\n")
        child.stdin.flush()


def test_a_process_that_has_ended_uses_nothing_known() -> None:
    with listening("127.0.0.1") as (child, _):
        seen = ProcessUsage(child.pid)
        assert seen.cpu_seconds() is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its remains are still there
        assert seen.cpu_seconds() is None
        assert seen.memory() is None
    assert seen.cpu_seconds() is None
    assert seen.memory() is None
    assert ProcessUsage(2**22 + 1).memory() is None  # above all process identifiers


def test_the_environment_names_no_host_and_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment()
    assert set(found) == {"cpu", "cores", "kernel", "python", "event loop", "canopy", "load average"}
    assert all(found.values())
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3])))
    text = " ".join(found.values()).split()
    assert socket.gethostname() not in text
    assert os.environ.get("USER", "nobody") not in text

    def missing(_: str) -> Any:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert environment()["canopy"] == "not installed"
    assert environment()["event loop"] == "asyncio"


async def test_the_environment_names_the_event_loop_that_runs() -> None:
    assert environment()["event loop"] == "asyncio"
