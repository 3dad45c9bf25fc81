"""Settings of wrong types: one clear line for each, and never a traceback (`tests.fuzz.settings_target`)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from tests.fuzz import settings_target
from tests.support.runs import for_each


def test_every_setting_with_values_of_three_wrong_types(tmp_path: Path) -> None:
    assert settings_target.each_alone(tmp_path, ('"yes"', "{ a = 1 }", '[["a"]]')) > 750


def test_several_at_a_time() -> None:
    tries = itertools.count()
    assert settings_target.run(29, lambda: next(tries) == 100) == 100


@pytest.mark.long
def test_every_setting_with_every_value(tmp_path: Path) -> None:
    assert settings_target.each_alone(tmp_path) > 10_000


@for_each("value", ['"yes"', "1", "[]"])
def test_a_setting_that_may_be_of_two_types(tmp_path: Path, value: str) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(f'[[rule]]\naction = "publish"\nfilters = ["a"]\nretain = {value}\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    assert caught.value.problems == (f'{file}: line 4: rule[0].retain: found {value}; allowed: true, false or "any"',)


@for_each(
    ("text", "told"),
    [
        ("9" * 5_000, "a number in it has too many digits"),
        ("[" * 5_000 + "]" * 5_000, "lists are nested too deeply"),
        ("0x" + "f" * 4_000, "line 2: limits.max_connections: found 0xfff"),
    ],
    ids=["digits", "nested", "hexadecimal"],
)
def test_numbers_and_lists_that_python_does_not_take(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(f"[limits]\nmax_connections = {text}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}: ")
    assert told in problem
    for environ, sets in (({"CANOPY_LIMITS__MAX_CONNECTIONS": text}, ()), ({}, (f"limits.max_connections={text}",))):
        with pytest.raises(SettingsError) as caught:
            load_settings(environ=environ, sets=sets)
        (problem,) = caught.value.problems
        assert "limits.max_connections: found " in problem


def test_a_name_of_100_000_characters(tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(f"{'x' * 100_000} = 1\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    assert len(caught.value.problems[0]) < len(str(file)) + 200


@for_each(
    ("text", "name"),
    [
        ('[store]\npath = "a\\u0000"', "store.path"),
        ('[access]\nacl_file = "a\\u0000"', "access.acl_file"),
        ('[[authenticator]]\ntype = "password-file"\npath = "a\\u0000"', "authenticator[0].path"),
    ],
    ids=["store", "rules", "passwords"],
)
def test_a_file_whose_name_no_system_takes(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(f"{text}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    line = len(text.splitlines())
    assert caught.value.problems == (f'{file}: line {line}: {name}: found "a\\u0000"; allowed: text without U+0000',)
