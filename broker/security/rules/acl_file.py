"""mosquitto's `acl_file`, read as mosquitto 2.0 reads it, and asked as it asks.

Owns the format and its semantics, which differ from those of `[[rule]]`. A user has the rules of all sections of that
name, a client without one those above the first `user` line; `pattern` lines are everybody's. Of the one and then of
the other, those that deny come first, wherever they stand. What nothing allows is denied. A subscription is always
granted: what it brings is looked at message by message. A client whose user name or identifier has a `+` or `#` in it
may do nothing by a pattern. An empty user name is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.core.codec.errors import ProtocolError
from broker.core.codec.topic_names import validate_filter
from broker.core.principal import Principal
from broker.security.errors import SecurityError
from broker.security.rules.rule import ALL, PUBLISH, RECEIVE, Rule
from broker.security.rules.rule_set import RuleSet

ACCESS: Final = {"read": RECEIVE, "write": PUBLISH, "readwrite": PUBLISH | RECEIVE, "deny": ALL}

MOST_BYTES: Final = 16_777_216
"""Bytes of a file: some hundred thousand lines. What is longer is another file, by mistake."""

MAX_TOLD: Final = 5
"""Wrong lines that an error names."""

LONGEST_QUOTED: Final = 80
"""Characters of a line that an error quotes."""

NO_RULES: Final = RuleSet(())


BLANKS: Final = " \t\r\v\f"


class Line(Rule):
    """A `topic` line, whose filter is as it stands there."""

    def __init__(self, topic_filter: str, allow: bool, actions: int, place: str) -> None:
        super().__init__(topic_filter, allow, actions, place)
        self.templated = False


class Pattern(Rule):
    """A `pattern` line, in whose filter `%u` and `%c` stand for user name and client identifier."""

    def __init__(self, topic_filter: str, allow: bool, actions: int, place: str) -> None:
        super().__init__(topic_filter, allow, actions, place)
        self._user = "%u" in topic_filter
        self.templated = self._user or "%c" in topic_filter

    def filled(self, principal: Principal) -> Iterator[list[str]]:
        """Its filter with the names of a client. A slash in them is one, as in mosquitto."""
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
    """What a file says."""

    def __init__(self, path: str, users: dict[str | None, RuleSet], everybodys: RuleSet) -> None:
        self.path = path
        self._users = users
        self._patterns = everybodys

    @property
    def size(self) -> int:
        return len(self._patterns.rules) + sum(len(each.rules) for each in self._users.values())

    def about(self, principal: Principal, action: int, topic: str) -> tuple[bool, str]:
        """Whether a client may publish to a topic name, or be sent a message of it; and the place that says so."""
        rule = self._users.get(principal.user_name or None, NO_RULES).about(principal, action, topic)
        if rule is None and self._patterns.rules:
            if _dangerous(principal):
                return False, f"{self.path}: no pattern holds for a name with + or #"
            rule = self._patterns.about(principal, action, topic)
        return (False, f"{self.path}: no line allows it") if rule is None else (rule.allow, rule.place)


def _dangerous(principal: Principal) -> bool:
    return any(sign in name for sign in "+#" for name in (principal.user_name or "", principal.client_id))


def read_acl_file(path: Path) -> AclFile:
    """Read a file. Raises SecurityError: it cannot be read, or a line is one that mosquitto refuses too."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SecurityError(f"{path}: longer than {MOST_BYTES} bytes; an acl_file is text")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SecurityError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SecurityError(f"{path}: not UTF-8 text (byte {error.start})") from None
    return parse_acl(text, str(path))


def parse_acl(text: str, path: str) -> AclFile:
    """Read the text of a file. Raises SecurityError: it names and quotes the lines that are wrong, up to `MAX_TOLD`."""
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
            problems.append(f"line {number}: {line.strip(' ')[:LONGEST_QUOTED]!r}: {error}")
    if problems:
        more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
        raise SecurityError(f"{path}: {'; '.join(problems[:MAX_TOLD])}{more}")
    return AclFile(path, {name: _denies_first(rules) for name, rules in sections.items()}, _denies_first(everybodys))


def _denies_first(rules: list[Rule]) -> RuleSet:
    return RuleSet([rule for rule in rules if not rule.allow] + [rule for rule in rules if rule.allow])


def _access(rest: str) -> tuple[int, str]:
    """What a line gives, as bits, and its filter. A single word is a filter, also where it is one of the accesses.

    Raises ValueError or ProtocolError: it gives nothing.
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
