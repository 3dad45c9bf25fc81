"""Canopy where nothing of it is yet: a clone without compiler, the source distribution, a wheel, a fresh environment.

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
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.daemon import Daemon, environment

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = re.compile(r"(.*-)?(cc|gcc|g\+\+|c\+\+|c[89]9(-gcc)?|clang(\+\+)?|tcc)(-[\d.]+)?")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def known() -> list[str]:
    """The files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git, or no clone")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


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


def test_the_source_distribution_is_whole(source_distribution: Path) -> None:
    """Everything that git knows is in it."""
    names = known()
    with tarfile.open(source_distribution) as opened:
        found = {name.partition("/")[2] for name in opened.getnames()}
    assert {name for name in names if name not in found} == set()


def test_the_wheel_has_three_packages(wheel: Path) -> None:
    """No name at the top that a project, or another distribution, may have too."""
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        (record,) = [name for name in opened.namelist() if name.endswith(".dist-info/RECORD")]
        names = [line.partition(",")[0] for line in opened.read(record).decode().splitlines()]
    assert record in names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"canopy_mqtt", "canopy_load", "canopy_pipeline", record.partition("/")[0]}


def pins(file: Path) -> Path:
    """The versions that the project is tested with, so that a release of others cannot fail this test."""
    versions: dict[str, set[str]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]:
        if "registry" in package["source"]:
            versions.setdefault(package["name"], set()).add(package["version"])
    file.write_text("".join(f"{name}=={min(each)}\n" for name, each in versions.items() if len(each) == 1))
    return file


def test_a_wheel_of_the_source_distribution_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """The commands of the first minutes, with the extras `load` and `record`, and nothing but the wheel."""
    venv.create(tmp_path / "fresh")
    programs = tmp_path / "fresh" / "bin"
    environ = environment(PYTHONPATH="")

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=400
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    constraints: Sequence[str] = ("--constraint", str(pins(tmp_path / "pins.txt")))
    # The make targets have it, on the path or in the project's folder; pip would take ten times as long.
    uv = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
    target = ("--quiet", "--python", str(programs / "python"))
    run(uv, "pip", "install", *target, *constraints, f"{wheel}[load,record]")
    run(uv, "pip", "check", *target)
    canopy = programs / "canopy"
    assert "interpreted" in run(canopy, "--version")
    assert "canopy serve" in run(canopy, "init", "dev")
    assert "canopy.toml: OK" in run(canopy, "check-config", "canopy.toml")
    run(programs / "python", "-c", "from canopy_mqtt import Broker, hooks, testing; print(Broker, hooks, testing)")
    recorded = f'recorder.directory="{tmp_path / "record"}"'
    with Daemon("--set", recorded, command=[str(canopy)], environ={"PYTHONPATH": ""}) as daemon:
        assert round_trip(daemon.port) == "21.5"
        # Until ten messages are sent, however slow the machine is: in one second it may have sent none.
        loading = ("pub", "-c", "2", "-t", "bench/%i", "--subscribers", "1", "-I", "50", "-L", "10", "--strict")
        assert "Nothing was lost" in run(canopy, "load", *loading, "-p", str(daemon.port))
        assert daemon.end()[0] == 0
    assert "dropped: nothing" in run(canopy, "record", "stats", tmp_path / "record")


class Project(NamedTuple):
    """A user's project, whose modules have names that rooms of Canopy have, or had."""

    folder: Path
    environ: dict[str, str]
    """Lets Python find the wheel behind the folder of the project, as an installed package."""

    def python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def serving(self, monkeypatch: pytest.MonkeyPatch) -> Daemon:
        monkeypatch.chdir(self.folder)
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        return Daemon(command=[sys.executable, "-m", "canopy_mqtt"], environ={"PYTHONPATH": self.environ["PYTHONPATH"]})


OWN = ("broker.py", "canopy.py", "core.py", "loadtest.py", "pipeline/__init__.py", "settings.py", "tests/__init__.py")
TEST = """
import broker, canopy, core, loadtest, pipeline, settings, tests

def test_own(canopy_broker):
    canopy_broker.publish("own/topic", "1")
    assert canopy_broker.messages("own/topic")
    assert all(module.OWN for module in (broker, canopy, core, loadtest, pipeline, settings, tests))
"""
SPARK = """
import broker, pipeline, sys
import canopy_pipeline.spark
from pyspark.sql import SparkSession

assert broker.OWN and pipeline.OWN
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
spark = builder.getOrCreate()
canopy_pipeline.spark.register(spark)
rows = spark.range(3).selectExpr("concat('own/', id) AS topic", "cast(id AS string) AS payload", "true AS retain")
rows.write.format("mqtt").option("url", sys.argv[1]).mode("append").save()
read = spark.read.format("mqtt").option("url", sys.argv[1]).option("filters", "own/#").option("max_rows", "3").load()
print(sorted(row.topic for row in read.collect()))
"""


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("project")
    for name in OWN:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("OWN = True\n")
    (folder / "tests" / "test_own.py").write_text(TEST)
    (folder / "job.py").write_text(SPARK)
    installed = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(installed)
    environ = environment(PYTHONPATH=str(installed), SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    environ.pop("PYTHONSAFEPATH", None)
    assert Path(Project(folder, environ).python("-c", "import canopy_mqtt as c; print(c.__file__)")).is_relative_to(
        installed
    )
    return Project(folder, environ)


def test_a_project_with_modules_of_the_same_names(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands, the fixtures for pytest and the load tester find their own, and the project finds its own."""
    assert "interpreted" in project.python("-m", "canopy_mqtt", "--version")
    assert "1 passed" in project.python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    with project.serving(monkeypatch) as daemon:
        assert round_trip(daemon.port) == "21.5"
        # Until ten messages are sent, however slow the machine is: in one second it may have sent none.
        loading = ("pub", "-c", "2", "-t", "bench/%i", "--subscribers", "1", "-I", "50", "-L", "10", "--strict")
        told = project.python("-m", "canopy_mqtt", "load", *loading, "-p", str(daemon.port))
        # On a machine that is too busy for its figures the report says that instead of "Nothing was lost".
        assert re.search(r"^lost +0 +of 10 due", told, re.MULTILINE)
        assert daemon.end()[0] == 0


def test_a_spark_program_in_such_a_project(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers start in the project's folder: the sink and the source work there too."""
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("no java")
    with project.serving(monkeypatch) as daemon:
        told = project.python("job.py", f"mqtt://127.0.0.1:{daemon.port}")
        assert told.splitlines()[-1] == "['own/0', 'own/1', 'own/2']"
