"""Attacks on who comes in: guessed passwords, names and passwords that are huge, tokens that are forged or stale.

The broker has authenticators (`place.guards`). Each attack first comes in as it should, so that what refuses it is what
it does wrong; one that is let in with that has succeeded, and ends as failed.
"""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, cycle
from typing import Final

from benchmarks.attack.attacked_broker import PASSWORD, SECRET, USER, token
from benchmarks.attack.field import ATTACKS, CROWD, Attack, Field, Hostile, Refused, attack
from canopy_mqtt.core.codec.packets import V5, Connect

AT_ONCE: Final = 300
"""Connections that wait for their answers at a time."""
DELAY: Final = 1.2
"""Seconds after which a client is told that it is refused, and a little."""
GUESSES: Final = 30
"""Guesses of one address over HTTP that may be answered: `security.ban_after`, and those under way then."""
HUGE: Final = 48_000
"""Bytes each of a user name and a password that a CONNECT of 100,000 bytes still has room for."""
OWN: Final = "127.255.0.1"
"""The address of the attacker where it comes in as it should."""


class WronglyAdmitted(Exception):
    """The broker has admitted a client that it must refuse."""


def addresses() -> Iterator[str]:
    """Yield addresses of this machine, each another one; none is that of the well-behaved clients."""
    for number in count(1):
        yield f"127.{1 + number // 62_500 % 250}.{number // 250 % 250}.{1 + number % 250}"


def knocks(field: Field, source: str, user: str, password: bytes) -> Hostile:
    """Open a connection and send a CONNECT with these credentials."""
    hostile = field.socket(source=source)
    hostile.packets([Connect("", V5, user_name=user, password=password)])
    return hostile


def comes_in(field: Field, user: str, password: bytes) -> Hostile:
    """Return a client with the right credentials, which is let in."""
    hostile = knocks(field, OWN, user, password)
    hostile.wait_for("CONNACK")
    if not hostile.accepted:
        raise Refused(f"{user} was not let in with the right credentials")
    return hostile


def guess(field: Field, tries: Iterable[tuple[str, str, bytes]], at_once: int = AT_ONCE) -> None:
    """Try addresses, users and passwords, so many at a time, each until it has its answer or is the oldest by far."""
    waiting: deque[Hostile] = deque()
    for each in tries:
        if field.over:
            break
        if len(waiting) >= field.some(at_once):
            oldest = waiting.popleft()
            # Its answer is a second away. There is nothing else to wait for: all the others wait, too.
            oldest.wait_for("CONNACK", timeout=max(0.0, field.until - time.monotonic()))
            refuse(oldest)
        waiting.append(knocks(field, *each))
    field.listen(DELAY)
    for hostile in waiting:
        refuse(hostile)


def refuse(hostile: Hostile) -> None:
    """Check that a client was not let in, and close it."""
    if hostile.accepted:
        raise WronglyAdmitted("a client was let in with credentials that are none")
    hostile.close()


@attack(guarded=True)
def passwords_guessed_from_one_address(field: Field) -> None:
    """One address that tries one password of a user after the other, 300 at a time"""
    comes_in(field, USER, PASSWORD).close()
    guess(field, (("127.0.0.2", USER, b"guess %d" % number) for number in count()))


@attack(growth=CROWD, guarded=True)
def passwords_guessed_from_many_addresses(field: Field) -> None:
    """Passwords of one user from an address each, 2,000 at a time"""
    comes_in(field, USER, PASSWORD).close()
    guess(field, ((source, USER, b"guess %d" % number) for number, source in enumerate(addresses())), 2_000)


@attack(growth=CROWD, guarded=True)
def huge_names_and_passwords(field: Field) -> None:
    """User names and passwords of 48,000 bytes from an address each, 4,000 at a time"""
    comes_in(field, USER, PASSWORD).close()
    name, password = "n" * HUGE, b"p" * HUGE
    guess(field, ((source, f"{number}{name}", password) for number, source in enumerate(addresses())), 4_000)


@attack(growth=CROWD, guarded=True)
def share_groups_without_permission(field: Field) -> None:
    """1,500 clients in a share group whose messages they may not have, beside the one member that may"""
    worker = comes_in(field, USER, PASSWORD)
    worker.subscribe(["$share/workers/secret/#"])
    for _ in field.rounds(1_500):
        field.client().subscribe(["$share/workers/secret/#"])
    sent = 0
    while not field.over:
        worker.publish(b"secret/%d" % (sent % 20), b"x")
        sent += 1
        if not worker.wait_for("PUBLISH", sent):
            break
    if worker.seen["PUBLISH"] < sent and not field.over:
        raise WronglyAdmitted(
            f"{sent - worker.seen['PUBLISH']} of {sent} messages did not come to the one that may have them"
        )


@attack(guarded=True)
def operators_passwords_guessed(field: Field) -> None:
    """One address that tries one password of an operator after the other over HTTP, on four connections: those up to
    its ban are answered, and no more"""
    asking: dict[Hostile, int] = {}
    for number in count():
        if field.over:
            break
        for hostile in [each for each in asking if each.closed]:
            del asking[hostile]
        while len(asking) < 4:
            asking[field.socket("http", source="127.0.0.2")] = 0
        for hostile, asked in asking.items():
            hostile.drain()
            if hostile.seen["HTTP"] == asked:
                given = base64.b64encode(f"{USER}:guess {number} {id(hostile)}".encode()).decode()
                hostile.send(f"GET /api/v5/status HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {given}\r\n\r\n".encode())
                asking[hostile] += 1
        time.sleep(0.001)
    field.listen(DELAY)
    if (answered := field.answers["HTTP 401"]) > GUESSES:
        raise WronglyAdmitted(f"{answered} guesses of one address were answered")


def _forged() -> list[bytes]:
    none, right, late = token("none"), token(), int(time.time()) - 3600
    return [
        none,
        none[:-1] + right[right.rindex(b".") :],
        token(exp=late),
        token(nbf=late + 7200),
        token(aud="somebody else"),
        token(secret="another secret, as long as that of the broker"),
        token("HS512", secret=SECRET * 2),
        token(exp=None),
    ]


def _controlling() -> list[bytes]:
    return [token(sub=f"device{character}") for character in ("\0", "\n", "\x1b[2J", "\x7f", "\x85")]


TOKENS: Final[dict[str, tuple[str, Callable[[], list[bytes]]]]] = {
    "forged-tokens": ("Tokens without a signature, expired, for somebody else, of another secret", _forged),
    "control-characters-in-tokens": (
        "Tokens with a signature that is right, for users whose names have control characters",
        _controlling,
    ),
    "giant-tokens": (
        "Tokens of 60,000 bytes with a signature that is right",
        lambda: [token(groups=["g" * 100] * 450)],
    ),
}


def _tokens(make: Callable[[], list[bytes]]) -> Callable[[Field], None]:
    def run(field: Field) -> None:
        comes_in(field, "device", token()).close()
        guess(field, zip(addresses(), cycle(["device"]), cycle(make()), strict=False))

    return run


for name, (about, make) in TOKENS.items():
    ATTACKS[name] = Attack(f"{about}, from an address each", _tokens(make), CROWD, guarded=True)
