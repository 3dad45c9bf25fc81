"""What nodes that share their sessions tell each other, as MQTT messages (`store.shared.calls`).

A piece is one PUBLISH or several, with QoS 0, on a topic below `$node/` that no client can publish to another node. Who
cannot read one reads what its sessions have instead: what it said is in the database.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from canopy_mqtt.store.shared.calls import Changed, DeliveryKey, General, Hello, Hints, Members, Piece, Taken

HELLO: Final = b"$node/hello"
HINTS: Final = b"$node/hints"
TAKEN: Final = b"$node/taken"
GENERAL: Final = b"$node/general"
CHANGED: Final = b"$node/changed"
MEMBERS: Final = b"$node/members"

KEY: Final = struct.Struct(">QQQ")
"""Session, source and number of a delivery."""
EPOCH: Final = struct.Struct(">Q")
"""Of a claim; the client identifier follows, in UTF-8."""
NODE: Final = struct.Struct(">Q")
COUNT: Final = struct.Struct(">QQ")
"""The queue of a share group, and how many members there are."""

MAX_KEYS: Final = 2_048
"""Deliveries in one PUBLISH: more of them go in several, between which other packets have their turn."""


def encode(piece: Piece) -> Iterator[tuple[bytes, bytes]]:
    """Yield topic and payload of each PUBLISH of a piece."""
    match piece:
        case Hints(deliveries):
            for at in range(0, len(deliveries), MAX_KEYS):
                yield HINTS, b"".join(KEY.pack(*key) for key in deliveries[at : at + MAX_KEYS])
        case Taken(client_id, epoch):
            yield TAKEN, EPOCH.pack(epoch) + client_id.encode()
        case Members(node, counts):
            yield MEMBERS, NODE.pack(node) + b"".join(COUNT.pack(*each) for each in counts)
        case Hello():
            yield HELLO, b""
        case General():
            yield GENERAL, b""
        case Changed():
            yield CHANGED, b""


def decode(topic: bytes, payload: bytes) -> Piece:
    """Return the piece of a PUBLISH. What cannot be read is `General`: a newer node may tell more."""
    try:
        if topic == HINTS:
            return Hints([DeliveryKey(*key) for key in KEY.iter_unpack(payload)])
        if topic == TAKEN:
            (epoch,) = EPOCH.unpack_from(payload)
            return Taken(payload[EPOCH.size :].decode(), epoch)
        if topic == MEMBERS:
            (node,) = NODE.unpack_from(payload)
            return Members(node, list(COUNT.iter_unpack(payload[NODE.size :])))
    except (struct.error, UnicodeDecodeError):
        return General()
    if topic == CHANGED:
        return Changed()
    return Hello() if topic == HELLO else General()
