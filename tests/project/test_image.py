"""The Dockerfile, which no test can build: what it copies is there, nobody is root, and its commands are Canopy's."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from canopy_mqtt.settings.loader import load_settings
from tests.support.commands import options

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LAST = TEXT.rpartition("\nFROM ")[2]


def instruction(name: str) -> str:
    """What the image's only instruction of this name says."""
    (found,) = re.findall(rf"^{name} (.+)$", LAST, re.MULTILINE)
    return str(found)


def words(text: str) -> list[str]:
    """A command in its exec form."""
    found: list[str] = json.loads(text)
    return found


def test_what_the_image_copies_is_there_and_let_through() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    assert copied
    assert [source for source in sorted(copied) if not (ROOT / source).exists()] == []
    assert {source.partition("/")[0] for source in copied} <= let_through


def test_every_package_goes_into_the_wheel() -> None:
    """The folders that hold them; what lies in them is found by the build."""
    folders = re.findall(r'"(\w+)":', (ROOT / "setup.py").read_text().partition("\nPACKAGES = ")[2].partition("\n")[0])
    assert len(folders) == 3
    for folder in folders:
        assert f"\nCOPY {folder} {folder}\n" in TEXT


def test_its_extras_are_canopys() -> None:
    (default,) = re.findall(r"^ARG EXTRAS=(.+)$", TEXT, re.MULTILINE)
    (example,) = re.findall(r'^#   docker build .*--build-arg EXTRAS="(.+?)"', TEXT, re.MULTILINE)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {default, *example.split()} <= set(known)
    assert "$EXTRAS)" in TEXT


def test_every_architecture_has_the_same_lines() -> None:
    commands = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    assert not re.search(r"amd64|arm64|x86_64|aarch64|--platform", commands)


def test_nobody_is_root_and_the_system_can_tell() -> None:
    uid = instruction("USER")
    assert int(uid) > 0
    assert f"useradd --system --uid {uid} " in LAST


def test_its_command_listens_for_others_and_its_check_is_one() -> None:
    assert words(instruction("ENTRYPOINT")) == ["canopy"]
    given = options("serve", *words(instruction("CMD"))[1:])
    assert words(instruction("CMD"))[0] == "serve"
    assert load_settings(listen=given["listen"], environ={}).listeners[0].endpoint.host == "0.0.0.0"
    check = words(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert check[0] == "canopy"
    assert options(*check[1:])["timeout"] == 5.0


def test_its_examples_are_commands() -> None:
    """What stands behind `canopy` in the comments is taken."""
    comments = re.sub(r" \\\n# +", " ", TEXT)
    examples = re.findall(r"^#   docker run .* canopy (serve .+)$", comments, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        options(*example.split())
