"""The contract in pyproject.toml refuses each import that docs/architecture.md forbids.

Each forbidden import is added to the graph of all imports, and import-linter's own check has to report it. The page
says which imports are forbidden, so that the tests find a room that the contract forgets.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import grimp
import pytest
from importlinter.contracts.layers import LayersContract

from tests.support.runs import for_each

ROOT = Path(__file__).resolve().parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
LAYERS: Final = {room: int(layer) for layer, room in re.findall(r"^\| (\d+) \| `([\w.]+)` \|", PAGE, re.MULTILINE)}
"""The layer of each room, by the page; 1 is the highest."""

PUBLIC: Final = "canopy_mqtt"
"""The public names. A module that imports one may get any room up to the assembly."""

MAIN: Final = "canopy_mqtt.__main__"

USED: Final = {
    "canopy_load": (
        "canopy_mqtt.client", "canopy_mqtt.core", "canopy_mqtt.pages", "canopy_mqtt.record", "canopy_mqtt.version",
        "canopy_mqtt.words",
    ),
    "canopy_load.brokers": (),
    "canopy_pipeline": (
        "canopy_mqtt.client", "canopy_mqtt.core.codec", "canopy_mqtt.delta", "canopy_mqtt.pages",
        "canopy_mqtt.record.files", "canopy_mqtt.record.schema", "canopy_mqtt.words",
    ),
}  # fmt: skip
"""The rooms that a package uses besides itself. `canopy_load.brokers` uses not even the rest of `canopy_load`."""

PURE: Final = {
    "canopy_mqtt.core": {
        "__future__", "collections", "dataclasses", "fnmatch", "functools", "heapq", "ipaddress", "librt",
        "mypy_extensions", "re", "secrets", "typing",
    },
    "canopy_mqtt.client.machine": {"__future__", "collections", "math", "typing"},
    "canopy_mqtt.client.websocket": {"__future__", "base64", "hashlib", "os", "typing"},
    "canopy_mqtt.links.filters": {"__future__", "collections", "itertools", "mypy_extensions", "typing"},
}  # fmt: skip
"""The modules of others that pure code imports: no event loop, no clock, no socket, no thread."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """All imports, also those in functions and those that only types need."""
    return grimp.build_graph(
        *LINTER["root_packages"],
        include_external_packages=LINTER["include_external_packages"],
        exclude_type_checking_imports=LINTER["exclude_type_checking_imports"],
        cache_dir=None,
    )


def refused(graph: grimp.ImportGraph, imports: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs of rooms that the contract reports, as (importer, imported), with these imports added."""
    (stated,) = [each for each in LINTER["contracts"] if each["id"] == "one-tree"]
    assert "ignore_imports" not in stated
    options: dict[str, Any] = {name: value for name, value in stated.items() if name not in ("id", "name", "type")}
    contract = LayersContract("one-tree", {"root_packages": LINTER["root_packages"]}, options)
    tried = deepcopy(graph)
    for importer, imported in imports:
        tried.add_import(importer=importer, imported=imported)
    check = contract.check(tried, verbose=False)
    return {(each["importer"], each["imported"]) for each in check.metadata["invalid_dependencies"]}


def inside(graph: grimp.ImportGraph, room: str) -> str:
    """A module deep in a room."""
    return max({room, *graph.find_descendants(room)}, key=lambda name: (name.count("."), name))


def misused(graph: grimp.ImportGraph, package: str) -> set[str]:
    """What a package imports of this project, besides itself and what it may use."""
    allowed = (package, *USED[package])
    modules = {package, *graph.find_descendants(package)}
    found = {imported for each in modules for imported in graph.find_modules_directly_imported_by(each)}
    ours = {each for each in found if each.partition(".")[0] in LINTER["root_packages"]}
    return {each for each in ours if not any(f"{each}.".startswith(f"{name}.") for name in allowed)}


def test_the_page_has_a_layer_for_every_room(graph: grimp.ImportGraph) -> None:
    rooms = {*LINTER["root_packages"], *graph.find_children("canopy_mqtt")} - {PUBLIC, MAIN}
    assert sorted(LAYERS) == sorted(rooms)


def test_the_contract_is_kept(graph: grimp.ImportGraph) -> None:
    assert refused(graph, []) == set()


@for_each("room", LAYERS)
def test_a_room_cannot_import_one_of_its_own_layer_or_above(room: str, graph: grimp.ImportGraph) -> None:
    forbidden = {other for other, layer in LAYERS.items() if layer <= LAYERS[room] and other != room}
    tried = [(inside(graph, room), inside(graph, other)) for other in forbidden]
    assert {other for importer, other in refused(graph, tried) if importer == room} == forbidden


@for_each("imported", [PUBLIC, MAIN])
@for_each("room", LAYERS)
def test_only_what_stands_above_a_broker_imports_a_broker(room: str, imported: str, graph: grimp.ImportGraph) -> None:
    """The public names lead to every room up to the assembly, and `python -m canopy_mqtt` to the commands."""
    highest = LAYERS["canopy_mqtt.assembly"] + 1 if imported == PUBLIC else LAYERS["canopy_mqtt.command"]
    found = refused(graph, [(inside(graph, room), imported)])
    assert bool(found) is (LAYERS[room] >= highest)
    assert {importer for importer, _ in found} <= {room}


@for_each("package", USED)
def test_a_package_uses_only_some_rooms(package: str, graph: grimp.ImportGraph) -> None:
    assert misused(graph, package) == set()
    forbidden = {
        module
        for module in {
            *graph.find_children("canopy_mqtt"),
            PUBLIC,
            "canopy_mqtt.core.routing.router",
            "canopy_mqtt.record.tap",
            "canopy_load.errors",
        }
        if not any(f"{module}.".startswith(f"{name}.") for name in (package, *USED[package]))
    }
    tried = deepcopy(graph)
    for each in forbidden:
        tried.add_import(importer=inside(graph, package), imported=each)
    assert misused(tried, package) == forbidden


@for_each("package", PURE)
def test_pure_code_imports_nothing_else_of_others(package: str, graph: grimp.ImportGraph) -> None:
    modules = {package, *graph.find_descendants(package)}
    found = {imported for each in modules for imported in graph.find_modules_directly_imported_by(each)}
    assert {each for each in found if each.partition(".")[0] not in LINTER["root_packages"]} == PURE[package]
