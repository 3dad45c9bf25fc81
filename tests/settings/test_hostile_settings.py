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
