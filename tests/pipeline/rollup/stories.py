"""Publishes for tests of the rollup: seeded, over some hours, with marks, without, and with what looks like marks."""

from __future__ import annotations

import random
from datetime import timedelta

from canopy_load.ledger.mark import pack, pack_text, run_number
from tests.pipeline.recorded import Story

RUN = run_number("12345678")


def traffic(messages: int, seed: int = 1, hours: float = 2.5, first_seq: int = 1) -> Story:
    """So many publishes over so long a time, and other events between them."""
    chance = random.Random(seed)
    story = Story(first_seq=first_seq)
    for at in range(messages):
        story.now = story.begin + timedelta(hours=hours * at / messages)
        # The clock of the marks: that of `recv_ns`, in microseconds.
        now = int((story.now - story.begin) / timedelta(microseconds=1)) + 1_000_000
        late = int(chance.expovariate(1 / 2_000))
        body = b"x" * chance.randrange(40)
        match at % 8:
            case 0 | 1 | 2:
                payload = pack(RUN, max(now - late, 1), at, at) + body
            case 3:
                payload = b'{"m":"' + pack_text(RUN, max(now - late, 1), at, at) + b'"}'
            case 4:
                payload = pack(RUN, 0, at, at)
            case 5:
                payload = pack(RUN, now + 5, at, at)
            case 6:
                payload = b"\x01\x7f" + b"\0" * 14
            case _:
                payload = body
        topic = f"site/{chance.randrange(3)}/device/{int(chance.paretovariate(1)) % 12}"
        client = None if at % 97 == 0 else f"client-{chance.randrange(9)}"
        story.publish(client, topic, payload, qos=chance.randrange(3), retain=chance.random() < 0.1)
        if at % 50 == 0:
            story.subscribe("s", f"site/{at}/#")
    return story
