"""docs/tables.md is true: what it shows runs, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from canopy_pipeline.tables.mapping import AvroModel, JsonModel, ProtobufModel
from canopy_pipeline.tables.payloads.bad_payload import REASONS
from canopy_pipeline.tables.payloads.sparkplug import COLUMNS
from canopy_pipeline.tables.plans import DEAD, KEPT, TYPES, Limits
from tests.pipeline.tables.fleet import MAPPING, ROOT, SAMPLE, story

PAGE = (ROOT / "docs/tables.md").read_text()
NAMED = set(re.findall(r"`([^`\s]+)`", PAGE))


def blocks() -> list[str]:
    return re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_what_it_shows_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    story().write(tmp_path / "canopy-record")
    (tmp_path / "config").symlink_to(ROOT / "config")
    [command] = [line for line in blocks()[0].splitlines() if "pipeline tables" in line]
    done = CliRunner().invoke(app, command.split()[2:])
    assert done.exit_code == 0, done.output
    [code] = [each for each in blocks() if "import duckdb" in each]
    exec(code, {})
    printed = capsys.readouterr().out
    assert "231.5" in printed
    assert "watts: a text is not float64" in printed


def test_it_names_what_there_is() -> None:
    [example] = [each for each in blocks() if each.startswith("[tables.power]")]
    assert example.strip() in MAPPING
    assert {*REASONS, *TYPES, *KEPT} <= NAMED
    assert {each.name for each in COLUMNS} | set(DEAD.names) <= NAMED
    fields = {field.alias or name for model in (JsonModel, AvroModel, ProtobufModel)
              for name, field in model.model_fields.items()}  # fmt: skip
    assert fields <= NAMED
    help_ = CliRunner().invoke(app, ["tables", "--help"], terminal_width=200).output
    options = set(re.findall(r"--[a-z][a-z-]+", help_)) - {"--help"}
    assert options
    assert options == set(re.findall(r"`(--[a-z-]+)\b", PAGE))
    rows = dict(re.findall(r"\n\| `(\w+)` \| ([\d,]+) \|", PAGE))
    assert {name: int(value.replace(",", "")) for name, value in rows.items()} == Limits().model_dump()


def test_the_descriptors_are_those_of_the_proto_file() -> None:
    from google.protobuf import descriptor_pb2

    [file] = descriptor_pb2.FileDescriptorSet.FromString((SAMPLE / "pump.desc").read_bytes()).file
    text = (SAMPLE / "pump.proto").read_text()
    told = re.findall(r"(\w+) = (\d+);", text.partition("message Pump")[2])
    assert [(field.name, str(field.number)) for field in file.message_type[0].field] == told
