"""A tap on a broker's core, for tests: what it is told, as rows in the words of the table of recorded events.

Owns `Listening` (a `Tap` with a sink that takes everything at once, or lets it pile up while `stalled`) and `rows_of`,
which takes entries apart with the project's decoder: another way than the recorder's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import V5, V311, Publish
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.record.tap import DELIVER, NOTE, PUBLISH, RUN, Sink, Tap

Row = dict[str, Any]
Entry = tuple[Any, ...]

LARGEST: Final = 268_435_460


class Listening(Sink):
    """Who records in a test."""

    def __init__(self, deliveries: bool = False, max_events: int = 0, max_bytes: int = 0) -> None:
        self.memo = bytearray(8)
        self.time = 0
        self.tap = Tap(self._tick, self, self.memo, max_events, max_bytes, deliveries)
        self.stalled = False
        # How often enough had come together.
        self.handed = 0
        self.entries: list[Entry] = []

    def _tick(self) -> int:
        self.time += 1
        return self.time

    def hand_over(self) -> None:
        """See `Sink`."""
        self.handed += 1
        self.take()

    def take(self, last: bool = False) -> list[Entry]:
        """What has come together since the last call."""
        taken = self.tap.take(last)
        self.entries += taken
        if not self.stalled:
            self.written()
        return taken

    def written(self) -> None:
        """The thread has caught up."""
        self.tap.done_events = self.tap.put_events
        self.tap.done_bytes = self.tap.put_bytes

    def rows(self, *kinds: str, last: bool = False) -> list[Row]:
        """All that was told since the last call, or of it what is of some kinds."""
        self.take(last)
        found = rows_of(self.entries)
        self.entries = []
        return [row for row in found if not kinds or row["kind"] in kinds]

    def note(self) -> int:
        """The number that would outlive the process."""
        self.tap.note_number()
        return int.from_bytes(self.memo, "little")


def listen(
    router: Router, *filters: str, deliveries: bool = False, max_events: int = 0, max_bytes: int = 0
) -> Listening:
    """A tap on a router, for some topics or all."""
    made = Listening(deliveries, max_events, max_bytes)
    router.record(made.tap, filters or ("#",))
    return made


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """One row for each event, with the columns that it has."""
    rows: list[Row] = []
    for entry in entries:
        if entry[0] == RUN:
            rows += _burst(entry)
        elif entry[0] == PUBLISH:
            _, seq, _, topic, payload, qos, retain, properties, expiry, publisher, share = entry
            row: Row = {"seq": seq, "kind": "publish", "client_id": publisher or None, "topic": topic.decode()}
            row |= {"payload": payload, "qos": qos, "retain": retain}
            if properties:
                row["properties"] = properties
            if expiry >= 0:
                row["message_expiry"] = expiry
            if share:
                row["topic_filter"] = share
            rows.append(row)
        elif entry[0] == DELIVER:
            _, seq, _, client, ref, qos, retain, shared = entry
            row = {"seq": seq, "kind": "deliver", "client_id": client, "ref_seq": ref, "qos": qos, "retain": retain}
            if shared is not None:
                row["topic_filter"] = shared
            rows.append(row)
        else:
            assert entry[0] == NOTE
            rows.append({"seq": entry[1], "kind": entry[3], **entry[4]})
    return rows


def _burst(entry: Entry) -> list[Row]:
    _, first, _, data, count, v5, publisher = entry
    decoder = Decoder(LARGEST, server=True, version=V5 if v5 else V311)
    decoder.feed(data)
    rows: list[Row] = []
    while decoder.next_frame():
        packet = decoder.packet()
        assert isinstance(packet, Publish)
        assert (packet.qos, packet.retain, packet.properties, packet.topic_alias) == (0, False, b"", 0)
        row: Row = {"seq": first + len(rows), "kind": "publish", "client_id": publisher or None}
        row |= {"topic": packet.topic.decode(), "payload": packet.payload, "qos": 0, "retain": False}
        rows.append(row)
    assert len(rows) == count
    return rows
