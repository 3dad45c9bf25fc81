"""What a release needs, and can be tried without publishing anything (RELEASING.md).

    python -m tools.release tag v0.1.0       # whether this tag may publish this tree
    python -m tools.release try              # what the workflow does, as far as one machine can
    python -m tools.release try --python 3.11 --pure

`try` builds the source distribution, and a wheel from it for each Python that is here: compiled, or with `--pure`
interpreted. `twine check --strict` has to accept all of them. Each wheel goes into an empty environment, where `pip
check` finds nothing missing, and a broker passes a message on. Then tests/core run with the lowest version of each
dependency that pyproject.toml allows. It needs uv, mosquitto_pub and mosquitto_sub.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.programs import ROOT, fail, need, run, uv

PYTHONS: Final = ("3.11", "3.12", "3.13")
TWINE: Final = "twine==7.0.0"
# What tests/core need beside Canopy. The whole group `test` has clients that ask for newer libraries than Canopy does.
TOOLS: Final = (
    *("blockbuster", "coverage", "hypothesis", "mqtt5>=0.8,<0.9"),
    *("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"),
)
RELEASED: Final = r"^## \[?{}\]? - \d{{4}}-\d\d-\d\d$"


def version() -> str:
    """Return the version of this tree."""
    text = (ROOT / "broker/canopy_mqtt/version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__: Final = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def check_tag(tag: str) -> None:
    """Fail unless the tag is this tree's version, and CHANGELOG.md has a date for it."""
    if tag != f"v{version()}":
        fail(f"the tag {tag} is not v{version()}, the version of broker/canopy_mqtt/version.py")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(RELEASED.format(re.escape(version())), changelog, re.MULTILINE):
        fail(f'CHANGELOG.md has no line "## {version()} - YEAR-MONTH-DAY"')


def build_source(into: Path) -> Path:
    """Build the source distribution."""
    run(uv(), "build", "--quiet", "--sdist", "--out-dir", into)
    (built,) = into.glob("*.tar.gz")
    return built


def build_wheel(source: Path, python: str, pure: bool, into: Path) -> Path:
    """Build a wheel of the source distribution for a Python."""
    into.mkdir()
    wanted = "CANOPY_PURE" if pure else "CANOPY_REQUIRE_COMPILED"
    run(uv(), "build", "--quiet", "--wheel", "--python", python, "--out-dir", into, source, cwd=ROOT, **{wanted: "1"})
    (built,) = into.glob("*.whl")
    return built


def try_wheel(wheel: Path, python: str, folder: Path) -> str:
    """Install a wheel into an empty environment, and let its broker pass a message on; return what it says it is."""
    run(uv(), "venv", "--quiet", "--python", python, folder)
    programs = folder / "bin"
    target = ("--quiet", "--python", str(programs / "python"))
    run(uv(), "pip", "install", *target, wheel)
    run(uv(), "pip", "check", *target)
    run(programs / "python", "-P", "-c", "import canopy_load, canopy_mqtt, canopy_pipeline", cwd=folder)
    try_broker(programs)
    return run(programs / "canopy", "--version").strip()


def try_broker(programs: Path) -> None:
    """Start the broker of an environment, and let it pass a message on."""
    command = (programs / "canopy", "serve", "--listen", "mqtt://127.0.0.1:0")
    with subprocess.Popen(command, cwd=programs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as broker:
        try:
            assert broker.stdout is not None
            started = next(line for line in broker.stdout if '"event": "started"' in line)
            port = json.loads(started)["listening"][0].rpartition(":")[2]
            message = ("-p", port, "-q", "1", "-t", "release/try")
            run("mosquitto_pub", *message, "-r", "-m", "21.5")
            got = run("mosquitto_sub", *message, "-C", "1", "-W", "30").strip()
        finally:
            broker.terminate()
    if got != "21.5":
        fail(f"the broker of {programs} gave {got!r} instead of 21.5")


def try_lowest(source: Path, python: str, folder: Path) -> str:
    """Run tests/core of the source distribution with the lowest versions that its dependencies may have."""
    folder.mkdir()
    run("tar", "--extract", "--file", source, "--directory", folder)
    (tree,) = folder.iterdir()
    environment = folder / "environment"
    run(uv(), "venv", "--quiet", "--python", python, environment)
    target = ("--quiet", "--python", str(environment / "bin" / "python"))
    run(uv(), "pip", "install", *target, "--resolution", "lowest-direct", tree, CANOPY_PURE="1")
    try_broker(environment / "bin")
    # The tests' own tools may be new, but change nothing of what is there.
    run(uv(), "pip", "install", *target, "--constraint", pinned(environment, target), *TOOLS)
    told = run(
        *(environment / "bin" / "python", "-P", "-m", "pytest", "-q", "-n", "2", "-m", "not long", "tests/core"),
        cwd=tree,
        PYTHONPATH=str(tree),
        PYTHONSAFEPATH="1",
    )
    return verdict(told)


def verdict(told: str) -> str:
    """Return the line in which pytest says how many tests passed; lines about what was left out may follow it."""
    return next(line for line in reversed(told.splitlines()) if " passed" in line)


def pinned(folder: Path, target: Sequence[str]) -> Path:
    """Write what is installed as constraints, so that the next installation changes none of it."""
    file = folder / "constraints.txt"
    listed = run(uv(), "pip", "freeze", *target)
    file.write_text("".join(f"{line}\n" for line in listed.splitlines() if "==" in line), encoding="utf-8")
    return file


def try_release(pythons: Sequence[str], pure: bool) -> None:
    """Do what the workflow does, and say after each step what came of it."""
    for command in ("mosquitto_pub", "mosquitto_sub"):
        need(command, "apt install mosquitto-clients")
    with tempfile.TemporaryDirectory(prefix="canopy-release-") as scratch:
        folder = Path(scratch)
        source = build_source(folder / "sdist")
        print(f"canopy: {source.name}: {source.stat().st_size:,} bytes", flush=True)
        built = [source]
        for python in pythons:
            if not run(uv(), "python", "list", "--only-installed", python).strip():
                print(f"canopy: uv finds no Python {python} on this machine (uv python list): not tried", flush=True)
                continue
            wheel = build_wheel(source, python, pure, folder / f"wheel-{python}")
            built.append(wheel)
            print(f"canopy: {wheel.name}: {try_wheel(wheel, python, folder / f'fresh-{python}')}", flush=True)
        run(uv(), "tool", "run", "--quiet", TWINE, "check", "--strict", *built)
        print(f"canopy: {TWINE} check --strict accepts {len(built)} files", flush=True)
        print(f"canopy: lowest dependencies: {try_lowest(source, pythons[0], folder / 'lowest')}", flush=True)


def main() -> None:
    """Read the command line, and do it."""
    parser = argparse.ArgumentParser(description="What a release needs, tried without publishing anything.")
    commands = parser.add_subparsers(dest="command", required=True)
    tag = commands.add_parser("tag", help="whether this tag may publish this tree")
    tag.add_argument("tag")
    trial = commands.add_parser("try", help="what the workflow does, as far as one machine can")
    trial.add_argument("--python", action="append", choices=PYTHONS, help="instead of all")
    trial.add_argument("--pure", action="store_true", help="do not compile")
    options = parser.parse_args()
    if options.command == "tag":
        check_tag(options.tag)
    else:
        try_release(options.python or PYTHONS, options.pure)


if __name__ == "__main__":
    main()
