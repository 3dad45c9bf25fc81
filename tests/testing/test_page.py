"""`docs/testing.md` is true: its tests run in a process of their own, and it names each fixture and each fault."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from canopy_mqtt.testing import RunningBroker, plugin

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
TESTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONFIGURATION = "[pytest]\n"
"""pytest as it comes: what the tests need besides, the page has to say."""


@pytest.mark.long
def test_its_tests_pass(tmp_path: Path) -> None:
    """As in a project that has installed the package: found by pytest, with no conftest.py."""
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    for number, text in enumerate(TESTS):
        (tmp_path / f"test_{number}.py").write_text(text)
    announced = any(each.module == "canopy_mqtt.testing.plugin" for each in entry_points(group="pytest11"))
    given = [] if announced else ["-p", "canopy_mqtt.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-c", str(tmp_path / "pytest.ini"), *given, str(tmp_path)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"{len(TESTS)} passed" in done.stdout, done.stdout + done.stderr


def test_it_names_every_fixture() -> None:
    fixtures = {name for name in vars(plugin) if name.startswith("canopy_")}
    assert set(re.findall(r"^\| `(canopy_\w+)` \|", PAGE, re.MULTILINE)) == fixtures


def test_it_names_everything_that_a_broker_can_be_asked() -> None:
    """But what `Fault` and `aio` use of it."""
    inner = {"begin_wait", "check_connected", "check_subscribed", "coroutine", "end_fault", "record", "state_of"}
    public = {name for name in vars(RunningBroker) if not name.startswith("_")} - inner - {"wait_until", "close", "url"}
    assert {name for name in public if not re.search(rf"\b{name}\b", PAGE)} == set()


def test_defaults_in_the_tables_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)\(([^)]*)\)`", PAGE, re.MULTILINE)
    assert len(rows) > 10
    for name, arguments in rows:
        parameters = inspect.signature(getattr(RunningBroker, name)).parameters
        for argument, value in re.findall(r"(\w+)=([^,]*)", arguments):
            assert argument in parameters, f"{name}({argument}=)"
            if value.isdigit():
                assert parameters[argument].default == int(value), f"{name}({argument}={value})"
