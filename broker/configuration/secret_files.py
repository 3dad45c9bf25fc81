"""Files with secrets that others than the broker's user may read, and files that others may write.

They are reported, and used: at the start, by `canopy check-config`, and by `canopy ctl` for its token.

Others means users who are neither the owner nor of the file's group. What a group may do is its administrator's choice:
a group of its own lets a backup or a certificate tool share a file with the broker. Blocks; for a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from broker.settings import HttpTable, JwtTable, PasswordFileTable, ScramTable, Settings


def open_to_others(settings: Settings) -> Iterator[str]:
    """A line for each file named by the settings that others may read or write, and should not."""
    secrets: dict[str, bool] = {}
    for file, secret in _named(settings):
        secrets[file] = secret or secrets.get(file, False)
    secrets.pop("", None)
    for file, secret in secrets.items():
        yield from _about(file, secret)


def open_settings(config: Path, settings: Settings) -> Iterator[str]:
    """The same for the file that they were read from."""
    yield from _about(str(config), _holds_secrets(settings))


def open_secret(file: str) -> Iterator[str]:
    """The same for a file with a secret that no setting names."""
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
    """Each file that says who may do what, and whether there are secrets in it."""
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
