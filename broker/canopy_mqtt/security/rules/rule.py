"""One rule about topics: the clients and actions that it applies to, and its effect.

Owns `Rule` and `ClientMatcher`. A filter may contain the client's names as `{user}`, `{client}` or `{group}`. A value
that would change the levels of the filter (`+`, `#`, `/`, a `$` at its beginning) is not filled in: an allowing rule
then does not apply, and a denying rule applies to every value. mosquitto's files have their own rules (`acl_file`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from typing import Final, TypeAlias

from canopy_mqtt.core.codec.topic_names import covers, intersect, levels_match
from canopy_mqtt.core.principal import Principal

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
RECEIVE: Final = 4
ACTIONS: Final = {"publish": PUBLISH, "subscribe": SUBSCRIBE | RECEIVE, "receive": RECEIVE}
ALL: Final = PUBLISH | SUBSCRIBE | RECEIVE

USER: Final = "{user}"
CLIENT: Final = "{client}"
GROUP: Final = "{group}"
PLACEHOLDER: Final = re.compile(r"\{(?:user|client|group)\}")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def patterns(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Compile shell patterns to one expression that matches whole strings; None if there are none."""
    return re.compile("|".join(translate(text) for text in texts)) if texts else None


class ClientMatcher:
    """Selects the clients that a rule applies to: all conditions that are set have to hold."""

    def __init__(
        self,
        user: Sequence[str] = (),
        anonymous: bool | None = None,
        group: Sequence[str] = (),
        client_id: Sequence[str] = (),
        listener: Sequence[str] = (),
        address: Sequence[str] = (),
    ) -> None:
        self._user = patterns(user)
        self._anonymous = anonymous
        self._group = patterns(group)
        self._client_id = patterns(client_id)
        self._listener = patterns(listener)
        self._networks: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in address)

    def matches(self, principal: Principal) -> bool:
        user = principal.user_name
        if self._anonymous is not None and self._anonymous is not (user is None):
            return False
        if self._user is not None and (user is None or self._user.match(user) is None):
            return False
        if self._group is not None and not any(self._group.match(group) for group in principal.groups):
            return False
        if self._client_id is not None and self._client_id.match(principal.client_id) is None:
            return False
        if self._listener is not None and self._listener.match(principal.listener) is None:
            return False
        return not self._networks or self._near(principal.host)

    def _near(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


class Rule:
    """One filter of one rule. `place`: its position, for people (`canopy.toml: rule[2]`).

    `actions` are bits; `retain`: only publishes with this retain flag, None: all.
    """

    def __init__(
        self,
        topic_filter: str,
        allow: bool,
        actions: int,
        place: str,
        *,
        who: ClientMatcher | None = None,
        max_qos: int = 2,
        retain: bool | None = None,
    ) -> None:
        self.topic_filter = topic_filter
        self.levels = topic_filter.split("/")
        self.allow = allow
        # A rule about the retain flag is about publishes alone.
        self.actions = actions if retain is None else actions & PUBLISH
        self.place = place
        self.who = who
        self.max_qos = max_qos
        self.retain = retain
        self.templated = any(each in topic_filter for each in (USER, CLIENT, GROUP))

    def applies_to(self, principal: Principal, levels: list[str]) -> bool:
        """Return True if the rule applies to a topic name, split into levels."""
        if not self.templated:
            return levels_match(self.levels, levels)
        return any(levels_match(each, levels) for each in self.filled(principal))

    def covers(self, principal: Principal, topic_filter: str) -> bool:
        """Return True if the rule covers all topics of a filter."""
        if not self.templated:
            return covers(self.topic_filter, topic_filter)
        return any(covers("/".join(each), topic_filter) for each in self.filled(principal))

    def overlaps(self, principal: Principal, topic_filter: str) -> bool:
        """Return True if the rule covers some topic of a filter."""
        if not self.templated:
            return intersect(self.topic_filter, topic_filter) is not None
        return any(intersect("/".join(each), topic_filter) is not None for each in self.filled(principal))

    def filled(self, principal: Principal) -> Iterator[list[str]]:
        """Yield its filter with the client's names filled in, split into levels: one for each group if it contains
        `{group}`.
        """
        if USER in self.topic_filter and principal.user_name is None:
            return
        groups = principal.groups if GROUP in self.topic_filter else ("",)
        for group in groups:
            made: list[str] = []
            for level in self.levels:
                if "{" in level:
                    filled = self._fill(level, principal, group, at_start=not made)
                    if filled is None:
                        break
                    made.append(filled)
                else:
                    made.append(level)
            else:
                yield made

    def _fill(self, level: str, principal: Principal, group: str, *, at_start: bool) -> str | None:
        """Fill in one level; None: the value is not allowed there, and the rule does not apply."""
        names = {USER: principal.user_name or "", CLIENT: principal.client_id, GROUP: group}
        if any(sign in value for name, value in names.items() if name in level for sign in "+#/\0"):
            return None if self.allow else "+"
        # At once, so that what a name holds is not taken for a placeholder.
        filled = PLACEHOLDER.sub(lambda found: names[found[0]], level)
        if at_start and filled.startswith("$") and not level.startswith("$"):
            return None if self.allow else "+"
        return filled
