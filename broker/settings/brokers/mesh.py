"""`[mesh]`: the brokers that are one together with this one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from broker.settings.values import MOST_BYTES, Section, wrong

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")
_PLACE: Final = re.compile(r"(tcp|tls|quic|unixsock-stream)/\S+")


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise wrong("letters, digits, - and _, at most 64")
    return name


def _places(places: Sequence[str]) -> tuple[str, ...]:
    for at, place in enumerate(places):
        if not _PLACE.fullmatch(place):
            raise wrong("an address like tcp/HOST:7447, tls/HOST:7447 or unixsock-stream/PATH", f"[{at}]", place)
    return tuple(places)


class Mesh(Section):
    """Whom this broker is one broker with. Needs the extra `mesh`."""

    name: Annotated[str, AfterValidator(_name)] = ""
    """What the mesh is called; its nodes have the same name. Empty: this broker is on its own."""
    node: Annotated[str, AfterValidator(_name)] = ""
    """What this node is called, as no other is. Empty: a random name at each start."""
    listen: Annotated[Sequence[str], AfterValidator(_places)] = ()
    """Where other nodes reach this one, as tcp/0.0.0.0:7447, tls/HOST:PORT or unixsock-stream/PATH. Always a tuple
    after validation."""
    connect: Annotated[Sequence[str], AfterValidator(_places)] = ()
    """Where other nodes are reached; each is tried until it is there. Always a tuple after validation."""
    scouting: bool = False
    """Whether nodes find each other by multicast in the local network."""
    ca_file: str = ""
    """The authorities whose certificates other nodes have, for tls/."""
    cert_file: str = ""
    """This node's certificate, for tls/: nodes prove to each other who they are."""
    key_file: str = ""
    """The key of `cert_file`."""
    node_timeout: Annotated[float, Field(ge=0.5, le=3_600, allow_inf_nan=False)] = 10.0
    """Seconds without a sign of life after which a node counts as gone. A node that starts waits as long at most for
    those it knows, before it takes clients."""
    confirm_timeout: Annotated[float, Field(ge=0.1, le=3_600, allow_inf_nan=False)] = 5.0
    """Seconds that a client's SUBACK, PUBACK or CONNACK waits for other nodes at most."""
    local_members_first: bool = False
    """Whether a message for a share group goes to a node only where no client here takes it."""
    node_expiry: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 300.0
    """Seconds that what is published waits for a node that is gone."""
    dead_after: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 30.0
    """Seconds after which a node that is gone counts as dead: the wills of its clients are published, and they are told
    to be offline (`presence.topic`)."""
    adopt_sessions: bool = False
    """Whether the sessions of a dead node, in a schema of the same database (`store.url`), are taken over by another
    one. All nodes have the same."""
    queue_bytes: Annotated[int, Field(ge=4_194_304, le=MOST_BYTES)] = 67_108_864
    """Bytes that wait for another node at most; with more it counts as gone, and begins anew. At least twice what the
    mesh itself has on the way to a node: sessions, retained messages, wills."""
    pipe_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 1_048_576
    """Bytes of messages that are on the way to another node at most."""
    max_node_filters: Annotated[int, Field(ge=64, le=100_000_000)] = 1_000_000
    """Topic filters that are taken from one other node at most; it tells wider ones where it has more."""
    max_node_filter_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 268_435_456
    """Bytes of them at most."""
    max_node_will_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 67_108_864
    """Bytes of the wills of one other node's clients that are kept at most, to be published when it dies."""
    max_filters: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Topic filters that other nodes are told at most: beyond, filters are folded. 0: each filter as it is."""
    max_clock_ahead: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 60.0
    """Seconds that another node's clock may be ahead of this one's: what it retains with a later time counts as
    retained when it came here."""
    tombstone_time: Annotated[float, Field(ge=60, le=31_536_000, allow_inf_nan=False)] = 3_600.0
    """Seconds for which it is known that a topic's retained message was cleared: a node that was away for longer, and
    has it still, brings it back."""
    tombstone_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 33_554_432
    """Bytes that knowing so takes at most; beyond, what has the least time left is forgotten."""
    digest_interval: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 60.0
    """Seconds after which two nodes compare again what they retain."""

    @model_validator(mode="after")
    def _whole(self) -> Mesh:
        if self.queue_bytes < 4 * self.pipe_bytes:
            # Two pipes between two nodes, each full both ways, and what else is said.
            raise wrong(f"at least 4 times mesh.pipe_bytes ({self.pipe_bytes})", ".queue_bytes", self.queue_bytes)
        tls = [place for place in (*self.listen, *self.connect) if place.startswith(("tls/", "quic/"))]
        for key in ("ca_file", "cert_file", "key_file") if tls else ():
            if not getattr(self, key):
                raise wrong(f"a file, because of {tls[0]}", f".{key}", "")
        return self
