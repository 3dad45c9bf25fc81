"""Reads the settings that the arguments of `serve` and `check-config` name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from canopy_mqtt.terminal import MISUSED, fail

Result = TypeVar("Result")


def one_of(file: Path | None, config: Path | None) -> Path | None:
    if file is not None and config is not None:
        fail(f"{file} and --config {config}: one of them", MISUSED)
    return config if file is None else file


def load(config: Path | None, sets: Sequence[str], listen: Sequence[str]) -> Settings:
    return or_fail(lambda: load_settings(config, sets, listen))


def or_fail(read: Callable[[], Result]) -> Result:
    try:
        return read()
    except SettingsError as error:
        fail(str(error), MISUSED)
