"""Compiles the core with mypyc where that is possible, and installs it interpreted where it is not.

Owns: the list of compiled modules, and the rule "all or nothing": of the broker, each of them is compiled or none.
Without a C compiler, without Python's headers, with ``CANOPY_PURE=1``, or when mypyc refuses the source, the build
succeeds and says in one line why. ``CANOPY_REQUIRE_COMPILED=1`` turns each of those into a failed build. What mypyc
refuses of the load tester costs the broker nothing. An editable install is never compiled: extension modules beside the
sources would hide every later edit. `config/default.toml` and `config/load/` go into their packages.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# The modules compiled with mypyc, as patterns from the root of the tree. Package files (__init__.py) stay interpreted:
# the import system needs them as files, and they hold no code worth compiling.
BROKER = [
    "broker/core/**/*.py",
    "broker/net/client.py",
    "broker/net/connection.py",
    "broker/net/connection_table.py",
    "broker/net/admission.py",
    "broker/net/listening/handshakes.py",
    "broker/net/listening/terms.py",
    "broker/net/hub.py",
    "broker/net/partial_packets.py",
    "broker/net/time_limits.py",
    "broker/net/stream.py",
    "broker/net/timers.py",
    "broker/net/listening/tls_transport.py",
    "broker/net/turns.py",
    "broker/net/websocket/*.py",
    "broker/record/unpack.py",
    "broker/store/sqlite/group.py",
    "broker/store/sqlite/journal.py",
    "broker/store/sqlite/reading.py",
    "broker/store/sqlite/shell.py",
    "broker/upstream/filters/*.py",
    "broker/upstream/protocol/*.py",
]
LOAD_TESTER = [
    "loadtest/load/checks/deliveries.py",
    "loadtest/load/checks/mark.py",
    "loadtest/load/engine/clients/pacer.py",
    "loadtest/load/engine/schedule.py",
    "loadtest/load/engine/clients/sending.py",
    "loadtest/load/checks/counters.py",
    "loadtest/load/engine/clients/connection.py",
]

# All modules share one extension, so that calls between them are C calls, also from the load tester into the codec.
GROUP = "canopy_core"
OPTIMISATION = "3"
DEBUGGING = "0"
# Nobody else links to the extension: its functions call each other directly, and small ones stand where they are
# called, which a shared library's public functions may not. No warnings: looking for them takes gcc twice as long as
# all the rest, also where -w has it say nothing, and what mypyc writes is nobody's to mend.
FLAGS = ("-fvisibility=hidden", "-Wno-all", "-w")

BUILDS = {"bdist_wheel", "build", "build_ext", "install"}
PACKAGES = ("broker", "canopy_delta", "canopy_pages", "canopy_spark", "loadtest", "pipeline")
ROOT = Path(__file__).resolve().parent
# What `canopy check-config --defaults` prints has one home in the tree, and goes beside the settings' models.
DEFAULTS = "config/default.toml"
DEFAULTS_IN = "broker/settings"
# The built-in scenarios of `canopy load` have one home in the tree, and go into the package when it is built.
SCENARIOS = "config/load/*.toml"
SCENARIOS_IN = "loadtest/load/scenario/scenarios"
RECORD = ROOT / "build" / "interpreted"


class InterpretedError(Exception):
    """Why the core cannot be compiled here, as a clause for the end user."""


def wanted(name: str) -> bool:
    """Whether the environment variable is set to something other than 0."""
    return os.environ.get(name, "") not in ("", "0")


def modules(patterns: Iterable[str]) -> list[str]:
    """The files to compile that exist now, relative to the root, sorted."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.name != "__init__.py"}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def scenarios() -> list[str]:
    """The built-in scenarios, relative to the root, sorted."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(SCENARIOS))


def probe_compiler() -> None:
    """Compile a file that needs Python's headers: mypyc works for many seconds before it calls the C compiler.

    Raises:
        InterpretedError: there is no working compiler, or the headers are missing.
    """
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if not command:
        return  # not built by a Unix compiler: the build itself will tell
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint canopy_probe(void) { return PY_MAJOR_VERSION; }\n")
        probe = [*command, "-I", sysconfig.get_path("include"), "-c", str(source), "-o", str(Path(folder, "probe.o"))]
        try:
            subprocess.run(probe, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = "no working C compiler with Python's headers (Debian: apt install gcc python3-dev)"
            raise InterpretedError(reason) from error


def to_c(files: list[str]) -> list[Extension]:
    """Let mypyc write the C of these modules.

    Raises:
        InterpretedError: mypyc is missing or refuses the source (its own messages stand above, on the terminal).
    """
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise InterpretedError(f"mypyc is not installed ({error})") from error
    # Types are checked by `make lint`. Here mypy reads the core alone: the rest of the broker, and its dependencies,
    # need not be installed where a wheel is built.
    arguments = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", *files]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            extensions = cast(
                "list[Extension]", mypycify(arguments, opt_level=OPTIMISATION, debug_level=DEBUGGING, group_name=GROUP)
            )
    except SystemExit as error:  # how mypyc reports a refused source
        print(output.getvalue(), file=sys.stderr)
        first = next((line for line in f"{output.getvalue()}\n{error}".splitlines() if line.strip()), "no reason given")
        raise InterpretedError(f"mypyc refused the source: {first}") from error
    except Exception as error:  # a fault of mypyc's own must not cost the user the install
        raise InterpretedError(f"mypyc failed: {type(error).__name__}: {error}") from error
    if os.name == "posix":
        for extension in extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS]
    return extensions


def to_c_what_can_be() -> list[Extension]:
    """The broker and the load tester; the broker alone where the load tester is refused.

    Raises:
        InterpretedError: the broker is refused, or both are and both are required.
    """
    broker, load_tester = modules(BROKER), modules(LOAD_TESTER)
    if not load_tester:
        return to_c(broker)
    try:
        return to_c([*broker, *load_tester])
    except InterpretedError as refusal:
        extensions = to_c(broker)
        if wanted("CANOPY_REQUIRE_COMPILED"):
            raise
        tell(f"the load tester is installed interpreted (it works, slower): {refusal}")
        return extensions


def plan() -> list[Extension]:
    """The extensions of this build; empty when the core stays interpreted."""
    if not BUILDS.intersection(sys.argv):
        return []
    RECORD.unlink(missing_ok=True)
    try:
        if wanted("CANOPY_PURE"):
            raise InterpretedError("CANOPY_PURE is set")
        if sys.implementation.name != "cpython":
            raise InterpretedError(f"mypyc needs CPython, this is {sys.implementation.name}")
        probe_compiler()
        return to_c_what_can_be()
    except InterpretedError as reason:
        interpret(str(reason))
        return []


def interpret(reason: str) -> None:
    """Tell why the core is installed interpreted, or fail where compiling is required."""
    if wanted("CANOPY_REQUIRE_COMPILED"):
        raise SystemExit(f"canopy: CANOPY_REQUIRE_COMPILED is set, but {reason}")
    tell(f"the core is installed interpreted (it works, slower): {reason}")


def tell(text: str) -> None:
    """Say it, and write it down: installers hide what a build prints, and `.ci/environment` shows the file instead."""
    print(f"canopy: {text}", file=sys.stderr)
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(f"canopy: {text}\n", encoding="utf-8")


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


class BuildPy(build_py):
    """Copies the packages and the scenarios. Files that left the tree since the last build are not carried along."""

    def run(self) -> None:
        if not self.editable_mode:
            for package in PACKAGES:
                remove(Path(self.build_lib, package).rglob("*.py"))
        super().run()
        if not self.editable_mode:
            self._copy_scenarios()
            self.copy_file(str(ROOT / DEFAULTS), str(Path(self.build_lib, DEFAULTS_IN)))

    def _copy_scenarios(self) -> None:
        folder = Path(self.build_lib, SCENARIOS_IN)
        remove(folder.glob("*.toml"))
        files = scenarios()
        if not files:
            raise SystemExit(f"canopy: {SCENARIOS} is missing; the load tester has no scenarios without it")
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            self.copy_file(str(ROOT / file), str(folder / Path(file).name))

    def get_source_files(self) -> list[str]:
        """What belongs into a source distribution."""
        return [*super().get_source_files(), DEFAULTS, *scenarios()]  # type: ignore[no-untyped-call]


class BuildExt(build_ext):
    """Compiles all extensions, or leaves none."""

    def run(self) -> None:
        self.extensions: list[Extension]
        keep = {Path(self.get_ext_fullpath(extension.name)).resolve() for extension in self.extensions}
        remove(path for path in self._built() if path.resolve() not in keep)
        try:
            super().run()
        except Exception as error:
            remove(self._built())
            self.extensions = []
            interpret(f"the C compiler failed ({error})")

    def _built(self) -> list[Path]:
        return [path for suffix in ("so", "pyd") for path in Path(self.build_lib).rglob(f"*.{suffix}")]


setup(ext_modules=plan(), cmdclass={"build_py": BuildPy, "build_ext": BuildExt})
