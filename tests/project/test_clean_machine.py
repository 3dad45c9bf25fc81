"""What somebody gets who has nothing: a clone without compiler, the source distribution, a wheel, a fresh environment.

With a compiler the environment of the tests themselves is such an install: `.ci/environment` makes it, and continuous
integration has it compiled (`CANOPY_REQUIRE_COMPILED`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, environment

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = re.compile(r"(.*-)?(cc|gcc|g\+\+|c\+\+|c[89]9(-gcc)?|clang(\+\+)?|tcc)(-[\d.]+)?")
BUILD = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def known() -> list[str]:
    """The files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git, or no clone")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def build(what: str, source: Path, into: Path) -> Path:
    """`build_sdist` or `build_wheel`, interpreted; whatever this run demands of its own build."""
    subprocess.run(
        [sys.executable, "-c", BUILD, what, str(into)],
        cwd=source,
        env=environment(CANOPY_PURE="1"),
        check=True,
        capture_output=True,
    )
    (built,) = into.glob("*.tar.gz" if what == "build_sdist" else "*.whl")
    return built


def unpacked(archive: Path, into: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")
    (source,) = into.iterdir()
    return source


def round_trip(port: int) -> str:
    """What mosquitto_sub gets of what mosquitto_pub publishes: retained, so that neither waits for the other."""
    for tool in ("mosquitto_pub", "mosquitto_sub"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    there = ["-p", str(port), "-q", "1", "-t", "site/7/temperature"]
    subprocess.run(["mosquitto_pub", *there, "-r", "-m", "21.5"], check=True, timeout=60)
    heard = subprocess.run(
        ["mosquitto_sub", *there, "-C", "1", "-W", "60"], check=True, timeout=90, capture_output=True, text=True
    )
    return heard.stdout.strip()


def tools_without_compiler(folder: Path) -> Path:
    """A folder to be the whole PATH; there is no uv either."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for file in Path(place).iterdir():
            absent = COMPILERS.fullmatch(file.name) or file.name == "uv"
            if not absent and not (folder / file.name).is_symlink():
                (folder / file.name).symlink_to(file)
    return folder


def until_started(process: subprocess.Popen[str]) -> tuple[list[str], dict[str, Any]]:
    """The lines before the broker listens, and what it says then."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and json.loads(line)["event"] == "started":
            return lines, json.loads(line)
        lines.append(line.rstrip())
    raise AssertionError("\n".join(lines))


def test_make_run_in_a_fresh_clone_without_a_compiler(tmp_path: Path) -> None:
    """It says what it does and that the core is interpreted, and serves; a second time it installs nothing."""
    clone = tmp_path / "clone"
    for name in known():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name, follow_symlinks=False)
    environ = environment(PATH=str(tools_without_compiler(tmp_path / "tools")), PYTHON=sys.executable)
    for name in ("CC", "VENV", "PYTHONPATH", "PYTHONSAFEPATH", "MAKEFLAGS", "MAKELEVEL"):
        environ.pop(name, None)
    steps: list[list[str]] = []
    for _ in range(2):
        with subprocess.Popen(
            ["make", "run", "ARGS=--listen mqtt://127.0.0.1:0"],
            cwd=clone,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                lines, started = until_started(process)
                steps.append([line for line in lines if line.startswith("canopy: ")])
                assert started["core"] == "interpreted"
                assert round_trip(int(started["listening"][0].rpartition(":")[2])) == "21.5"
                os.kill(started["pid"], signal.SIGTERM)
                process.communicate(timeout=60)
                assert process.returncode == 0
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    first, second = steps
    assert any(line.startswith("canopy: installing into .venv (run: ") for line in first)
    (told,) = second
    assert told.startswith(
        "canopy: the core is interpreted, so it serves at once, but slower; `make setup` compiles it"
    )
    assert first[-1] == told


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once: two builds in one tree would write to the same files."""
    return build("build_sdist", ROOT, tmp_path_factory.mktemp("dist"))


def test_the_source_distribution_is_whole(source_distribution: Path) -> None:
    """Everything that git knows is in it."""
    names = known()
    with tarfile.open(source_distribution) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    assert {name for name in names if name not in found} == set()


def pins(file: Path) -> Path:
    """The versions that the project is tested with, so that a release of others cannot fail this test."""
    versions: dict[str, set[str]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]:
        if "registry" in package["source"]:
            versions.setdefault(package["name"], set()).add(package["version"])
    file.write_text("".join(f"{name}=={min(each)}\n" for name, each in versions.items() if len(each) == 1))
    return file


def test_a_wheel_of_the_source_distribution_in_a_fresh_environment(source_distribution: Path, tmp_path: Path) -> None:
    """The commands of the first minutes, with the extras `load` and `record`, and nothing but the wheel."""
    source = unpacked(source_distribution, tmp_path / "source")
    wheel = build("build_wheel", source, tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    shutil.rmtree(source)
    venv.create(tmp_path / "fresh", with_pip=True)
    programs = tmp_path / "fresh" / "bin"
    environ = environment(PYTHONPATH="")

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=400
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    constraints: Sequence[str] = ("--constraint", str(pins(tmp_path / "pins.txt")))
    run(programs / "python", "-m", "pip", "install", "--quiet", *constraints, f"{wheel}[load,record]")
    run(programs / "python", "-m", "pip", "check")
    canopy = programs / "canopy"
    assert "interpreted" in run(canopy, "--version")
    assert "canopy serve" in run(canopy, "init", "dev")
    assert "canopy.toml: OK" in run(canopy, "check-config", "canopy.toml")
    run(programs / "python", "-c", "from canopy import Broker, Settings; import canopy.testing, canopy.hooks")
    recorded = f'recorder.directory="{tmp_path / "record"}"'
    with Daemon("--set", recorded, command=[str(canopy)], environ={"PYTHONPATH": ""}) as daemon:
        assert round_trip(daemon.port) == "21.5"
        loading = ("pub", "-c", "2", "-t", "bench/%i", "--subscribers", "1", "--duration", "1s", "--strict")
        assert "Nothing was lost" in run(canopy, "load", *loading, "-p", str(daemon.port))
        assert daemon.end()[0] == 0
    assert "dropped: nothing" in run(canopy, "record", "stats", tmp_path / "record")
