"""`[store]`: which databases there can be, what goes together, and that passwords stay hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import changed, load_settings
from tests.support.runs import for_each

SECRET = "correct-horse"


@for_each(
    "url",
    [
        "postgresql://db/canopy",
        f"postgres://me:{SECRET}@db:5433/canopy?sslmode=verify-full",
        "postgresql://me@db1,db2:5433/canopy?target_session_attrs=primary",
        "postgresql:///canopy?host=/run/postgresql",
    ],
)
def test_urls_of_databases(url: str) -> None:
    store = load_settings(environ={}, sets=[f"store.url={json.dumps(url)}"]).store
    assert (store.url, store.kept, store.path) == (url, True, "")


@for_each(
    ("url", "wanted"),
    [
        (f"mysql://me:{SECRET}@db/canopy", "postgresql://"),
        (f"postgresql:me:{SECRET}@db/canopy", "postgresql://"),
        (f"postgresql://me:{SECRET} @db/canopy", "postgresql://"),
        (f"postgresql://me:{SECRET}@[::1/canopy", "postgresql://"),
        (f"postgresql://me:{SECRET}@db/canopy#x", "postgresql://"),
        (f"postgresql://me:a/{SECRET}@db/canopy", "what is special in user and password as %XX"),
        (f"postgresql://me:a?{SECRET}@db/canopy", "what is special in user and password as %XX"),
        (f"postgresql://db/canopy?password={SECRET}", "user and password before the host"),
    ],
)
def test_what_is_none_is_told_without_what_was_given(url: str, wanted: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(environ={}, sets=[f"store.url={json.dumps(url)}"])
    assert wanted in str(error.value)
    assert SECRET not in str(error.value)


def test_a_folder_and_a_database_are_one_too_many() -> None:
    with pytest.raises(SettingsError, match="only without path") as error:
        load_settings(environ={}, sets=['store.path="/s"', f'store.url="postgresql://me:{SECRET}@db/canopy"'])
    assert SECRET not in str(error.value)


@for_each("name", ["", "Canopy", "1st", "a-b", 'a"b', "a" * 64, "pg_canopy"])
def test_names_that_no_schema_has(name: str) -> None:
    with pytest.raises(SettingsError, match="small letters, digits and _"):
        load_settings(environ={}, sets=[f"store.name={json.dumps(name)}"])


def test_passwords_stay_hidden() -> None:
    settings = load_settings(environ={}, sets=[f'store.url="postgresql://me:{SECRET}@db/canopy"'])
    value, _ = changed(settings)["store.url"]
    for text in (repr(settings), str(settings), repr(settings.store), show(value), show(settings.store)):
        assert SECRET not in text
    assert show(value) == '"postgresql://***@db/canopy"'


def test_without_a_store_nothing_is_kept() -> None:
    assert not Settings().store.kept
    assert Settings.model_validate({"store": {"path": "/s"}}).store.kept


@for_each("command", ["export", "salvage"])
def test_commands_are_about_folders(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    further = ["new"] if command == "salvage" else []
    result = CliRunner().invoke(app, ["store", command, f"postgresql://me:{SECRET}@db/canopy", *further])
    assert result.exit_code == 2
    assert "this command is about a folder (store.path)" in result.output
    assert SECRET not in result.output
    assert list(tmp_path.iterdir()) == []


def test_client_identifiers_that_a_database_cannot_keep() -> None:
    """The message is about two settings, and about `listen` only where that was given."""
    sets = ["store.url=postgresql://db/canopy", "limits.max_client_id_length=4000"]
    for listen in ([], ["mqtt://127.0.0.1:1883"]):
        with pytest.raises(SettingsError) as caught:
            load_settings(environ={}, sets=sets, listen=listen)
        (problem,) = caught.value.problems
        assert "limits.max_client_id_length: found 4000; allowed: 23 to 2048 with store.url" in problem
