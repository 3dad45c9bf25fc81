"""Decides which worker has a client: a number made of its client identifier, the same in each process and each run.

It is a jump consistent hash (Lamping and Veach, arXiv:1406.2294): of another number of workers, only the sessions of
those that are new, or gone, have another place.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

KEY_BYTES: Final = 8
_MASK: Final = (1 << 64) - 1
_MULTIPLIER: Final = 2_862_933_555_777_941_757


def worker_of(client_id: bytes, workers: int) -> int:
    """Return the number of the worker, from 0, of a client identifier in UTF-8."""
    key = int.from_bytes(blake2b(client_id, digest_size=KEY_BYTES).digest(), "big")
    chosen, following = 0, 0
    while following < workers:
        chosen = following
        key = (key * _MULTIPLIER + 1) & _MASK
        following = int((chosen + 1) * (1 << 31) / ((key >> 33) + 1))
    return chosen
