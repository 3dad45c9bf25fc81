"""The sources of scenarios: the built-in ones, files, and the changes of the command line.

Owns: finding a scenario by name or path, `--set` and `--scale`, and the text of a scenario as it will be played.

Promises: what is wrong is told as lines for people (``ScenarioError``): where it stands (file or flag), under which
key, with groups and stages by their names, and what would do. Every fault of a file is told at once. What `load`
returns can be played: its patterns and names were tried as well.

Refuses: to guess. A value of the wrong type is not converted, and an override that names nothing is an error.

The built-in scenarios are `config/load/*.toml` of the source tree, and `scenarios/` beside this module where Canopy is
installed (`setup.py` puts them there).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from canopy_load.errors import Misuse
from canopy_load.scenario import overrides as flags
from canopy_load.scenario.complaints import Place, complaints, suggest
from canopy_load.scenario.overrides import Override, OverrideError
from canopy_load.scenario.patterns import Pattern
from canopy_load.scenario.plan import Plan, PlanError
from canopy_load.scenario.scenario_schema import Scenario
from canopy_load.scenario.toml_text import dumps
from canopy_mqtt.pages import plain

SUFFIX: Final = ".toml"
HIDDEN: Final = "********"
INSTALLED: Final = Path(__file__).resolve().parent / "scenarios"
SOURCE: Final = Path(__file__).resolve().parents[3] / "config" / "load"


class ScenarioError(Misuse):
    """A scenario that cannot be found, read or played. Its text is one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(plain(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


def load(name_or_path: str, overrides: Sequence[str] = (), scale: float | None = None) -> tuple[Scenario, str]:
    """Find a scenario, make the changes of the command line, and check it.

    Args:
        name_or_path: the name of a built-in scenario, or a file: what holds a slash or ends in `.toml`.
        overrides: what followed each `--set`, as ``key=value`` (see ``overrides``); later ones win.
        scale: what followed `--scale`; it wins over the file and the overrides.

    Returns:
        The scenario, and the TOML text of just what is played: the file's own text when nothing was changed.

    Raises:
        ScenarioError: it cannot be found or read, or is no scenario, or cannot be played.
    """
    source, text = _read(name_or_path)
    data = _parse(source, text)
    moved = _anchor(data, Path(source).parent) if _is_file(name_or_path) else False
    changes = _changed(data, overrides, scale)
    moved = _anchor(data, Path()) or moved
    scenario = _playable(source, data, changes)
    if changes or moved:
        text = f"# {plain(_with(source, changes))}\n\n{dumps(data)}"
    return scenario, text


def made(source: str, data: dict[str, Any]) -> tuple[Scenario, str]:
    """Return a scenario made of a command line's data, and its text. `source`: its name in messages.

    Raises:
        ScenarioError: it is none, or cannot be played.
    """
    _anchor(data, Path())
    return _playable(source, data, []), dumps(data)


def without_passwords(text: str) -> str:
    """Return the text of a scenario for a report, with its passwords masked."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):
        return text
    groups = data.get("groups")
    known = (
        [each for each in groups if isinstance(each, dict) and "password" in each] if isinstance(groups, list) else []
    )
    for group in known:
        group["password"] = HIDDEN
    return dumps(data) if known else text


def with_users(scenario: Scenario, user_name: str | None, password: str | None, users: str | None) -> Scenario:
    """The scenario with credentials for all groups that have none of their own; nothing given: as it is.

    Raises:
        ScenarioError: they mean nothing, or exclude each other.
    """
    if user_name is None and password is None and users is None:
        return scenario
    if users is not None and (user_name is not None or password is not None):
        raise ScenarioError(["--users excludes --user and --password"])
    keys = {"user_name": user_name, "password": password, "users": users}
    groups = [
        group.model_copy(update=keys) if group.user_name is group.password is group.users is None else group
        for group in scenario.groups
    ]
    changed = scenario.model_copy(update={"groups": groups})
    try:
        Plan(changed, "0" * 8)
    except PlanError as error:
        raise ScenarioError([str(error)]) from error
    return changed


def builtin() -> list[tuple[str, str]]:
    """Name and description of every built-in scenario, by name.

    Raises:
        ScenarioError: one cannot be read, or there are none: the install is broken.
    """
    found = []
    for path in _builtin_paths():
        data = _parse(str(path), _text(path))
        found.append((path.stem, str(data.get("description", ""))))
    return found


def folder() -> Path:
    return INSTALLED if INSTALLED.is_dir() else SOURCE


def _builtin_paths() -> list[Path]:
    paths = sorted(folder().glob(f"*{SUFFIX}"))
    if not paths:
        raise ScenarioError([f"{folder()}: the built-in scenarios are missing; install Canopy again"])
    return paths


# --- reading ------------------------------------------------------------------------------------------------------


def _read(name_or_path: str) -> tuple[str, str]:
    """Return the name of the source in messages, and its text."""
    if _is_file(name_or_path):
        return name_or_path, _text(Path(name_or_path))
    for path in _builtin_paths():
        if path.stem == name_or_path:
            return name_or_path, _text(path)
    raise ScenarioError([_unknown(name_or_path)])


def _is_file(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith(SUFFIX)


def _unknown(name: str) -> str:
    names = [path.stem for path in _builtin_paths()]
    if name and Path(name).is_file():
        return f"{name}: no such built-in scenario; for the file of that name, write ./{name}"
    return f"{name or 'an empty name'}: no such scenario; {suggest(name, names)}; for a file, give its path"


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = f"{path}: cannot be read: {error.strerror or error}"
        names = [known.stem for known in _builtin_paths()]
        if isinstance(error, FileNotFoundError) and path.stem in names:
            reason += f"; the built-in scenario is called {path.stem}"
        raise ScenarioError([reason]) from error
    except ValueError as error:
        # Not UTF-8, or a path with a NUL in it.
        place = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise ScenarioError([f"{path}: not a file of UTF-8 text{place}"]) from error


def _parse(source: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ScenarioError([f"{source}: not valid TOML: {error}"]) from error
    except RecursionError as error:
        raise ScenarioError([f"{source}: not a scenario: nested too deeply"]) from error


# --- changing and checking ----------------------------------------------------------------------------------------


def _changed(data: dict[str, Any], overrides: Sequence[str], scale: float | None) -> list[Override]:
    """Put the overrides into the data.

    Raises:
        ScenarioError: with every override that names nothing.
    """
    changes: list[Override] = []
    problems: list[str] = []
    for text in overrides:
        try:
            changes.append(flags.apply(data, text, changes))
        except OverrideError as error:
            problems.append(f"--set {text}: {error}")
    if problems:
        raise ScenarioError(problems)
    if scale is not None:
        data["scale"] = scale
        changes.append(Override(f"--scale {scale:g}", ("scale",)))
    return changes


def _anchor(data: dict[str, Any], folder: Path) -> bool:
    """Make the names of files absolute, so that the report's copy can be played; return True if one was relative."""
    moved = False
    groups = data.get("groups")
    for table, key in _file_names(groups):
        if isinstance(table.get(key), str):
            absolute = str((folder / table[key]).absolute())
            moved = moved or absolute != table[key]
            table[key] = absolute
    return moved


def _file_names(groups: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every table that may name a file, with the key."""
    for group in groups if isinstance(groups, list) else ():
        if not isinstance(group, dict):
            continue
        yield group, "users"
        published = group.get("publish")
        for publish in published if isinstance(published, list) else ():
            payload = publish.get("payload") if isinstance(publish, dict) else None
            if isinstance(payload, dict):
                yield payload, "file"
                yield payload, "lines"


def _playable(source: str, data: dict[str, Any], changes: Sequence[Override]) -> Scenario:
    scenario = _validated(source, data, changes)
    try:
        Plan(scenario, "0" * 8)
        _try_templates(scenario)
    except PlanError as error:
        raise ScenarioError([f"{_with(source, changes)}: {error}"]) from error
    return scenario


def _validated(source: str, data: dict[str, Any], changes: Sequence[Override]) -> Scenario:
    def origin(place: Place) -> str:
        """Return the flag that last set the place or its parent; else the source, with the flags that touch it."""
        for change in reversed(changes):
            if place[: len(change.steps)] == change.steps:
                return change.flag
        inside = [change for change in changes if change.steps[: len(place)] == place]
        return _with(source, inside)

    try:
        # As JSON, since its strict mode takes a list for a pair of sizes, and still no text for a number.
        return Scenario.model_validate_json(json.dumps(data), strict=True)
    except TypeError:
        dated = "there is a date or a time, and no key takes one: write it in quotes"
        raise ScenarioError([f"{_with(source, changes)}: {dated}"]) from None
    except ValidationError as error:
        raise ScenarioError(complaints(error, data, origin)) from error


def _try_templates(scenario: Scenario) -> None:
    """Hold the templates of payloads against the patterns there are.

    Raises:
        PlanError: one has a pattern that means nothing.
    """
    for group in scenario.groups:
        for number, publish in enumerate(group.publish):
            try:
                Pattern(publish.payload.template or "")
            except ValueError as error:
                key = f"groups.{group.name}.publish.{number}.payload.template"
                raise PlanError(f"{key}: {error}; a percent sign is written %%") from error


def _with(source: str, changes: Sequence[Override]) -> str:
    return f"{source} with {' '.join(change.flag for change in changes)}" if changes else source
