"""Finds files with secrets that other users may read, and files that other users may write.

They are reported, and used all the same: at the start, by `canopy check-config`, and by `canopy ctl` for its token.
Other users are those who are neither the owner nor in the file's group. Administrators control the group: with its own
group, a backup or a certificate tool can share a file with the broker. Blocks; run it in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from canopy_mqtt.settings import HttpTable, JwtTable, PasswordFileTable, ScramTable, Settings


def open_to_others(settings: Settings) -> Iterator[str]:
    """Yield a line for each file of the settings with wrong permissions."""
    secrets: dict[str, bool] = {}
    for file, secret in _named(settings):
        secrets[file] = secret or secrets.get(file, False)
    secrets.pop("", None)
    for file, secret in secrets.items():
        yield from _about(file, secret)


def open_settings(config: Path, settings: Settings) -> Iterator[str]:
    """Yield the lines for the settings file itself."""
    yield from _about(str(config), _holds_secrets(settings))


def open_secret(file: str) -> Iterator[str]:
    """Yield the lines for a file with a secret that no setting names."""
    yield from _about(file, True)


def _about(file: str, secret: bool) -> Iterator[str]:
    try:
        mode = stat.S_IMODE(os.stat(file).st_mode)
    except OSError:
        return  # said by what reads it
    if mode & stat.S_IWOTH:
        what = "may be read and written by everybody" if mode & stat.S_IROTH else "may be written by everybody"
        yield f"{file} {what} on this machine ({mode:04o}): chmod {'600' if secret else 'o-w'} it"
    elif secret and mode & stat.S_IROTH:
        yield f"{file} holds secrets and may be read by everybody on this machine ({mode:04o}): chmod 600 it"


def _named(settings: Settings) -> Iterator[tuple[str, bool]]:
    """Yield each file that controls access, and whether it contains secrets."""
    for listener in settings.listeners:
        tls = listener.tls
        if tls is not None:
            for certificate, key in ((tls.certificate, tls.key), *((each.certificate, each.key) for each in tls.more)):
                yield key, True
                # One file may hold both.
                yield certificate, False
            yield tls.chain, False
            yield tls.client_ca, False
            yield tls.crl, False
    for table in settings.authenticator:
        if isinstance(table, (PasswordFileTable, ScramTable)):
            yield table.path, True
        elif isinstance(table, JwtTable):
            yield table.secret_file, True
            yield table.key_file, False
        elif isinstance(table, HttpTable):
            yield table.key_file, True
    http = settings.http
    for file in (http.password_file, http.viewer_token_file, http.operator_token_file, http.key):
        yield file, True
    yield http.certificate, False
    yield settings.access.acl_file, False
    for link in settings.upstream:
        yield link.password_file, True
        yield link.key_file, True
        yield link.ca_file, False
    yield settings.cluster.key_file, True
    yield settings.cluster.ca_file, False


def _holds_secrets(settings: Settings) -> bool:
    tables = [
        *(link.password for link in settings.upstream),
        *(table.secret for table in settings.authenticator if isinstance(table, JwtTable)),
        *("".join(table.headers) for table in settings.authenticator if isinstance(table, HttpTable)),
        *(listener.tls.key_password for listener in settings.listeners if listener.tls is not None),
        "@" if "@" in settings.store.url else "",
        settings.alarms.webhook,
    ]
    return any(tables)
