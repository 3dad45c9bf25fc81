"""Inputs for the fuzz targets: the wire cases, mutated with the structure of MQTT in mind.

Owns how bytes are spoilt. The same seed gives the same inputs. It does not know what reads them.
"""

from __future__ import annotations

import random
from typing import Final

from canopy_mqtt.core.codec.primitives import varint
from tests.core.codec.wire_cases import CASES

CORPUS: Final = tuple(dict.fromkeys(case.raw for case in CASES))

# Bytes that mean something somewhere: lengths, edges of integers, flags, UTF-8 lead bytes, separators and wildcards.
_TELLING: Final = b"\x00\x01\x02\x03\x04\x05\x0b\x1f\x22\x26\x7f\x80\x81\xc0\xc3\xed\xf4\xff/+#$"


def _replace(raw: bytearray, rng: random.Random) -> None:
    raw[rng.randrange(len(raw))] = rng.choice(_TELLING) if rng.random() < 0.7 else rng.randrange(256)


def _flip(raw: bytearray, rng: random.Random) -> None:
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _remove(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw))
    del raw[at : at + rng.randint(1, 4)]


def _insert(raw: bytearray, rng: random.Random) -> None:
    at = rng.randint(0, len(raw))
    raw[at:at] = bytes(rng.choice(_TELLING) for _ in range(rng.randint(1, 4)))


def _repeat(raw: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(raw))
    piece = raw[at : at + rng.randint(1, 12)]
    raw[at:at] = piece * rng.randint(1, 3)


def _splice(raw: bytearray, rng: random.Random) -> None:
    other = rng.choice(CORPUS)
    at = rng.randrange(len(raw))
    raw[at:] = other[rng.randrange(len(other)) :]


_MUTATIONS: Final = (_replace, _replace, _flip, _remove, _insert, _repeat, _splice)


def _mend(raw: bytearray) -> bytes:
    """Make the Remaining Length true again, so that the body is looked at."""
    at = 1
    while at < min(len(raw), 4) and raw[at] & 128:
        at += 1
    body = bytes(raw[at + 1 :])
    return bytes(raw[:1]) + varint(len(body)) + body


def packet(rng: random.Random) -> bytes:
    """One packet, more or less spoilt; now and then noise."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randint(1, 40))
    raw = bytearray(rng.choice(CORPUS))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        if raw:
            rng.choice(_MUTATIONS)(raw, rng)
    return _mend(raw) if raw and rng.random() < 0.8 else bytes(raw)


def stream(rng: random.Random) -> bytes:
    """What a connection could send: one packet, or a few."""
    return b"".join(packet(rng) for _ in range(rng.choice((1, 1, 1, 2, 4))))


def cut(raw: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes as a few reads."""
    cuts = sorted(rng.randint(0, len(raw)) for _ in range(rng.randint(0, 4)))
    return [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
