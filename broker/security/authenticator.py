"""The interface of authenticators: they say who a client is, or that it is not whom it claims to be.

A chain (`chain`) asks one after the other; the first that knows the client decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from broker.core.codec import reasons
from broker.core.codec.packets import Connect
from broker.core.hooks import AuthMethod, Origin
from broker.core.principal import Principal


class Attempt:
    """One CONNECT. `password` is None where it has none. `str` of it has no secret."""

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
    """The client is known, and does not come in. 0x86 counts as guessing (`guessing`), other codes do not."""

    reason_code: int = reasons.BAD_USER_NAME_OR_PASSWORD
    text: str = ""
    """Why, for the log alone, without a secret."""


Verdict: TypeAlias = Principal | Refusal | None
"""Who the client is, or why it does not come in; None: this authenticator does not know it, the next is asked."""

Ask: TypeAlias = Literal["ask"]
ASK: Final[Ask] = "ask"
"""Answer of `Authenticator.at_once`: `authenticate` has to be awaited."""


def is_mqtt_text(text: str) -> bool:
    """Whether MQTT has such a string (section 1.5.4). JSON has more: half of a surrogate pair, which is no UTF-8."""
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
    """What logs and `listener.authenticators` call it; unique in a broker."""

    async def authenticate(self, attempt: Attempt) -> Verdict:
        """Decide. Cancelled after `security.authentication_timeout` seconds, and when the broker stops."""
        verdict = self.at_once(attempt)
        return None if verdict == ASK else verdict

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        """The same without waiting, where that is possible. ASK: `authenticate` has to be awaited."""
        del attempt
        return ASK

    async def pretend(self, attempt: Attempt) -> Refusal | None:
        """No authenticator knew the client: do as for one that is known and wrong. None: there is nothing to add."""
        del attempt
        return None

    def still_knows(self, principal: Principal) -> bool:
        """After a reload: whether a client that was admitted by the one of this name before may stay."""
        del principal
        return True

    def files(self) -> tuple[Path, ...]:
        """The files that it is made of: when one changes, `renewed` is called."""
        return ()

    async def renewed(self) -> Authenticator:
        """What takes its place when the settings are read again: itself where nothing has changed.

        Raises:
            SecurityError: a file cannot be used; then everything stays as it is.
        """
        return self

    def methods(self) -> Mapping[str, AuthMethod]:
        """The authentication methods of MQTT 5.0 that it brings, by name."""
        return {}

    def suspicion(self) -> str:
        """What is hardly meant about it, though it can be used, in one line; empty: nothing."""
        return ""

    async def close(self) -> None:
        """It is not asked any more."""
