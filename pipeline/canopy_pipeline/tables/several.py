"""The tables of several records in one output: those of a broker's workers, of nodes, of sites.

Owns: the name of each folder of the records, where its tables are, and the views over all of them. Each folder has
numbers, gaps and progress of its own: a row is identified by its record and its `seq`.

    OUT/record=w0/…                the tables of one folder, as those of a single record are in OUT
    OUT/views.duckdb.sql           over all folders, with the column `record`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.record.chosen_files import choose
from canopy_pipeline.record.manifests import manifests
from canopy_pipeline.record.parts import own, parts
from canopy_pipeline.record.segments import InputCheck
from canopy_pipeline.runtime.storage import storage
from canopy_pipeline.tables.output import IDENTITY, Sink
from canopy_pipeline.tables.sinks.postgresql import PostgresSink
from canopy_pipeline.tables.views import RECORD, schema_views, views


def folders(sources: Sequence[str], output: str) -> dict[str, str]:
    """Return the folders of some records by their names: the end of the path of a record, if there are several, and
    that of a worker's folder. One that is alone, and what a broker has recorded without workers, has an empty name.

    Raises:
        MisuseError: one is not there; two have one name; the tables in the output are those of a single record.
    """
    found: dict[str, str] = {}
    for source in sources:
        if not storage(None, source).exists():
            raise MisuseError(f"--input {source}: no such folder")
        root = source.rstrip("/")
        for folder in parts(None, source):
            words = [root] if len(sources) > 1 else []
            words += [folder] if folder.rstrip("/") != root else []
            name = "-".join(re.sub(r"[^A-Za-z0-9_.-]+", "-", each.rpartition("/")[2]) for each in words)
            if name in found:
                raise MisuseError(f"--input {source}: a second record of the name {name}; name its folder otherwise")
            found[name] = folder
    if "" not in found and storage(None, output).names("").count(IDENTITY):
        raise MisuseError(f"--output {output}: has the tables of a single record; give another folder for several")
    return found


def check_apart(sources: Sequence[str]) -> None:
    """Refuse records of which one holds events of another: their rows would be there twice.

    Raises:
        MisuseError: they do.
    """
    held, seen = InputCheck(), set[str]()
    for source in sources:
        for folder in parts(None, source):
            if folder in seen:
                raise MisuseError(f"--input {source}: {folder} is in another input already")
            seen.add(folder)
            place = storage(None, folder)
            files = own({file.place: file for file in place.files(".parquet")})
            chosen = choose(manifests(place), {each: file.size for each, file in files.items()}, place)
            for each in chosen.read:
                held.take(folder, files[each], chosen.about(each))


def place_of(output: str, name: str) -> str:
    """Return the output of a folder's tables."""
    return f"{output.rstrip('/')}/{RECORD}{name}" if name else output


def namespace_of(namespace: str, name: str) -> str:
    """Return the namespace, or schema, of a folder's tables."""
    return f"{namespace}_{re.sub('[^a-z0-9_]', '_', name.lower())}" if name else namespace


def unite(output: str, namespace: str, sinks: Mapping[str, Sink]) -> None:
    """Write the views over all folders, if there are several; as of the last commit of each. `namespace`: where those
    of PostgreSQL are made."""
    if not any(sinks):
        return
    place, schemas, versions = storage(None, output), dict[str, Any](), dict[str, dict[str, Any]]()
    for name, sink in sinks.items():
        schemas |= {table: schema for table, schema in sink.schemas.items() if table in sink.out.written()}
        for table, those in sink.versions().items():
            below = f"{RECORD}{name}/" if name else ""
            versions.setdefault(table, {}).update({f"{below}{folder}": version for folder, version in those.items()})
    if not versions:
        return
    sink = next(iter(sinks.values()))
    if isinstance(sink, PostgresSink):
        made = schema_views(schemas, namespace, versions)
    else:
        where = output.rstrip("/") if place.local is None else str(place.local)
        made = views(schemas, where, sink.delta, [*schemas], versions, record=True)
    for file, text in made.items():
        place.write(file, text.encode())
