"""The authenticated identity of a client, which access control uses instead of names that any client can send.

Owns `Principal`, and `network`, which says which IP addresses count as one client. `Session.principal` is the principal
of the present connection, or of the last one while the client is offline. Promises: a principal is never
changed; a client that connects again has a new one.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final, cast

IPV6_PREFIX_BITS: Final = 64
"""Bits of an IPv6 address that count: a client that has one address usually has all addresses with the same 64 bits."""

LOCAL: Final = "local"
"""In place of the address of a client that came over a Unix socket."""

NO_ATTRIBUTES: Final[dict[str, str]] = {}
"""The attributes of a principal that has none. Read it; never change it."""

RULE_SIZE: Final = 320
"""Characters that each of its own rules adds to the size of a principal: about a kilobyte."""

MAX_SHOWN_NAME: Final = 64
"""Characters of an attribute's name in a log line."""


@lru_cache(maxsize=4_096)
def network(host: str) -> str:
    """Return an IPv4 address as it is, the /64 of an IPv6 address, and unchanged what is no IP address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    unused = 128 - IPV6_PREFIX_BITS
    return str(ipaddress.ip_network((int(address) >> unused << unused, IPV6_PREFIX_BITS)))


def _no_text(value: object) -> str:
    """Say why a value cannot be written as UTF-8; empty: it can."""
    if not isinstance(value, str):
        return f"is no text, but of type {type(value).__name__}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds half a surrogate pair"
    return ""


class Principal:
    """The identity of one client.

    `user_name`: None for an anonymous client; an empty name is None. `host`: its IP address, `listener`: the name of
    its listener; each is empty if there is none. `certificate`: the subject of its certificate (RFC 4514), empty
    without one. `authenticator`: the name of the authenticator that admitted it, which also gave the `groups` and
    `attributes`; `rules`: those of a token (`canopy_mqtt.security.rules`). `expires_at`: the end of its connection in
    seconds since the epoch; 0.0: never. `mount`: the prefix of all its topics in this broker (`protocol.identity`).
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
        # The rule book keeps its rules for this principal here.
        self.compiled: object | None = None
        # See `account_name`; empty until it is read.
        self._account_name = ""

    def account_name(self) -> str:
        """Name the account that pays for what it takes or causes: `user NAME`, or `address ADDRESS` of a client that
        no authenticator knows by a user name. Bounds hold for accounts, since client identifiers cost nothing."""
        name = self._account_name
        if not name:
            # Without an authenticator the user name is only the client's own claim.
            known = self.user_name is not None and self.authenticator != ""
            name = f"user {self.user_name}" if known else f"address {network(self.host) or LOCAL}"
            self._account_name = name
        return name

    def at(self, client_id: str, listener: str, host: str) -> Principal:
        """Return a copy for one connection of the client: an authenticator may give many clients the same object."""
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
        """Say in words which of its names, groups and attributes is no Unicode text; empty: none.

        They come from hooks, tokens and services. A store that got such a value could not write anything any more.
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
                return f"its attribute {str(name)[:MAX_SHOWN_NAME]!r} {fault}"
        return ""

    def size(self) -> int:
        """Return the characters of what an authenticator gave it: groups, attributes, rules, the certificate's subject;
        and of its mount."""
        size = len(self.certificate) + len(self.mount)
        if self.attributes is NO_ATTRIBUTES and not self.groups and not self.rules:
            return size
        size += RULE_SIZE * len(self.rules)
        for group in self.groups:
            size += len(group)
        for name, value in self.attributes.items():
            size += len(name) + len(value)
        return size
