"""Topic names and topic filters: which are valid, which match (section 4.7 of both specifications), and mounts.

Pure functions, used by the tries, the retained tree and the match cache. Levels are separated by slashes, and may be
empty. Nothing is normalised: two strings are equal if their code points are [MQTT-4.7.3-4]. Each `validate_*` returns,
or raises a `ProtocolError` with the reason code to answer with: 0x81 for an invalid name or filter, 0x8F or 0x90 if it
is valid but above a limit of this server. `unmount_topic` removes exactly the prefix that `mount_topic` has added.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, Refused

if TYPE_CHECKING:
    from mypy_extensions import i64

# Topics below this are the broker's own, made anew at each start: no client publishes there, no journal hears of them.
SYSTEM_TOPICS: Final = b"$SYS/"

# A UTF-8 encoded string has a two-byte length before it (section 1.5.4) [MQTT-4.7.3-3].
MAX_BYTES: Final = 65_535

SHARE_PREFIX: Final = "$share/"

SLASH: Final = 0x2F
DOLLAR: Final = 0x24

_CONTROL: Final = re.compile("[\x01-\x1f\x7f-\x9f]")

# A sensible limit on levels where the settings name none: each level of a name costs a node in a tree, about a hundred
# times the byte that it takes on the wire, and 65,535 bytes can spell 65,536 levels. No client needs a tenth of this.
SENSIBLE_LEVELS: Final = 128


def level_count(topic: str) -> int:
    """Return how many levels a topic name or filter has, at least 1."""
    return topic.count("/") + 1


def has_wildcard(topic_filter: str) -> bool:
    """Return whether a well-formed topic filter holds `+` or `#`, so that it can match other topics than it spells."""
    return "+" in topic_filter or "#" in topic_filter


def is_system(topic: bytes) -> bool:
    """Return whether a topic name (UTF-8) is the broker's own.

    The parent counts among them, so that no level is shared with a client's.
    """
    return topic.startswith(SYSTEM_TOPICS) or topic == SYSTEM_TOPICS[:-1]


def is_within(topic: bytes, parent: bytes) -> bool:
    """Return whether a topic name (UTF-8) is `parent` or below it."""
    size = len(parent)
    return topic.startswith(parent) and (len(topic) == size or topic[size] == SLASH)


def has_control(text: str) -> bool:
    """Return whether a string holds a control character: U+0001 to U+001F, or U+007F to U+009F (section 1.5.4)."""
    # What is printable holds none, and that is asked at the speed of C.
    return not text.isprintable() and _CONTROL.search(text) is not None


def validate_filter(topic_filter: str, max_levels: int = 0) -> None:
    """Check a topic filter against section 4.7. Give it the part after `$share/name/` of a shared one.

    `max_levels` is the server's own limit; 0 means none. It bounds what one filter can cost in the trie.

    Raises:
        MalformedPacket: it breaks the grammar.
        Refused: 0x8F: more than `max_levels` levels.
    """
    if not topic_filter:
        raise _bad_filter("is empty")  # [MQTT-4.7.3-1]
    if "\0" in topic_filter:
        raise _bad_filter("holds U+0000")  # [MQTT-4.7.3-2]
    # No code point takes more than four bytes, so that a short filter need not be encoded to be measured.
    if len(topic_filter) * 4 > MAX_BYTES and _utf8_length(topic_filter) > MAX_BYTES:
        raise _bad_filter(f"is longer than {MAX_BYTES:,} bytes")  # [MQTT-4.7.3-3]
    if max_levels > 0 and level_count(topic_filter) > max_levels:
        raise Refused(f"topic filter has more than {max_levels} levels", reason_codes.TOPIC_FILTER_INVALID)
    if "#" in topic_filter[:-1]:
        raise _bad_filter("holds # before its end")  # [MQTT-4.7.1-1]
    for level in topic_filter.split("/"):
        for sign in "#+":
            if sign in level and len(level) > 1:  # [MQTT-4.7.1-1] [MQTT-4.7.1-2]
                raise _bad_filter(f"holds {sign} beside other characters of a level")


def scan_filter(raw: bytes, start: i64, stop: i64) -> int:
    """Count the levels of the topic filter `raw[start:stop]` when nothing about it needs a second look; 0 otherwise.

    One pass for what `utf8`, `validate_filter` and `parse_shared` ask in several, since a client may subscribe to very
    many. 0 says nothing but that those have to be asked: the filter breaks the grammar, begins with `$`, or is not all
    printable ASCII.
    """
    if start >= stop or raw[start] == 36:
        return 0
    levels: i64 = 1
    before: i64 = 47
    at: i64 = start
    while at < stop:
        sign: i64 = raw[at]
        at += 1
        if sign > 47:  # nearly all of them
            if sign >= 127:
                return 0
        elif sign == 47:
            levels += 1
        elif sign == 43:  # + has its level to itself [MQTT-4.7.1-2]
            if before != 47 or (at < stop and raw[at] != 47):
                return 0
        elif sign == 35:  # and so has #, which is the last one [MQTT-4.7.1-1]
            if before != 47 or at < stop:
                return 0
        elif sign < 32:
            return 0
        before = sign
    return levels


def parse_shared(topic_filter: str) -> tuple[str, str]:
    """Take a shared subscription's filter apart: ("", filter) for an ordinary one, (share name, filter) otherwise.

    Only `$share/` makes a filter shared: "$share" and "$shared/x" are ordinary ones. The filter is not looked at
    beyond being there; give it to `validate_filter`. Section 4.8.2.

    Raises:
        MalformedPacket: the share name is empty, holds a wildcard, or no filter follows [MQTT-4.8.2-1] [MQTT-4.8.2-2].
    """
    if not topic_filter.startswith("$share/"):
        return "", topic_filter
    start = len(SHARE_PREFIX)
    end = topic_filter.find("/", start)
    if end < 0:
        raise _bad_filter("names a share and no filter")  # [MQTT-4.8.2-2]
    group = topic_filter[start:end]
    if not group:
        raise _bad_filter("has an empty share name")  # [MQTT-4.8.2-1]
    if "+" in group or "#" in group:
        raise _bad_filter("has a wildcard in its share name")  # [MQTT-4.8.2-2]
    rest = topic_filter[end + 1 :]
    if not rest:
        raise _bad_filter("names a share and no filter")  # [MQTT-4.8.2-2]
    return group, rest


def validate_topic(topic: str, max_levels: int = 0) -> None:
    """Check a topic name against section 4.7 [MQTT-4.7.0-1] [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3].

    `max_levels` is the server's own limit; 0 means none. It bounds what one name can cost in the retained tree.

    Raises:
        MalformedPacket: it is empty or too long, or holds a wildcard or U+0000.
        Refused: 0x90: more than `max_levels` levels.
    """
    if not topic:
        raise MalformedPacket("topic name is empty")
    if "+" in topic or "#" in topic:
        raise MalformedPacket("topic name holds a wildcard")
    if "\0" in topic:
        raise MalformedPacket("topic name holds U+0000")
    if len(topic) * 4 > MAX_BYTES and _utf8_length(topic) > MAX_BYTES:
        raise MalformedPacket(f"topic name is longer than {MAX_BYTES:,} bytes")
    if 0 < max_levels <= topic.count("/"):
        raise Refused(f"topic name has more than {max_levels} levels", reason_codes.TOPIC_NAME_INVALID)


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a well-formed filter matches a well-formed topic name; both without `$share/`.

    One pair at a time: for many filters there is the trie, for many topics the retained tree.
    """
    return topic_filter == topic or levels_match(topic_filter.split("/"), topic.split("/"))


def levels_match(filter_levels: list[str], levels: list[str]) -> bool:
    """Match a filter with a topic name, level by level; or with a filter, of which each topic has to match."""
    if levels[0].startswith("$") and filter_levels[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    end = len(levels)
    for at, level in enumerate(filter_levels):
        if level == "#":
            return True  # the level before it is matched too: "a/#" matches "a" (section 4.7.1.2)
        if at >= end or levels[at] == "#" or (level != "+" and level != levels[at]):
            return False
    return len(filter_levels) == end


def covers(wide: str, topic_filter: str) -> bool:
    """Return whether `wide` matches each topic that `topic_filter` matches. Both are valid, without `$share/name/`."""
    if wide == "+/#":
        # Every topic name has a first level.
        wide = "#"
    return levels_match(wide.split("/"), topic_filter.split("/"))


def intersect(one: str, other: str) -> str | None:
    """The topic filter that matches exactly the topics which both filters match; None where there is no such topic.

    Both are valid filters without `$share/name/`. There is never a need for two: level by level the narrower of both
    levels is taken, and `#` takes what the other filter has from there on, which is nothing where that one ends at the
    level before ("a/#" and "+" have "a" in common, section 4.7.1.2). "/#" and "+" have nothing in common: it would be
    the empty topic name, which is none [MQTT-4.7.3-1].
    """
    if one.startswith("$") != other.startswith("$"):
        return None  # [MQTT-4.7.2-1]
    mine = one.split("/")
    its = other.split("/")
    common: list[str] = []
    at = 0
    while at < len(mine) and at < len(its) and mine[at] != "#" and its[at] != "#":
        level = mine[at]
        if level == "+":
            level = its[at]
        elif its[at] != "+" and its[at] != level:
            return None
        common.append(level)
        at += 1
    if at < len(mine) and mine[at] == "#":
        common.extend(its[at:])
    elif at < len(its) and its[at] == "#":
        common.extend(mine[at:])
    elif len(mine) != len(its):
        return None
    return "/".join(common) or None


def overlaps(one: str, other: str) -> bool:
    """Return whether some topic name is matched by both filters. Both are valid and without `$share/name/`."""
    return intersect(one, other) is not None


def mount_topic(mount: bytes, topic: bytes) -> bytes | None:
    """Return the broker's name of a mounted client's topic; None: "$" begins it, or it would be too long.

    `mount`: the prefix, which consists of whole levels, ends in "/", has no wildcard and does not begin with "$". Names
    and filters are valid already, here and below.
    """
    if topic[0] == DOLLAR or len(mount) + len(topic) > MAX_BYTES:
        return None
    return mount + topic


def unmount_topic(mount: bytes, topic: bytes) -> bytes | None:
    """Return a mounted client's name of a topic of the broker; None: it has none, and so the client is not sent it.

    For the mount "tenant/a/" these are "tenant/a", which the filter "tenant/a/#" matches; "tenant/a/", which would be
    empty; and "tenant/a/$x", which the client's "#" would not match [MQTT-4.7.2-1].
    """
    size: i64 = len(mount)
    if len(topic) <= size or topic[size] == DOLLAR or not topic.startswith(mount):
        return None
    return topic[size:]


def mount_filter(mount: str, name: str) -> str | None:
    """Return the broker's name of a mounted client's filter; None: "$" begins it, or it would be too long.

    In a shared subscription the prefix goes behind `$share/name/`.
    """
    group, rest = parse_shared(name)
    if rest.startswith("$"):
        return None
    made = mount + rest
    if len(made) * 4 > MAX_BYTES and _utf8_length(made) > MAX_BYTES:
        return None
    return f"$share/{group}/{made}" if group else made


def _utf8_length(text: str) -> int:
    # A lone surrogate cannot be encoded; it never comes from the decoder, and counts here as what it would take.
    return len(text.encode("utf-8", "surrogatepass"))


def _bad_filter(why: str) -> MalformedPacket:
    return MalformedPacket(f"topic filter {why}")
