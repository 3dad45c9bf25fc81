"""The decoder under random and mutated bytes.

What must hold for every input: it is decoded, or refused with a `ProtocolError` that has a reason code of 0x80 or more;
a frame lies within what was fed; cutting the input into other reads changes nothing; and every packet that was accepted
is written by the encoder and read back as the same packet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import Packet
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from tests.fuzz.finding import Finding
from tests.fuzz.mutate import cut, stream
from tests.support.frames import pending_size

MAX_PACKET_SIZE: Final = 4096


@dataclass
class Outcome:
    """What became of one input: the packets, each with the version in force when it was read, and the error if any."""

    packets: list[tuple[int, Packet]] = field(default_factory=list)
    refused: tuple[type[ProtocolError], int] | None = None
    pending: int = 0


def decode(reads: list[bytes], server: bool, version: int) -> Outcome:
    """Feed the reads and take out what is there after each; anything but a `ProtocolError` goes through."""
    decoder = Decoder(MAX_PACKET_SIZE, server, version)
    outcome = Outcome()
    fed = 0
    taken = 0
    try:
        for read in reads:
            decoder.feed(read)
            fed += len(read)
            while decoder.next_frame():
                start, body, end = decoder.start, decoder.body, decoder.end
                if not start < body <= end <= len(decoder.buffer):
                    raise Finding("a frame outside the buffer", start=start, body=body, end=end)
                taken += end - start
                packet = decoder.packet()
                outcome.packets.append((decoder.version, packet))
            if pending_size(decoder) != fed - taken:
                raise Finding("bytes went missing", fed=fed, taken=taken, pending=pending_size(decoder))
        outcome.pending = pending_size(decoder)
    except ProtocolError as error:
        if not 0x80 <= error.reason_code <= 0xFF:
            raise Finding("a refusal without a reason code of its own", code=error.reason_code) from error
        outcome.refused = (type(error), error.reason_code)
    return outcome


def check(raw: bytes, reads: list[bytes], server: bool, version: int) -> Outcome:
    """One input: hold it against every promise.

    Raises:
        Finding: one is broken.
    """
    facts: dict[str, object] = {"raw": raw, "reads": reads, "server": server, "version": version}
    try:
        whole = decode([raw], server, version)
        parts = decode(reads, server, version)
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"{type(error).__name__} instead of a ProtocolError: {error}", **facts) from error
    if whole != parts:
        raise Finding("cutting the input changed what it means", whole=whole, parts=parts, **facts)
    for spoken, packet in whole.packets:
        first = isinstance(packet, p.Connect)
        try:
            written = encode(packet, spoken)
            again = decode([written], server, 0 if first else spoken)
        except Exception as error:
            raise Finding(f"accepted, but not to be written: {error}", packet=packet, **facts) from error
        # Written in full a packet can be longer than the one that was accepted, but never by much.
        if len(written) <= MAX_PACKET_SIZE and again.packets != [(spoken, packet)]:
            raise Finding("comes back as another packet", packet=packet, again=again, **facts)
    return whole


def run(seed: int, stop: Callable[[], bool]) -> int:
    """Inputs until `stop()`; how many there were.

    Raises:
        Finding: an input broke a promise.
    """
    rng = random.Random(seed)
    count = 0
    while not stop():
        raw = stream(rng)
        check(raw, cut(raw, rng), rng.random() < 0.7, rng.choice((0, 0, 3, 4, 4, 5, 5, 5)))
        count += 1
    return count
