"""Compiles the broker's core and the load tester with mypyc, and installs interpreted what cannot be compiled here.

Owns: the list of compiled modules, in units. A unit is one extension: a change in one leaves the other as it was built,
and a unit that mypyc or the C compiler refuses is interpreted as a whole, for a reason that the build tells in a line.
``CANOPY_PURE=1`` leaves both interpreted; ``CANOPY_REQUIRE_COMPILED=1`` makes every obstacle an error. An editable
install is never compiled: extension modules beside the sources would hide every later edit.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# As patterns from the root of the tree. Package files (__init__.py) stay interpreted: the import system needs them as
# files, and they hold no code worth compiling. Within a unit calls are C calls; the load tester calls the codec as any
# Python does, so that nothing of it can change how the broker is compiled.
UNITS = {
    "canopy_core": [
        "broker/canopy_mqtt/core/**/*.py",
        "broker/canopy_mqtt/histogram.py",
        "broker/canopy_mqtt/inprocess/inbox.py",
        "broker/canopy_mqtt/net/connections/admission.py",
        "broker/canopy_mqtt/net/connections/by_account.py",
        "broker/canopy_mqtt/net/connections/connection.py",
        "broker/canopy_mqtt/net/connections/connection_log.py",
        "broker/canopy_mqtt/net/connections/connection_table.py",
        "broker/canopy_mqtt/net/connections/ends.py",
        "broker/canopy_mqtt/net/connections/time_limits.py",
        "broker/canopy_mqtt/net/delays.py",
        "broker/canopy_mqtt/guards/hook_guards.py",
        "broker/canopy_mqtt/net/listening/handshakes.py",
        "broker/canopy_mqtt/net/listening/tls_transport.py",
        "broker/canopy_mqtt/net/rounds.py",
        "broker/canopy_mqtt/net/stream.py",
        "broker/canopy_mqtt/net/timers.py",
        "broker/canopy_mqtt/net/websocket/*.py",
        "broker/canopy_mqtt/observe/sampling/*.py",
        "broker/canopy_mqtt/observe/trace/packet_watch.py",
        "broker/canopy_mqtt/record/tap.py",
        "broker/canopy_mqtt/record/unpack.py",
        "broker/canopy_mqtt/security/bans.py",
        "broker/canopy_mqtt/store/group_commit/checksums.py",
        "broker/canopy_mqtt/store/group_commit/batch.py",
        "broker/canopy_mqtt/store/group_commit/journal.py",
        "broker/canopy_mqtt/store/group_commit/notes.py",
        "broker/canopy_mqtt/store/group_commit/records.py",
        "broker/canopy_mqtt/store/group_commit/journal_listener.py",
        "broker/canopy_mqtt/store/journal_guard.py",
        "broker/canopy_mqtt/store/shared/calls.py",
        "broker/canopy_mqtt/store/shared/holder.py",
        "broker/canopy_mqtt/store/shared/journal.py",
        "broker/canopy_mqtt/store/shared/node.py",
        "broker/canopy_mqtt/store/shared/numbered_filters.py",
        "broker/canopy_mqtt/store/shared/records.py",
        "broker/canopy_mqtt/store/sqlite/reading.py",
        "broker/canopy_mqtt/links/filters/*.py",
        "broker/canopy_mqtt/links/protocol/*.py",
    ],
    "canopy_load": [
        "loadtest/canopy_load/ledger/deliveries.py",
        "loadtest/canopy_load/ledger/mark.py",
        "loadtest/canopy_load/engine/clients/send_scheduler.py",
        "loadtest/canopy_load/engine/schedule.py",
        "loadtest/canopy_load/engine/clients/sending.py",
        "loadtest/canopy_load/ledger/counters.py",
        "loadtest/canopy_load/engine/clients/connection.py",
    ],
}
# Types are checked by `make lint`. Here mypy reads a unit alone: what it imports need not be installed where a wheel is
# built.
MYPY = ("--config-file=", "--follow-imports=skip", "--ignore-missing-imports")
# Nobody else links to an extension: its functions call each other directly, and small ones stand where they are called,
# which a shared library's public functions may not. No warnings: looking for them takes gcc twice as long as all the
# rest, also where -w has it say nothing, and what mypyc writes is nobody's to mend.
FLAGS = ("-fvisibility=hidden", "-Wno-all", "-w") if os.name == "posix" else ()
# What commands read of config/ has one home in the tree and is installed as packages (which files: pyproject.toml).
FOLDERS = {"canopy_mqtt.settings.files": "config", "canopy_load.scenario.scenarios": "config/load"}
# The folders at the top that hold packages: what is installed lies below three names that no other project has.
PACKAGES = {"broker": "canopy_mqtt", "loadtest": "canopy_load", "pipeline": "canopy_pipeline"}
BUILDS = {"bdist_wheel", "build", "build_ext", "install"}
ROOT = Path(__file__).resolve().parent
# Installers hide what a build prints; `.ci/environment` shows this file.
RECORD = ROOT / "build" / "interpreted"


def wanted(name: str) -> bool:
    """Whether the environment variable is set to something other than 0."""
    return os.environ.get(name, "") not in ("", "0")


def interpret(what: str, reason: object) -> None:
    """Tell why it is installed interpreted, or fail where compiling is required."""
    if wanted("CANOPY_REQUIRE_COMPILED"):
        raise SystemExit(f"canopy: CANOPY_REQUIRE_COMPILED is set, but {what} cannot be compiled: {reason}")
    line = f"canopy: {what} is installed interpreted (it works, slower): {reason}"
    print(line, file=sys.stderr)
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.open("a", encoding="utf-8") as record:
        record.write(f"{line}\n")


def obstacle() -> str | None:
    """Why nothing can be compiled here, if so. mypyc works for many seconds before it calls the C compiler."""
    if wanted("CANOPY_PURE"):
        return "CANOPY_PURE is set"
    if sys.implementation.name != "cpython":
        return f"mypyc needs CPython, this is {sys.implementation.name}"
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if not command:
        return None  # not built by a Unix compiler: the build itself will tell
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint canopy_probe(void) { return PY_MAJOR_VERSION; }\n")
        probe = [*command, "-I", sysconfig.get_path("include"), "-c", str(source), "-o", str(source.with_suffix(".o"))]
        try:
            subprocess.run(probe, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return "no working C compiler with Python's headers (Debian: apt install gcc python3-dev)"
    return None


def to_c(unit: str, patterns: Iterable[str]) -> list[Extension]:
    """Have mypyc write a unit's C; no extensions where it refuses (its own messages stand above, on the terminal)."""
    found = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)}
    files = sorted(path for path in found if not path.endswith("__init__.py"))
    try:
        from mypyc.build import mypycify

        extensions = mypycify([*MYPY, *files], opt_level="3", debug_level="0", group_name=unit)
    except (Exception, SystemExit) as error:  # a fault of mypyc's own must not cost the user the install
        interpret(unit, f"mypyc refused it: {error}")
        return []
    for extension in extensions:
        # mypyc gives all extensions of a unit the same list.
        extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS]
    return cast("list[Extension]", extensions)


def plan() -> dict[str, list[Extension]]:
    """The extensions of each unit in this build."""
    if not BUILDS.intersection(sys.argv):
        return {}
    RECORD.unlink(missing_ok=True)
    reason = obstacle()
    if reason:
        interpret("the core", reason)
        return {}
    return {unit: to_c(unit, patterns) for unit, patterns in UNITS.items()}


class BuildPy(build_py):
    """Copies the packages. Files that left the tree since the last build are not carried along."""

    def run(self) -> None:
        if not self.editable_mode:
            for file in Path(self.build_lib).rglob("*"):
                if file.is_file() and file.suffix not in (".so", ".pyd"):
                    file.unlink()
        super().run()


class BuildExt(build_ext):
    """Compiles all extensions of a unit, or leaves none."""

    def build_extensions(self) -> None:
        self.parallel = True
        built: list[Extension] = []
        for unit, extensions in COMPILED.items():
            self.extensions = extensions
            try:
                super().build_extensions()
                built += extensions
            except Exception as error:
                interpret(unit, f"the C compiler failed ({error})")
        self.extensions = built
        keep = {Path(self.get_ext_fullpath(extension.name)).resolve() for extension in built}
        for file in Path(self.build_lib).rglob("*"):
            if file.suffix in (".so", ".pyd") and file.resolve() not in keep:
                file.unlink()


def readme() -> str:
    """README.md for the page of a package index: links into the repository become their text, pictures of it go."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)


COMPILED = plan()
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    packages=[*(found for folder in PACKAGES for found in find_packages(folder)), *FOLDERS],
    package_dir={**{name: f"{folder}/{name}" for folder, name in PACKAGES.items()}, **FOLDERS},
    ext_modules=[extension for extensions in COMPILED.values() for extension in extensions],
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
)
