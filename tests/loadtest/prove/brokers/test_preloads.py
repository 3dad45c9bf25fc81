"""A disk and a clock that go wrong, as a program sees them."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from canopy_load.prove.brokers.preloads import Clock, Disk, clock_missing, compiler_missing, static
from canopy_load.prove.faults import Fault

PROGRAM = """
import os, sys, time
inside, outside = (os.open(name, os.O_CREAT | os.O_WRONLY) for name in sys.argv[1:])
def tried(what, *given):
    try:
        what(*given)
        return 0
    except OSError as error:
        return error.errno
for line in sys.stdin:
    codes = tried(os.write, inside, b"x"), tried(os.fsync, inside), tried(os.write, outside, b"x")
    print(*codes, time.monotonic(), time.time(), flush=True)
"""


class Seen:
    """A program that writes when it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[list[int], float, float]:
        """The errors of a write and a sync in the folder and a write elsewhere, and what its two clocks say."""
        assert self.process.stdout is not None
        *codes, monotonic, wall = self.process.stdout.readline().split()
        return [int(code) for code in codes], float(monotonic), float(wall)


def running(tmp_path: Path, library: Path, environment: dict[str, str]) -> Iterator[Seen]:
    (tmp_path / "store").mkdir(exist_ok=True)
    words = ["env", f"LD_PRELOAD={library}", *(f"{name}={text}" for name, text in environment.items())]
    words += [sys.executable, "-c", PROGRAM, str(tmp_path / "store" / "a"), str(tmp_path / "b")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Seen(process)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    if why := compiler_missing():
        pytest.skip(why)
    return Disk(tmp_path, tmp_path / "store")


@pytest.fixture
def program(disk: Disk, tmp_path: Path) -> Iterator[Seen]:
    yield from running(tmp_path, disk.library, disk.environment)


def test_a_disk_that_is_full_or_read_only_fails_in_its_folder_alone(disk: Disk, program: Seen) -> None:
    faults = {None: 0, Fault.STORE_FULL: errno.ENOSPC, Fault.STORE_READ_ONLY: errno.EROFS}
    for fault, code in [*faults.items(), (None, 0)]:
        disk.turn(fault)
        program.ask()
        assert program.answer()[0] == [code, code, 0]


def test_a_disk_that_stands_still_goes_on_afterwards(disk: Disk, program: Seen) -> None:
    program.ask()
    program.answer()
    disk.turn(Fault.STORE_PAUSED)
    program.ask()
    released = time.monotonic()
    disk.turn(None)
    codes, at, _ = program.answer()
    assert codes == [0, 0, 0]
    assert at > released


def test_a_clock_is_set_and_the_monotonic_one_is_not(tmp_path: Path) -> None:
    if why := clock_missing():
        pytest.skip(why)
    clock = Clock(tmp_path)
    clock.set(100_000.0)
    for program in running(tmp_path, clock.library, clock.environment):
        program.ask()
        _, monotonic, wall = program.answer()
        assert wall - time.time() > 50_000
        assert monotonic <= time.monotonic()


def test_a_program_without_a_dynamic_linker_is_known(tmp_path: Path) -> None:
    if why := compiler_missing():
        pytest.skip(why)
    source, made = tmp_path / "a.c", tmp_path / "a"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-static", "-o", str(made), str(source)], check=True)
    assert static(str(made))
    assert not static(sys.executable)
