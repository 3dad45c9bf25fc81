"""Finds files with secrets that other users may read, files that other users may write, or replace in their folder, and
a recorder's folder in which they can.

They are reported, and used all the same: at the start, by `canopy check-config`, and by `canopy ctl` for its token.
Other users are those who are neither the owner nor in the file's group. Administrators control the group: with its own
group, a backup or a certificate tool can share a file with the broker. Blocks; run it in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from canopy_mqtt.settings import HttpTable, JwtTable, PasswordFileTable, ScramTable, Settings
from canopy_mqtt.settings.access.tokens import is_url


def open_to_others(settings: Settings) -> Iterator[str]:
    """Yield a line for each file of the settings with wrong permissions."""
    secrets: dict[str, bool] = {}
    for file, secret in _named(settings):
        secrets[file] = secret or secrets.get(file, False)
    secrets.pop("", None)
    for file, secret in secrets.items():
        yield from _about(file, secret)
    yield from _open_folders(secrets)
    if settings.recorder.directory:
        yield from _open_record(settings.recorder.directory)


def open_settings(config: Path, settings: Settings) -> Iterator[str]:
    """Yield the lines for the settings file itself."""
    yield from _about(str(config), _holds_secrets(settings))
    yield from _open_folders([str(config)])


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


def _open_folders(files: Iterable[str]) -> Iterator[str]:
    """Yield a line for each folder that everybody may write, with the first of these files in it.

    The mode of a file does not protect it there, unless the folder is sticky, as /tmp is.
    """
    seen: set[str] = set()
    for file in files:
        # Of a link, both its own folder and that of its target.
        for folder in (os.path.dirname(os.path.abspath(file)), os.path.dirname(os.path.realpath(file))):
            if folder in seen:
                continue
            seen.add(folder)
            try:
                mode = stat.S_IMODE(os.stat(folder).st_mode)
            except OSError:
                continue
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                found = f"{folder} may be written by everybody on this machine ({mode:04o}), who can replace {file}"
                yield f"{found}: chmod o-w the folder"


def _open_record(folder: str) -> Iterator[str]:
    """Yield a line if other users can read, remove or replace what the recorder writes: all messages."""
    try:
        found = os.stat(folder)
    except OSError:
        return  # made by the recorder, for its user alone
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{folder}, with the record, may be written by everybody on this machine ({mode:04o}): chmod 700 it"
    # An administrator who checks the settings is not the user whom the broker runs as.
    if os.geteuid() != 0 and found.st_uid not in (os.geteuid(), 0):
        yield f"{folder}, with the record, belongs to another user ({found.st_uid}), who can replace it: chown it"


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
            # Who may write these keys may sign tokens.
            yield "" if is_url(table.jwks) else table.jwks, "HS" in "".join(table.algorithms)
            yield table.jwks_ca_file, False
        elif isinstance(table, HttpTable):
            yield table.key_file, True
            yield table.cert_file, False
            yield table.ca_file, False
    http = settings.http
    for file in (http.password_file, http.viewer_token_file, http.operator_token_file, http.key):
        yield file, True
    yield http.certificate, False
    yield settings.access.acl_file, False
    for link in settings.upstream:
        yield link.password_file, True
        yield link.key_file, True
        yield link.cert_file, False
        yield link.ca_file, False
    yield settings.cluster.key_file, True
    yield settings.cluster.cert_file, False
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
