"""Files that others may read or write, and should not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.secret_files import open_settings, open_to_others
from tests.support.runs import for_each

KEYS = ("service.key", "server.key", "more.key", "http.key", "l.key")
SECRETS = ("passwords", "scram", "jwt", "http", "token", "link", *KEYS)
AUTHORITIES = ("ca", "service.ca", "jwks.ca", "link.ca")
OTHERS = ("acl", "server.pem", "service.pem", "more.pem", "crl", "http.pem", "jwt.pem", "jwks", "l.pem", *AUTHORITIES)


@pytest.fixture
def named(tmp_path: Path) -> tuple[Settings, dict[str, Path]]:
    """Settings that name a file of each kind, and the files, each for its owner alone."""
    files = {name: tmp_path / name for name in (*SECRETS, *OTHERS)}
    for file in files.values():
        file.write_text("x" * 40)
        file.chmod(0o600)
    at: dict[str, Any] = {name: str(file) for name, file in files.items()}
    tls = {
        "certificate": at["server.pem"], "key": at["server.key"], "client_ca": at["ca"], "crl": at["crl"],
        "client_certificates": "required", "more": [{"certificate": at["more.pem"], "key": at["more.key"]}],
    }  # fmt: skip
    service = {
        "type": "http", "url": "https://a/", "cert_file": at["service.pem"], "key_file": at["service.key"],
        "ca_file": at["service.ca"],
    }  # fmt: skip
    keys = {"type": "jwt", "algorithms": ["RS256"], "audience": ["a"]}
    link = {"name": "l", "url": "mqtts://a", "username": "u", "password_file": at["link"]}
    made = Settings.model_validate({
        "listener": [{"url": "mqtts://127.0.0.1:1", "tls": tls}],
        "authenticator": [
            {"type": "password-file", "path": at["passwords"]}, {"type": "scram-sha-256", "path": at["scram"]}, service,
            {"type": "jwt", "name": "a", "algorithms": ["HS256"], "secret_file": at["jwt"], "audience": ["a"]},
            keys | {"name": "b", "key_file": at["jwt.pem"]}, keys | {"name": "c", "jwks": at["jwks"]},
            keys | {"name": "d", "jwks": "https://a/keys", "jwks_ca_file": at["jwks.ca"]},
        ],
        "access": {"acl_file": at["acl"]},
        "http": {
            "listen": ["https://127.0.0.1:2"], "password_file": at["http"], "operator_token_file": at["token"],
            "certificate": at["http.pem"], "key": at["http.key"],
        },
        "upstream": [link | {"cert_file": at["l.pem"], "key_file": at["l.key"], "ca_file": at["link.ca"]}],
    })  # fmt: skip
    return made, files


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o400])
def test_what_the_owner_and_a_group_may_do_is_their_business(
    named: tuple[Settings, dict[str, Path]], mode: int
) -> None:
    settings, files = named
    for file in files.values():
        file.chmod(mode)
    assert list(open_to_others(settings)) == []


def test_secrets_that_everybody_may_read(named: tuple[Settings, dict[str, Path]]) -> None:
    settings, files = named
    for file in files.values():
        file.chmod(0o644)
    found = "\n".join(open_to_others(settings))
    told = [name for name in SECRETS if f"{files[name]} holds secrets and may be read by everybody" in found]
    assert told == [*SECRETS]
    assert not any(f"{files[name]} " in found for name in OTHERS)


def test_whatever_everybody_may_write(named: tuple[Settings, dict[str, Path]]) -> None:
    settings, files = named
    for file in files.values():
        file.chmod(0o666)
    found = list(open_to_others(settings))
    assert len(found) == len(files)
    assert all("read and written by everybody on this machine (0666): chmod" in line for line in found)


@for_each(
    ("mode", "secret", "told"),
    [(0o644, False, 0), (0o644, True, 1), (0o600, True, 0), (0o640, True, 0), (0o666, False, 1), (0o622, True, 1)],
)
def test_the_file_of_the_settings(tmp_path: Path, mode: int, secret: bool, told: int) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text("")
    file.chmod(mode)
    link = {"name": "l", "url": "mqtts://a", "username": "u", "password": "hunter2" if secret else ""}
    found = list(open_settings(file, Settings.model_validate({"upstream": [link]})))
    assert len(found) == told
    assert "hunter2" not in "".join(found)


def test_a_file_that_is_not_there_is_not_told_of_here(tmp_path: Path) -> None:
    settings = Settings.model_validate({"access": {"acl_file": str(tmp_path / "no")}})
    assert list(open_to_others(settings)) == []


@for_each(("mode", "told"), [(0o755, 0), (0o775, 0), (0o1777, 0), (0o777, 1), (0o733, 1)])
def test_a_folder_in_which_everybody_may_replace_the_files(
    named: tuple[Settings, dict[str, Path]], mode: int, told: int
) -> None:
    settings, files = named
    folder = files["acl"].parent
    folder.chmod(mode)
    for found in (list(open_to_others(settings)), list(open_settings(folder / "canopy.toml", settings))):
        assert len(found) == told
        assert all(line.startswith(f"{folder} may be written by everybody") for line in found)


def test_the_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "acl").write_text("")
    (tmp_path / "acl").symlink_to(tmp_path / "open" / "acl")
    (found,) = open_to_others(Settings.model_validate({"access": {"acl_file": str(tmp_path / "acl")}}))
    assert found.startswith(f"{tmp_path / 'open'} may be written by everybody")


@for_each(
    ("mode", "user", "told"),
    [(0o700, 0, []), (0o1777, 0, []), (0o777, 0, ["may be written by everybody"]), (0o700, 1, ["another user"])],
)
def test_the_folder_of_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, user: int, told: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 5)
    monkeypatch.setattr(os, "stat", lambda _: SimpleNamespace(st_mode=0o40000 | mode, st_uid=5 + user))
    found = list(open_to_others(Settings.model_validate({"recorder": {"directory": str(tmp_path)}})))
    assert len(found) == len(told)
    assert all(each in line for each, line in zip(told, found, strict=True))
