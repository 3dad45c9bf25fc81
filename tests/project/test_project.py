"""What surrounds the code: the workflows call what exists, and the source distribution has what the tests need."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.support.commands import options
from tests.support.runs import for_each
from tests.support.tools import load

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = {
    found.group(1)
    for each in PROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
}


def parsed(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in parsed(file)["jobs"].values() for step in job["steps"]]


def test_extras_are_named_as_they_can_be_installed() -> None:
    """From a clone: on a package index the name is nobody's. In messages and on pages, and of extras that there are."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for package in ("broker", "loadtest", "pipeline"):
        files += sorted((ROOT / package).rglob("*.py"))
    found = 0
    command = re.compile(r"pip install ['\"]([^'\"\[\s]+)\[([^\]]+)\]")
    for file in files:
        for target, extras in command.findall(file.read_text(encoding="utf-8")):
            if "canopy" not in target and not target.startswith("."):
                continue
            found += 1
            assert target in (".", "./canopy-source"), f"{file}: {target}[{extras}]"
            assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"]), file
    assert found > 15
    for file in [*files, *(ROOT / "config").glob("*.service"), *(ROOT / "config").glob("*.toml")]:
        assert "pip install canopy" not in file.read_text(encoding="utf-8"), file


def test_the_figures_of_the_readme_stand_in_the_benchmarks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pairs = re.findall(r"^\| .+ \| ([\d.,]+) \| ([\d.,]+) \|$", text, re.MULTILINE)
    rows = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert len(pairs) == 8
    for ours, theirs in pairs:
        row = rf"^\| .+ \| {re.escape(ours)} \| (?:[\d,]+ \| )?{re.escape(theirs)} \|"
        assert re.search(row, rows, re.MULTILINE), ours


@for_each("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_calls_what_exists(file: Path) -> None:
    """Scripts and make targets; each action is one commit, each job has an end and no more rights than it says."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    content = parsed(file)
    assert content["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 120 for job in content["jobs"].values())
    for step in steps(file):
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])
            # Else the job leaves its token in the clone, for all that runs there.
            assert not step["uses"].startswith("actions/checkout") or step["with"]["persist-credentials"] is False
        for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
            assert target in targets
        for script in re.findall(r"(?<!\w)\.ci/\w+", step.get("run", "")):
            assert os.access(ROOT / script, os.R_OK)
        for test in re.findall(r"(?<!\S)tests/[\w/.]+", step.get("run", "")):
            assert (ROOT / test).exists()


def test_every_python_that_is_promised_is_tested() -> None:
    matrix = parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["pythons"]["strategy"]["matrix"]
    assert set(matrix["python"]) == PYTHONS
    assert {
        f"3.{minor}"
        for minor in re.findall(r"for minor in \$\{1:-([\d ]+)\}", (ROOT / ".ci/pythons").read_text())[0].split()
    } == (PYTHONS)


@for_each("file", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda file: file.name)
def test_an_issue_template_can_be_read(file: Path) -> None:
    assert parsed(file)


def test_the_demo_calls_commands_that_exist(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    for words in load("demo").jobs(tmp_path):
        assert Path(options(*words)["output"]).is_relative_to(tmp_path)


def test_pre_commit_runs_what_the_lint_runs() -> None:
    hooks = parsed(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in hooks:
        tool = re.findall(r"\.venv/bin/([\w-]+)", hook["entry"])[0]
        assert f"/bin/{tool}" in lint


def test_the_changelog_is_kept() -> None:
    """Keep a Changelog: what is not released first, then versions with their dates, the newest first."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0].strip("[]") == "Unreleased"
    assert all(re.match(r"\[?\d+\.\d+\.\d+\]? - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
