"""What a release publishes: the tag, and the page on the index."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from canopy_mqtt.version import __version__
from tests.support.daemon import environment
from tools import release

ROOT = Path(__file__).resolve().parents[2]
# Of each extra of pyproject.toml. A module that is None in sys.modules cannot be imported.
EXTRAS = (
    "asyncpg",
    "deltalake",
    "fastavro",
    "google.protobuf",
    "opentelemetry",
    "pandas",
    "psutil",
    "pyarrow",
    "pyiceberg",
    "pyspark",
)
COLLECT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split()))
import pytest
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of version 1.2.3, whose changelog has a date for it."""
    (tmp_path / "broker/canopy_mqtt").mkdir(parents=True)
    (tmp_path / "broker/canopy_mqtt/version.py").write_text('__version__: Final = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.3 - 2026-12-01\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("tree")
def test_a_tag_of_this_version_may_publish() -> None:
    release.check_tag("v1.2.3")


@pytest.mark.parametrize("tag", ["v1.2.4", "1.2.3", "v1.2.3rc1"])
@pytest.mark.usefixtures("tree")
def test_another_tag_may_not(tag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        release.check_tag(tag)
    assert ended.value.code == 1
    assert f"the tag {tag} is not v1.2.3" in capsys.readouterr().err


def test_nor_one_whose_changes_have_no_date(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.30 - 2026-12-01\n")
    with pytest.raises(SystemExit):
        release.check_tag("v1.2.3")
    assert 'no line "## 1.2.3 - YEAR-MONTH-DAY"' in capsys.readouterr().err


def test_the_version_is_read_without_an_installation() -> None:
    assert release.version() == __version__


def test_the_page_on_the_index_has_no_links_into_the_repository(tmp_path: Path) -> None:
    """Their text stays, and links elsewhere too."""
    probe = "import setuptools; setuptools.setup = lambda **given: print(given['long_description']); import setup"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {probe}"]
    shown = subprocess.run(
        command, cwd=tmp_path, env={"CANOPY_PURE": "1"}, capture_output=True, text=True, check=True
    ).stdout
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert [target for target in targets if not target.startswith(("https:", "#"))] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert targets == [target for target in re.findall(r"\]\(([^)]*)\)", readme) if target.startswith(("https:", "#"))]
    (heading,) = re.findall(r"^# .+$", readme, re.MULTILINE)
    assert shown.startswith(heading)


def test_what_pytest_says_of_its_tests_is_shown() -> None:
    told = "....\n1148 passed in 266.74s (0:04:26)\ncanopy: left out: 82 properties: make test-long\n"
    assert release.verdict(told) == "1148 passed in 266.74s (0:04:26)"


def test_the_tests_of_every_python_and_of_the_lowest_versions_need_no_extra() -> None:
    """`.ci/pythons`, `make quick` and `tools.release try` install none."""
    script = (ROOT / ".ci/pythons").read_text(encoding="utf-8")
    paths = re.findall(r"\btests/[\w./]+", script.partition("pytest")[2])
    assert "tests/core" in paths
    done = subprocess.run(
        [sys.executable, "-P", "-c", COLLECT, " ".join(EXTRAS), *paths],
        cwd=ROOT,
        env=environment(PYTHONPATH=os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
