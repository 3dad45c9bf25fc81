"""Makes a fresh store of what is whole in a damaged one, which stays as it is."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from broker.store.base import StoreError
from broker.store.sqlite.opening import FILE, told
from broker.store.sqlite.rebuilding import Rebuilt, rebuild
from broker.store.tools.importing import hand_over
from broker.store.tools.looking import file_of, user_of


def salvage(directory: Path, into: Path) -> Rebuilt:
    """Fill a new store in the directory `into` with what is whole in the store of another one.

    Raises:
        StoreError: there is none, a broker uses it, or there is something at `into` already.
    """
    path, target = file_of(directory), into / FILE
    user = user_of(path)
    if user is not None:
        raise StoreError(f"{directory} is in use by process {user or '?'}: stop that one")
    try:
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(target):
            raise StoreError(f"{target} is there already: name a folder that holds no store yet")
        try:
            rebuilt = rebuild(path, target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"{target} cannot be made ({error.strerror}): name another folder, or make room") from error
    except sqlite3.Error as error:
        raise StoreError(told(target, error)) from error
    hand_over(target)
    return rebuilt
