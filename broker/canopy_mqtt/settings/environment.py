"""Tells environment variables that are settings from others with the same prefix.

Owns the spelling: `CANOPY_`, then the setting's name in capitals with two underscores between section and name.

Promises: a misspelt setting is told from a variable of another program. Kubernetes gives each container variables for
each Service of its namespace, beside a Service named `canopy` such as `CANOPY_PORT=tcp://10.0.0.1:1883`. Those are
ignored, like all others that resemble no setting.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "CANOPY_"

HEALTH_TARGET: Final = "CANOPY_HEALTH_TARGET"
HEALTH_USER: Final = "CANOPY_HEALTH_USER"
HEALTH_PASSWORD: Final = "CANOPY_HEALTH_PASSWORD"

CTL_URL: Final = "CANOPY_URL"
CTL_TOKEN_FILE: Final = "CANOPY_TOKEN_FILE"
CTL_USER: Final = "CANOPY_USER"
CTL_CA: Final = "CANOPY_CA"

NOT_SETTINGS: Final = frozenset(
    {
        "CANOPY_PURE",
        "CANOPY_REQUIRE_COMPILED",
        "CANOPY_EXPECT",
        "CANOPY_NO_SKIP",
        HEALTH_TARGET,
        HEALTH_USER,
        HEALTH_PASSWORD,
        CTL_URL,
        CTL_TOKEN_FILE,
        CTL_USER,
        CTL_CA,
    }
)
"""Variables of the build, the tests, `canopy health` and `canopy ctl`. They share the prefix and set nothing."""

SERVICE_LINK: Final = re.compile(
    r"([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""The suffixes of the variables that Kubernetes makes for a Service, with further names before them."""

ALIKE: Final = 0.85
"""The similarity at which a variable with single underscores counts as a misspelt setting."""


def variable(name: str) -> str:
    return PREFIX + name.upper().replace(".", "__")


def candidates(environ: Mapping[str, str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Return the variables that may be meant as settings, sorted, each with the name that it spells."""
    settings = set(known)
    found: list[tuple[str, str]] = []
    for each in sorted(environ):
        if not each.startswith(PREFIX) or each in NOT_SETTINGS:
            continue
        rest = each.removeprefix(PREFIX)
        name = rest.lower().replace("__", ".")
        if name in settings or "__" in rest or SERVICE_LINK.fullmatch(rest) is None:
            found.append((each, name))
    return found


def nearest_flat(name: str, known: Iterable[str]) -> str | None:
    """Return the setting whose name matches if its dots are replaced by single underscores, up to a small error:
    `limits_max_connections`.
    """
    flat = {full.replace(".", "_"): full for full in known}
    for full in flat.values():
        last = full.rpartition(".")[2]
        # A name of one word (`version`, `level`) is as likely another program's.
        if last == name and "_" in name:
            return full
    for near in difflib.get_close_matches(name, list(flat), n=1, cutoff=ALIKE):
        return flat[near]
    return None
