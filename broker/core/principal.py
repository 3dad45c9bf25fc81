"""The authenticated identity of a client, which access control uses instead of names that anybody can send.

Owns `Principal`. `Session.principal` is that of the present connection, or of the last one while the client is away.
Promises: it is never changed; a client that connects again has a new one.
"""

from __future__ import annotations

from typing import Final, cast

from broker.core.addresses import network

LOCAL: Final = "local"
"""In place of the address of a client that came over a Unix socket."""

NO_ATTRIBUTES: Final[dict[str, str]] = {}
"""What a principal without attributes has. Read it; never change it."""


RULE_SIZE: Final = 320
"""What one of its own rules counts for in its size, in characters: about a kilobyte."""


LONGEST_NAME: Final = 64
"""Characters of an attribute's name in a log line."""


def _no_text(value: object) -> str:
    """Why a value is none that can be written as UTF-8; empty: it is one."""
    if not isinstance(value, str):
        return f"is no text, but of type {type(value).__name__}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds half a surrogate pair"
    return ""


class Principal:
    """The identity of one client.

    `user_name`: None for an anonymous client; an empty one is none. `host`: its IP address, `listener`: the name of the
    one that it came by; both empty where there is none. `certificate`: the subject of its certificate (RFC 4514), empty
    without one. `authenticator`: the name of the one that admitted it; `groups` and `attributes` are what that one says
    of it, `rules` what a token brought (`broker.security.rules`). `expires_at`: seconds since the epoch at which its
    connection ends; 0.0: never. `mount`: what stands before all its topics in this broker (`connect.identity`).
    """

    def __init__(
        self,
        user_name: str | None = None,
        groups: tuple[str, ...] = (),
        attributes: dict[str, str] | None = None,
        expires_at: float = 0.0,
        rules: tuple[object, ...] = (),
        certificate: str = "",
        client_id: str = "",
        listener: str = "",
        host: str = "",
        authenticator: str = "",
        mount: str = "",
    ) -> None:
        self.user_name = user_name or None
        self.groups = groups
        self.attributes = NO_ATTRIBUTES if attributes is None else attributes
        self.expires_at = expires_at
        self.rules = rules
        self.certificate = certificate
        self.client_id = client_id
        self.listener = listener
        self.host = host
        self.authenticator = authenticator
        self.mount = mount
        # The rule book's: what it has worked out for this principal.
        self.compiled: object | None = None
        # See `account_name`; empty until it is asked for.
        self._account_name = ""

    def account_name(self) -> str:
        """Who pays for what it takes or causes: `user NAME`, or `address ADDRESS` of a client that no authenticator
        knows by a user name. Bounds go by this, since client identifiers cost a client nothing."""
        name = self._account_name
        if not name:
            # Where no authenticator has vouched for it, a user name is what the client says.
            known = self.user_name is not None and self.authenticator != ""
            name = f"user {self.user_name}" if known else f"address {network(self.host) or LOCAL}"
            self._account_name = name
        return name

    def at(self, client_id: str, listener: str, host: str) -> Principal:
        """The same client on one connection: a copy, since an authenticator may answer for many with one object."""
        return Principal(
            self.user_name,
            self.groups,
            self.attributes,
            self.expires_at,
            self.rules,
            self.certificate,
            client_id,
            listener,
            host,
            self.authenticator,
            self.mount,
        )

    def unfit(self) -> str:
        """What of its names, groups and attributes is no text of Unicode, in words; empty: nothing.

        It comes from hooks, tokens and services. A store that was given such a value could write nothing any more.
        """
        if self.user_name is not None and (fault := _no_text(self.user_name)):
            return f"its user name {fault}"
        if fault := _no_text(self.certificate):
            return f"its certificate {fault}"
        if self.attributes is NO_ATTRIBUTES and not self.groups:
            return ""
        for group in cast("tuple[object, ...]", self.groups):
            if fault := _no_text(group):
                return f"a group of it {fault}"
        for name, value in cast("dict[object, object]", self.attributes).items():
            if fault := _no_text(name):
                return f"the name of an attribute {fault}"
            if fault := _no_text(value):
                return f"its attribute {str(name)[:LONGEST_NAME]!r} {fault}"
        return ""

    def size(self) -> int:
        """Characters of what an authenticator says of it: groups, attributes, rules, the certificate's subject; and of
        its mount."""
        size = len(self.certificate) + len(self.mount)
        if self.attributes is NO_ATTRIBUTES and not self.groups and not self.rules:
            return size
        size += RULE_SIZE * len(self.rules)
        for group in self.groups:
            size += len(group)
        for name, value in self.attributes.items():
            size += len(name) + len(value)
        return size
