"""The source distribution and the wheel of the tree, built once for the tests that need them."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import environment

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def build(what: str, source: Path, into: Path) -> Path:
    """`build_sdist` or `build_wheel`, interpreted; whatever this run demands of its own build."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(into)],
        cwd=source,
        env=environment(CANOPY_PURE="1"),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = into.glob("*.tar.gz" if what == "build_sdist" else "*.whl")
    return built


def unpacked(archive: Path, into: Path) -> Path:
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", into], check=True)
    (source,) = into.iterdir()
    return source


@pytest.fixture(scope="session")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once by each process of the tests, one after the other: two builds in one tree write to the same files."""
    with (tmp_path_factory.getbasetemp().parent / "source-distribution.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build("build_sdist", ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(source_distribution: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the source distribution, interpreted."""
    source = unpacked(source_distribution, tmp_path_factory.mktemp("source"))
    built = build("build_wheel", source, tmp_path_factory.mktemp("wheel"))
    shutil.rmtree(source)
    return built
