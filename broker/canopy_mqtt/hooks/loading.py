"""Imports the plug-ins that the settings name, and describes their faults in a line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from canopy_mqtt.hooks.interface import NAMES, defined
from canopy_mqtt.net.listening.listeners import StartupError

ALIKE: Final = 0.75
"""The similarity to a hook's name, from 0 to 1, at which a method counts as misspelt."""


BROKEN: Final = (Exception, SystemExit)
"""Exceptions of a plug-in's code: a script that is no module raises SystemExit."""


class PluginError(StartupError):
    """A plug-in cannot be used; the message is one line."""


def load(names: Sequence[str]) -> list[Any]:
    """Make the plug-ins of ``hooks = ["module:attribute"]``. Raises PluginError."""
    return [_made(name) for name in names]


def unusable(names: Sequence[str]) -> list[str]:
    """Return the reasons why plug-ins cannot be used, a line each."""
    lines = []
    for name in names:
        try:
            _made(name)
        except PluginError as error:
            lines.append(str(error))
    return lines


def check(plugin: Any) -> None:
    """Check that a plug-in defines existing hooks. Raises PluginError."""
    kind = type(plugin).__name__
    for name in dir(plugin):
        if name.startswith("_") or name in NAMES or not callable(getattr(plugin, name, None)):
            continue
        near = difflib.get_close_matches(name, NAMES, 1, ALIKE)
        if near:
            raise PluginError(
                f"{kind}.{name}: there is no such hook; did you mean {near[0]!r}? A method that is none of its hooks "
                "begins with an underscore"
            )
    if not any(defined(plugin, name) for name in NAMES):
        raise PluginError(f"{kind} defines no hook; there are {', '.join(NAMES)}")


def _made(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not (module_name + ".").startswith(error.name + "."):
            raise PluginError(f"hooks: {name!r} needs {error.name}, which is not installed") from error
        raise PluginError(
            f"hooks: there is no module {module_name!r}; it must be installed, or its folder named in PYTHONPATH"
        ) from error
    except BROKEN as error:
        raise PluginError(f"hooks: {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(module), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"hooks: the module {module_name!r} has no {attribute!r}{hint}")
    try:
        plugin = found() if callable(found) else found
    except BROKEN as error:
        raise PluginError(f"hooks: {name!r} cannot be made: {type(error).__name__}: {error}") from error
    try:
        check(plugin)
    except PluginError as error:
        raise PluginError(f"hooks: {name!r}: {error}") from error
    except BROKEN as error:
        raise PluginError(f"hooks: {name!r} does not tell its hooks: {type(error).__name__}: {error}") from error
    return plugin
