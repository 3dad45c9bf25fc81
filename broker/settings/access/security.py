"""`[security]`: what holds for all authenticators together: guessing, hashing, names of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from broker.settings.values import MOST_MESSAGES, CountOrUnlimited, Pattern, Section, networks


class Security(Section):
    """Who comes in, whatever says so."""

    client_ids: Annotated[Sequence[Pattern], AfterValidator(tuple)] = ()
    """Patterns, of which a client identifier must match one: `*` is any text, `{user}` the user name. A client whose
    identifier matches none is refused with 0x85. Empty: every identifier. Always a tuple."""
    authentication_timeout: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 5.0
    """Seconds in which the authenticators must decide on a CONNECT; after them it is refused with 0x88."""
    max_authentications: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 10_000
    """CONNECTs that authenticators are working on; one more is refused with 0x89."""
    failure_delay: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 1.0
    """Seconds after its CONNECT at which a client that is refused is told so. 0: at once."""
    ban_after: Annotated[int, Field(ge=0, le=1_000)] = 20
    """Different wrong credentials of one address within `ban_time` after which it is banned; IPv6 counts by /64. The
    same credentials again count once. 0: never."""
    ban_time: Annotated[float, Field(gt=0, le=2_592_000, allow_inf_nan=False)] = 600.0
    """Seconds for which a failure counts, and for which a ban lasts: each CONNECT is refused with 0x8A, whatever its
    password."""
    ban_exempt: Annotated[Sequence[str], AfterValidator(networks)] = ("127.0.0.0/8", "::1/128")
    """Networks whose addresses are never banned. Always a tuple after validation."""
    max_bans: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Addresses whose failures are remembered, as many that are banned for them, and bans by operators."""
    hashing_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads that hash passwords."""
    max_hashings: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 1_000
    """Passwords that wait to be hashed. Addresses have their turn one after the other; where the list is full, the
    address with most in it gives way: its CONNECT is refused with 0x89."""
    max_password_length: Annotated[int, Field(ge=1, le=65_535)] = 1_024
    """Bytes of a password that is hashed; a longer one is wrong."""
    watch_files: bool = True
    """Whether the files of authenticators, rules and certificates are read again when they change. Off: on SIGHUP
    alone."""
    verified_cache: CountOrUnlimited = 100_000
    """Users whose last good password is remembered, as a keyed hash, so that who comes again is not hashed again. 0:
    none."""
