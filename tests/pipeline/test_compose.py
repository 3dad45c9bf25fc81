"""config/cluster/compose.yaml, which no test can run: what it names is there, and its commands are Canopy's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from canopy_mqtt.settings import defaults
from canopy_pipeline.cli import app

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "config" / "cluster"
TEXT = (FOLDER / "compose.yaml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = FILE["services"]


def test_services_volumes_and_files_are_there() -> None:
    named = {volume.partition(":")[0] for each in SERVICES.values() for volume in each.get("volumes", ())}
    assert named == set(FILE["volumes"])
    assert {name for each in SERVICES.values() for name in each.get("depends_on", ())} <= set(SERVICES)
    for each in SERVICES.values():
        build = each.get("build")
        if build is not None:
            context, file = (build, "Dockerfile") if isinstance(build, str) else (build["context"], build["dockerfile"])
            assert (FOLDER / context / file).is_file()
        else:
            assert each["image"]


def test_no_password_stands_in_it_and_nothing_is_open_to_the_network() -> None:
    secrets = re.findall(r"(?:PASSWORD|SECRET_ACCESS_KEY): (\S+)", TEXT)
    assert len(secrets) == 3
    assert all(each.startswith("${MINIO_ROOT_PASSWORD:?") for each in secrets)
    ports = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert ports == ["127.0.0.1:1883:1883"]


def test_the_broker_takes_its_settings_and_the_job_its_options() -> None:
    known = defaults()
    given = [each.removeprefix("--set=") for each in SERVICES["broker"]["command"] if each.startswith("--set=")]
    assert len(given) == 2
    assert {each.partition("=")[0] for each in given} <= known.keys()
    said = " ".join(line.lstrip("# ").rstrip("\\") for line in TEXT.split("run --rm jobs ")[1].splitlines()[:5])
    words = shlex.split(said.split(" Nothing ")[0])
    assert words[:3] == ["canopy", "pipeline", "rollup"]
    rollup = get_command(app).commands["rollup"]  # type: ignore[attr-defined]
    options = {option for parameter in rollup.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert "s3a://canopy/record" in words
