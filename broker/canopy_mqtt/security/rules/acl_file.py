"""Reads and applies mosquitto's `acl_file` as mosquitto 2.0 does.

Owns the format and its semantics, which differ from those of `[[rule]]`. A user gets the rules of all sections of that
name, a client without user name those above the first `user` line; `pattern` lines apply to all. Within each of the two
groups, deny lines come first. All else is denied. Subscriptions are always granted: their messages are checked one by
one. Patterns give no right to a client whose user name or identifier contains `+` or `#`. An empty user name is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_filter
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.errors import SecurityError, read_text
from canopy_mqtt.security.rules.rule import ALL, PUBLISH, RECEIVE, Rule
from canopy_mqtt.security.rules.rule_set import RuleSet

ACCESS: Final = {"read": RECEIVE, "write": PUBLISH, "readwrite": PUBLISH | RECEIVE, "deny": ALL}

MAX_BYTES: Final = 16_777_216
"""Bytes of a file: some hundred thousand lines. A longer file is probably the wrong one."""

MAX_TOLD: Final = 5
"""Wrong lines that an error names."""

MAX_QUOTED_LENGTH: Final = 80
"""Characters of a line that an error quotes."""

NO_RULES: Final = RuleSet(())


BLANKS: Final = " \t\r\v\f"


class Line(Rule):
    """A `topic` line, with its filter unchanged."""

    def __init__(self, topic_filter: str, allow: bool, actions: int, place: str) -> None:
        super().__init__(topic_filter, allow, actions, place)
        self.templated = False


class Pattern(Rule):
    """A `pattern` line: `%u` and `%c` in its filter stand for user name and client identifier."""

    def __init__(self, topic_filter: str, allow: bool, actions: int, place: str) -> None:
        super().__init__(topic_filter, allow, actions, place)
        self._user = "%u" in topic_filter
        self.templated = self._user or "%c" in topic_filter

    def filled(self, principal: Principal) -> Iterator[list[str]]:
        """Yield its filter with the client's names filled in. A slash in a name separates levels, as in mosquitto."""
        user = principal.user_name or ""
        if self._user and not user:
            return
        # From left to right, so that what a name holds is not taken for a placeholder.
        parts = self.topic_filter.split("%")
        text = parts[0]
        for part in parts[1:]:
            if part[:1] == "u":
                text += user + part[1:]
            elif part[:1] == "c":
                text += principal.client_id + part[1:]
            else:
                text += "%" + part
        yield text.split("/")


class AclFile:
    """The parsed lines of a file."""

    def __init__(self, path: str, users: dict[str | None, RuleSet], everybodys: RuleSet) -> None:
        self.path = path
        self._users = users
        self._patterns = everybodys

    @property
    def size(self) -> int:
        return len(self._patterns.rules) + sum(len(each.rules) for each in self._users.values())

    def about(self, principal: Principal, action: int, topic: str) -> tuple[bool, str]:
        """Return whether a client may publish to a topic name or receive from it, and the place of the rule."""
        rule = self._users.get(principal.user_name or None, NO_RULES).about(principal, action, topic)
        if rule is None and self._patterns.rules:
            if _dangerous(principal):
                return False, f"{self.path}: no pattern holds for a name with + or #"
            rule = self._patterns.about(principal, action, topic)
        return (False, f"{self.path}: no line allows it") if rule is None else (rule.allow, rule.place)


def _dangerous(principal: Principal) -> bool:
    return any(sign in name for sign in "+#" for name in (principal.user_name or "", principal.client_id))


def read_acl_file(path: Path) -> AclFile:
    """Read a file. Raises SecurityError if it cannot be read, or has a line that mosquitto refuses too."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SecurityError(f"{path}: longer than {MAX_BYTES} bytes; an acl_file is text")
    except OSError as error:
        raise SecurityError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse_acl(read_text(path), str(path))


def parse_acl(text: str, path: str) -> AclFile:
    """Parse the text of a file. Raises SecurityError, which quotes up to `MAX_TOLD` wrong lines."""
    sections: dict[str | None, list[Rule]] = {}
    everybodys: list[Rule] = []
    user: str | None = None
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip(BLANKS)
        words = line.lstrip(" ")
        if line.startswith("#") or not words:
            continue
        first, _, rest = words.partition(" ")
        rest = rest.strip(BLANKS)
        place = f"{path}: line {number}"
        try:
            if first == "user":
                if not rest:
                    raise ValueError("the user name is missing; mosquitto refuses this file too")
                user = rest
            elif first in ("topic", "pattern"):
                access, topic_filter = _access(rest)
                if first == "topic":
                    sections.setdefault(user, []).append(Line(topic_filter, access != ALL, access, place))
                else:
                    everybodys.append(Pattern(topic_filter, access != ALL, access, place))
            else:
                raise ValueError('a line begins with "user", "topic", "pattern" or "#"; this one with none')
        except (ValueError, ProtocolError) as error:
            problems.append(f"line {number}: {line.strip(' ')[:MAX_QUOTED_LENGTH]!r}: {error}")
    if problems:
        more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
        raise SecurityError(f"{path}: {'; '.join(problems[:MAX_TOLD])}{more}")
    return AclFile(path, {name: _denies_first(rules) for name, rules in sections.items()}, _denies_first(everybodys))


def _denies_first(rules: list[Rule]) -> RuleSet:
    return RuleSet([rule for rule in rules if not rule.allow] + [rule for rule in rules if rule.allow])


def _access(rest: str) -> tuple[int, str]:
    """Return the rights of a line as bits, and its filter. A single word is a filter, even if it is the name of a
    right.

    Raises ValueError or ProtocolError if it has none.
    """
    word, blank, topic_filter = rest.partition(" ")
    topic_filter = topic_filter.strip(BLANKS)
    if not blank or not topic_filter:
        word, topic_filter = "readwrite", word
    if word not in ACCESS:
        raise ValueError('before the topic filter stands "read", "write", "readwrite" or "deny", or nothing')
    if not topic_filter:
        raise ValueError("the topic filter is missing")
    validate_filter(topic_filter)
    return ACCESS[word], topic_filter
