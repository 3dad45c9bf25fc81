"""The interface of authenticators: an authenticator says who a client is, or refuses it.

A chain (`chain`) asks one after the other; the first that knows the client decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AuthMethod, Origin
from canopy_mqtt.core.principal import Principal


class Attempt:
    """One CONNECT. `password` is None if it has none. `str` of it contains no secret."""

    __slots__ = ("client_id", "connect", "origin", "password", "user_name")

    def __init__(self, connect: Connect, origin: Origin) -> None:
        self.client_id = connect.client_id
        self.user_name = connect.user_name
        self.password = connect.password
        self.origin = origin
        self.connect = connect

    def __repr__(self) -> str:
        return f"Attempt(client_id={self.client_id!r}, user_name={self.user_name!r}, origin={self.origin.address!r})"


class Refusal(NamedTuple):
    """The client is known and refused. 0x86 counts as guessing (`brute_force`), other codes do not."""

    reason_code: int = reason_codes.BAD_USER_NAME_OR_PASSWORD
    text: str = ""
    """The reason, for the log alone; it must contain no secret."""


Verdict: TypeAlias = Principal | Refusal | None
"""The client's principal, or the refusal; None: this authenticator does not know the client, and the next is asked."""

Ask: TypeAlias = Literal["ask"]
ASK: Final[Ask] = "ask"
"""Answer of `Authenticator.at_once`: `authenticate` has to be awaited."""


def is_mqtt_text(text: str) -> bool:
    """Return True for a valid string of MQTT (section 1.5.4). JSON allows more: half of a surrogate pair, which is no
    UTF-8.
    """
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


class Authenticator:
    """Says who clients are. Called in the event loop; what raises refuses the client with 0x88 and is logged.

    class Badges(Authenticator):
        name = "badges"

        async def authenticate(self, attempt: Attempt) -> Verdict:
            if attempt.user_name is None or not attempt.user_name.startswith("badge-"):
                return None  # not one of mine: the next is asked
            if await self.database.holds(attempt.user_name, attempt.password):
                return Principal(attempt.user_name, groups=("staff",))
            return Refusal(text="no such badge")
    """

    name: str = ""
    """The name in logs and in `listener.authenticators`; unique in a broker."""

    async def authenticate(self, attempt: Attempt) -> Verdict:
        """Decide. The call is cancelled after `security.authentication_timeout` seconds, and when the broker stops."""
        verdict = self.at_once(attempt)
        return None if verdict == ASK else verdict

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        """Decide without waiting, if possible. ASK: `authenticate` has to be awaited."""
        del attempt
        return ASK

    async def pretend(self, attempt: Attempt) -> Refusal | None:
        """Imitate the work for a known client with wrong credentials, because no authenticator knew this one. None:
        there is nothing to imitate.
        """
        del attempt
        return None

    def still_knows(self, principal: Principal) -> bool:
        """Return True if a client may stay that the authenticator of this name admitted before a reload."""
        del principal
        return True

    def files(self) -> tuple[Path, ...]:
        """The files that it was read from: when one changes, `renewed` is called."""
        return ()

    async def renewed(self) -> Authenticator:
        """Return its successor when the settings are read again: itself if nothing has changed.

        Raises:
            SecurityError: a file cannot be used; then everything stays as it is.
        """
        return self

    def methods(self) -> Mapping[str, AuthMethod]:
        """The MQTT 5.0 authentication methods that it offers, by name."""
        return {}

    def suspicion(self) -> str:
        """A warning in one line about a probable mistake in its files; empty: none."""
        return ""

    async def close(self) -> None:
        """Release its resources; it is not asked any more."""
