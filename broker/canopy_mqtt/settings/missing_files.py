"""Finds files that settings name and that do not exist yet, for one line of `canopy serve`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Final

from canopy_mqtt.settings import Http, JwtTable, PasswordFileTable, ScramTable, Settings, called

PEM: Final = "PEM files of TLS: docs/listeners.md shows how to make some for a test"


def missing_files(settings: Settings) -> str:
    """Return one line about the missing files that the broker needs to start, and how to make them; "": none."""
    by_way: dict[str, list[str]] = {}
    seen: set[str] = set()
    for file, way in _needed(settings):
        if file not in seen and _is_absent(file):
            by_way.setdefault(way, []).append(file)
        seen.add(file)
    if not by_way:
        return ""
    return "missing: " + "; ".join(f"{' and '.join(files)} ({way})" for way, files in by_way.items())


def _needed(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each file, and the way to make it, or its purpose."""
    for listener in settings.listeners:
        if listener.tls is not None:
            for file in listener.tls.files():
                yield file, PEM
    for table in settings.authenticator:
        if isinstance(table, PasswordFileTable):
            yield table.path, f"canopy passwd --create {shlex.quote(table.path)} USER"
        elif isinstance(table, ScramTable):
            yield table.path, f"canopy passwd --scram --create {shlex.quote(table.path)} USER"
        elif isinstance(table, JwtTable):
            for file in (table.secret_file, table.key_file):
                if file:
                    yield file, f'the key to the tokens of the authenticator "{called(table)}"'
    yield from _of_http(settings.http)
    for file in (settings.cluster.ca_file, settings.cluster.cert_file, settings.cluster.key_file):
        if file:
            yield file, PEM
    if settings.access.acl_file:
        yield settings.access.acl_file, "access rules as mosquitto's acl_file: docs/rules.md"


def _of_http(http: Http) -> Iterator[tuple[str, str]]:
    if not http.listen:
        return
    if http.password_file:
        yield http.password_file, f"canopy passwd --create {shlex.quote(http.password_file)} USER"
    for file in (http.viewer_token_file, http.operator_token_file):
        if file:
            yield file, "openssl rand -hex 32 makes a token"
    for file in (http.certificate, http.key):
        if file:
            yield file, PEM


def _is_absent(file: str) -> bool:
    """Return True if no file has this name. A file that cannot be examined may exist."""
    try:
        os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
