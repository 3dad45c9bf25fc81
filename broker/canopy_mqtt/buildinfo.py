"""Tells how this copy of Canopy was built.

Owns the answer to "is the core compiled?", from the installed files, never from a note made at build time. `python -m
canopy_mqtt.buildinfo` prints that one word for the make targets and scripts. Promises: it imports nothing of
`canopy_mqtt.core` but its empty packages.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

from canopy_mqtt.version import __version__

COMPILED = "compiled"
INTERPRETED = "interpreted"
MIXED = "partly compiled"


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The output of `canopy --version`."""

    version: str
    core: str
    """`compiled`, `interpreted`, or `partly compiled` (a broken install with a mixture of both)."""
    python: str
    uvloop: str | None
    """The installed version of uvloop, or None if the standard event loop is used."""
    location: Path
    """The folder that the package was imported from."""

    def __str__(self) -> str:
        loop = f"uvloop {self.uvloop}" if self.uvloop else "asyncio's own loop"
        return f"canopy {self.version} ({self.core}, {self.python}, {loop})"


def build_info() -> BuildInfo:
    """Inspect the running install."""
    return BuildInfo(
        version=__version__,
        core=core_state(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        uvloop=_installed("uvloop"),
        location=Path(__file__).resolve().parent,
    )


def core_state() -> str:
    """Return `compiled` if every module of `canopy_mqtt.core` is an extension module, `interpreted` if none is."""
    package = find_spec("canopy_mqtt.core")
    if package is None or package.submodule_search_locations is None:
        return INTERPRETED
    modules = walk_packages(package.submodule_search_locations, "canopy_mqtt.core.")
    specs = [find_spec(module.name) for module in modules if not module.ispkg]
    compiled = [bool(spec and spec.origin and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))) for spec in specs]
    if not any(compiled):
        return INTERPRETED
    return COMPILED if all(compiled) else MIXED


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(core_state())
