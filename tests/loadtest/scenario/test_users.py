"""Files of users: what is read, what is refused, and that no message repeats a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_load.scenario import contents, library, users
from canopy_load.scenario.library import ScenarioError, with_users, without_passwords
from canopy_load.scenario.plan import Plan, PlanError
from tests.loadtest.playing import group, scenario
from tests.support.runs import for_each

TEXT = """name = "a"
stages = [{ name = "go", seconds = 1 }]
groups = [{ name = "g", clients = 3, users = "users.csv" }]
"""


def test_a_heading_quotes_empty_lines_and_a_missing_password(tmp_path: Path) -> None:
    file = tmp_path / "users.csv"
    file.write_text('\ufeffUsername,Password\n\n"a,b","c""d"\nnobody\n', encoding="utf-8")
    assert users.read(str(file)) == [("a,b", 'c"d'), ("nobody", None)]


@for_each(
    ("text", "why"),
    [
        (b"", "0 users"),
        (b"user,password\n", "0 users"),
        (b"a,topsecret,b\n", "line 1: write USER_NAME,PASSWORD"),
        (b"ok,x\n,topsecret\n", "line 2: write USER_NAME,PASSWORD"),
        (b"a,\xfftopsecret\n", "not UTF-8"),
    ],
)
def test_what_is_no_file_of_users(text: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "users.csv"
    file.write_bytes(text)
    with pytest.raises(ValueError, match=why) as caught:
        users.read(str(file))
    assert "topsecret" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users.csv"
    file.write_text("a,b\nc,d\n")
    monkeypatch.setattr(users, "MAX_ROWS", 1)
    with pytest.raises(ValueError, match="2 users, from 1 to 1 are taken"):
        users.read(str(file))
    monkeypatch.setattr(contents, "MAX_BYTES", 7)
    with pytest.raises(ValueError, match="8 bytes, at most 7"):
        users.read(str(file))


def test_a_file_is_looked_for_beside_its_scenario_and_the_report_plays_it_again(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("u0,p0\nu1,p1\n")
    (tmp_path / "one.toml").write_text(TEXT)
    found, text = library.load(str(tmp_path / "one.toml"))
    plan = Plan(found, "0" * 8)
    assert [plan.credentials(0, number) for number in range(3)] == [("u0", "p0"), ("u1", "p1"), ("u0", "p0")]
    elsewhere = tmp_path / "report"
    elsewhere.mkdir()
    (elsewhere / "scenario.toml").write_text(text)
    assert library.load(str(elsewhere / "scenario.toml"))[0] == found


def test_a_missing_file_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(TEXT)
    with pytest.raises(ScenarioError, match=r"groups.g.users: .*users.csv: cannot be read"):
        library.load(str(tmp_path / "one.toml"))


def test_the_command_lines_credentials_are_for_groups_without_their_own() -> None:
    found = with_users(scenario(group("one", user_name="own"), group("two")), "u-%c", "p-%c", None)
    plan = Plan(found, "0" * 8)
    assert plan.credentials(0, 0) == ("own", None)
    assert plan.credentials(1, 0) == ("u-0", "p-0")
    assert plan.any_credentials() == ("own", None)
    with pytest.raises(ScenarioError, match="excludes"):
        with_users(found, "u", None, "file.csv")


def test_a_wrong_pattern_in_a_password_is_not_repeated() -> None:
    with pytest.raises(PlanError, match=r"password: unknown pattern; a percent sign is written %%") as caught:
        Plan(scenario(group("one", user_name="u", password="top%secret")), "0" * 8)
    assert "secret" not in str(caught.value)


def test_a_report_holds_no_password() -> None:
    text = without_passwords(TEXT.replace('users = "users.csv"', 'user_name = "u", password = "topsecret"'))
    assert "topsecret" not in text
    assert 'user_name = "u"' in text
    assert without_passwords(TEXT) == TEXT
