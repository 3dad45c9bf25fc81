"""The checksums that a store keeps beside each row, so that a byte that changed on the disk is found.

Owns their meaning, which is part of the format of a store. Promises: a checksum covers all columns that matter of a
row, which table it is in, and its key, so that a row in the place of another is found, too; equal rows have equal
checksums in every Python. What changes in place without the rest of the row being read is not in the CRC but above its
32 bits (`SHIFT`), so that one statement changes both: whether retained messages are on their way to a subscription, the
state of a delivery, and how many deliveries share a message. CRC-32 finds each change of up to 32 bits in a row, and
all but one of 4 billion others. It is no protection against people who write the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final
from zlib import crc32

from canopy_mqtt.core.queues.delivery import RELEASED
from canopy_mqtt.store.group_commit.batch import PLAIN_COLUMNS

SHIFT: Final = 32
LOW: Final = 0xFFFF_FFFF
"""The bits of a CRC; the rest of a checksum is the part that changes in place."""

NO_TIME: Final = -1e300
NONE: Final = 255
"""Stands for a byte that is missing. Others go in as they are: a value of another type is no byte."""

_MESSAGE: Final = Struct("<cqBBd4q").pack
_DELIVERY: Final = Struct("<cqqqBBBBqd6q").pack
_SUBSCRIPTION: Final = Struct("<cqBBBBqqdq").pack
_STATE: Final = Struct("<cqqq").pack
_NUMBER: Final = Struct("<q").pack
_TIME: Final = Struct("<d").pack


def _values(kind: bytes, values: tuple[Any, ...]) -> int:
    """The CRC of numbers, times, texts and bytes, each with its type and length."""
    parts = [kind]
    for value in values:
        if value is None:
            parts.append(b"-")
        elif isinstance(value, str):
            data = value.encode()
            parts += (b"s", _NUMBER(len(data)), data)
        elif isinstance(value, int):
            parts += (b"i", _NUMBER(value))
        elif isinstance(value, float):
            parts += (b"d", _TIME(value))
        else:
            parts += (b"b", _NUMBER(len(value)), value)
    return crc32(b"".join(parts))


def _time(value: Any) -> float | None:
    return None if value is None else float(value)


def _session(row: Sequence[Any]) -> int:
    number, client_id, principal, expiry_interval, disconnected_at = row[:5]
    return _values(b"S", (number, client_id, principal, expiry_interval, _time(disconnected_at)))


def _will(row: Sequence[Any]) -> int | None:
    *will, due = row[5:13]
    return None if due is None and will.count(None) == len(will) else _values(b"W", (row[0], *will, _time(due)))


def of_session(row: Sequence[Any]) -> tuple[int, int | None]:
    """Return the checksums of a session and of its will, None: there is no will."""
    return _session(row), _will(row)


def of_subscription(row: Sequence[Any]) -> tuple[int]:
    session, name, qos, no_local, as_published, handling, identifier, streaming, policy, max_age, depth = row
    crc = crc32(
        _SUBSCRIPTION(
            b"F", session, qos, no_local, as_published, handling, identifier,
            -2 if policy is None else policy, NO_TIME if max_age is None else max_age, -1 if depth is None else depth,
        )
    )  # fmt: skip
    return (crc32(name.encode(), crc) | streaming << SHIFT,)


def _message(
    kind: bytes, number: int, topic: str, payload: bytes, qos: int, retain: int, properties: bytes | None,
    publisher: str | None, expires_at: float | None,
) -> int:  # fmt: skip
    name = topic.encode()
    crc = crc32(
        _MESSAGE(
            kind, number, qos, retain, NO_TIME if expires_at is None else expires_at, len(name), len(payload),
            -1 if properties is None else len(properties), -1 if publisher is None else len(publisher),
        )
    )  # fmt: skip
    crc = crc32(payload, crc32(name, crc))
    if properties is not None:
        crc = crc32(properties, crc)
    return crc if publisher is None else crc32(publisher.encode(), crc)


def of_message(row: Sequence[Any]) -> tuple[int]:
    number, refs, topic, payload, qos, retain, properties, publisher, expires_at = row
    crc = _message(b"M", number, topic, payload, qos, retain, properties, publisher, expires_at)
    return (crc | refs << SHIFT,)


def of_retained(row: Sequence[Any]) -> tuple[int]:
    topic, payload, qos, properties, publisher, expires_at, account = row
    crc = _message(b"R", 0, topic, payload, qos, 1, properties, publisher, expires_at)
    return (crc if account is None else crc32(account.encode(), crc),)


def of_broadcast(row: Sequence[Any]) -> tuple[int]:
    number, topic, payload, qos, retain, properties, publisher, expires_at = row
    return (_message(b"B", number, topic, payload, qos, retain, properties, publisher, expires_at),)


def state_of(number: int, state: int, packet_id: int, attempts: int) -> int:
    """Return the checksum of the state of a delivery; 0: it waits and was never sent."""
    if state == 0 and packet_id == 0 and attempts == 0:
        return 0
    return crc32(_STATE(b"d", number, packet_id, attempts)) | state << SHIFT


def of_released(number: int, session: int) -> int:
    """Return the checksum of a delivery of which only the number is needed."""
    return crc32(_STATE(b"r", number, session, RELEASED))


def of_delivery(row: Sequence[Any]) -> tuple[int, int]:
    """Return the checksums of a delivery and of its state."""
    (
        number, session, message, state, packet_id, attempts, qos, retain, identifiers, share, topic, payload,
        publish_qos, publish_retain, properties, publisher, expires_at, size,
    ) = row  # fmt: skip
    became = state_of(number, state, packet_id, attempts)
    if state == RELEASED:
        return of_released(number, session), became
    texts = [None if each is None else each.encode() for each in (identifiers, share, topic, publisher)]
    rest = (texts[0], texts[1], texts[2], payload, properties, texts[3])
    crc = crc32(
        _DELIVERY(
            b"D", number, session, -1 if message is None else message, qos, retain,
            NONE if publish_qos is None else publish_qos, NONE if publish_retain is None else publish_retain,
            -1 if size is None else size, NO_TIME if expires_at is None else expires_at,
            *(-1 if each is None else len(each) for each in rest),
        )
    )  # fmt: skip
    for each in rest:
        if each is not None:
            crc = crc32(each, crc)
    return crc, became


def of_received(row: Sequence[Any]) -> tuple[int]:
    """Return the checksum of the packet identifier of a publish that was begun."""
    return (_values(b"P", tuple(row)),)


def of_passed(row: Sequence[Any]) -> tuple[int]:
    """Return the checksum of a session that has had a message for very many."""
    return (_values(b"A", tuple(row)),)


def of_gone(number: int) -> int:
    return _values(b"G", (number,))


def of_read_back(session: int, number: int) -> int:
    """Return the checksum of how far the queue of a session is in memory again."""
    return _values(b"Q", (session, number))


OF: Final[dict[str, Callable[[Sequence[Any]], tuple[int | None, ...]]]] = {
    "session": of_session,
    "subscription": of_subscription,
    "received": of_received,
    "message": of_message,
    "delivery": of_delivery,
    "retained": of_retained,
    "broadcast": of_broadcast,
    "passed": of_passed,
}
"""By table: the checksums of a row, which stand behind its other columns, in their order."""

AMOUNT: Final = {"session": 2, "delivery": 2}
"""The number of checksums of a row, by table, if it is not one."""


EXPIRES: Final = {"delivery": 16, "message": 8}
"""Where the time stands at which a message expires, in tables that are read back as JSON."""

MILLISECONDS: Final = 3
"""Digits of a time behind the point."""


def amount(table: str) -> int:
    return AMOUNT.get(table, 1)


def fill(table: str, values: list[Any], columns: int) -> None:
    """Put the checksums at the ends of rows of `columns` values, which stand one behind the other. The times at which
    messages expire are rounded, so that they are the same when SQLite has written them as JSON."""
    of, count, expires = OF[table], amount(table), EXPIRES.get(table, 0)
    for end in range(columns, len(values) + 1, columns):
        if expires and (when := values[end - columns + expires]) is not None:
            values[end - columns + expires] = round(when, MILLISECONDS)
        values[end - count : end] = of(values[end - columns : end - count])


def fill_plain(values: list[Any]) -> None:
    """Put the checksums into the rows of plain deliveries (`PLAIN_COLUMNS`)."""
    rows = iter(values)
    end = PLAIN_COLUMNS - 1
    for number, session, qos, topic, payload, publish_qos, properties, publisher, expires_at, size, _ in zip(
        *[rows] * PLAIN_COLUMNS, strict=True
    ):
        if expires_at is not None:
            expires_at = values[end - 2] = round(expires_at, MILLISECONDS)
        name = topic.encode()
        by = None if publisher is None else publisher.encode()
        crc = crc32(
            _DELIVERY(
                b"D", number, session, -1, qos, 0, publish_qos, 0, -1 if size is None else size,
                NO_TIME if expires_at is None else expires_at, -1, -1, len(name), len(payload),
                -1 if properties is None else len(properties), -1 if by is None else len(by),
            )
        )  # fmt: skip
        crc = crc32(payload, crc32(name, crc))
        if properties is not None:
            crc = crc32(properties, crc)
        values[end] = crc if by is None else crc32(by, crc)
        end += PLAIN_COLUMNS


def fault(table: str, row: Sequence[Any]) -> str:
    """Return why a row with its checksums is not what a broker wrote; empty: it is. For a will see `will_fault`."""
    try:
        if table == "session":
            right = _session(row) == row[-2]
        elif table == "delivery":
            right = of_delivery(row[:-2]) == tuple(row[-2:])
        else:
            right = OF[table](row[:-1])[0] == row[-1]
    except Exception as error:  # a wrong type, a number without bounds, half a character
        return f"its values are none: {' '.join(str(error).split())}"
    return "" if right else "its checksum is another"


def will_fault(row: Sequence[Any]) -> str:
    """Return the same for the will in a row of the sessions."""
    try:
        return "" if _will(row) == row[-1] else "its checksum is another"
    except Exception as error:
        return f"its values are none: {' '.join(str(error).split())}"
