"""`canopy load replay`: a capture becomes a job.

Owns: what is asked of a replay, and the scenario in which it is played: a group of publishers that play the recording,
and a group of subscribers that check it.

Promises: the job is played, judged and reported like every other. Times, sizes, topics, QoS and RETAIN are the
capture's; payloads are marks and filler of the recorded size, at least `SIZE` bytes; of MQTT 5.0 properties, none.

What is in the capture is played once: there is no loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from canopy_load.capture.recording import OPEN_END, PUBLISHERS, Recording
from canopy_load.capture.replay_spool import scan
from canopy_load.engine.job import Job, Target
from canopy_load.errors import Misuse
from canopy_load.ledger.mark import SIZE
from canopy_load.scenario import toml_text
from canopy_load.scenario.scenario_schema import Scenario
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.words import counted

SUBSCRIBERS: Final = "subscribers"
TAIL: Final = 0.05
"""Seconds by which the stage outlasts the last message."""
MIN_SPEED: Final = 0.001
MAX_SPEED: Final = 1_000_000.0


@dataclass(frozen=True)
class ReplayOptions:
    speed: float = 1.0
    """Infinite: as fast as the sockets take it."""
    publishers: int = 1
    subscribers: int = 1
    filters: Sequence[str] = ()
    """Empty: the capture's own, else `#`."""
    prefix: str = ""
    version: Literal["3.1.1", "5.0"] = "5.0"


def parse_speed(text: str) -> float:
    """Parse a speed: `10x`, `0.5x`, `10`, or `max`, which is infinite.

    Raises:
        Misuse: it is something else; the message says what would do.
    """
    if text == "max":
        return math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise Misuse(f"--speed {text}: not a speed from {MIN_SPEED:g}x to {MAX_SPEED:,.0f}x, and not max")
    return speed


def prepare(capture: Path, asked: ReplayOptions, targets: list[Target]) -> Job:
    """Return the job that replays a capture. Blocks: it reads the whole capture once.

    Raises:
        CaptureError: it is none, is empty, or cannot be replayed as asked.
        ValidationError: what is asked for makes no scenario (a filter that is too long, for one).
    """
    recording = scan(str(capture), asked.prefix, asked.publishers)
    data = _scenario(capture, recording, asked)
    scenario = Scenario.model_validate(data)
    return Job(
        scenario,
        f"# Publishers play the capture {capture.name}.\n{toml_text.dumps(data)}",
        targets,
        replay=str(capture),
        speed=asked.speed,
        prefix=asked.prefix,
        notes={"replay": summary(recording, asked.speed)},
    )


def summary(recording: Recording, speed: float) -> str:
    """Describe the replay in a sentence."""
    messages, topics = counted(recording.messages, "message"), counted(recording.topics, "topic")
    text = f"{messages} on {topics}, recorded in {recording.seconds:,.1f} s, "
    text += "as fast as it goes" if math.isinf(speed) else f"at {speed:g}x"
    if recording.small:
        text += f"; {recording.small:,} of them have less than {SIZE} bytes and are sent with {SIZE}"
    return text


def _scenario(capture: Path, recording: Recording, asked: ReplayOptions) -> dict[str, Any]:
    seconds = OPEN_END if math.isinf(asked.speed) else round(recording.seconds / asked.speed + TAIL, 3)
    filters = list(asked.filters) or [_inner(asked.prefix, each) for each in recording.filters] or [f"{asked.prefix}#"]
    common = {"scaled": False, "version": asked.version}
    return {
        "name": "replay-" + (re.sub(r"[^A-Za-z0-9._-]+", "-", capture.stem or capture.name)[:80] or "capture"),
        "description": summary(recording, asked.speed),
        "stages": [{"name": "replay", "seconds": seconds}],
        "groups": [
            {
                "name": SUBSCRIBERS,
                "clients": asked.subscribers,
                **common,
                # As they are: no pattern stands in them.
                "subscribe": [{"filter": each.replace("%", "%%"), "qos": recording.highest} for each in filters],
            },
            {"name": PUBLISHERS, "clients": asked.publishers, **common},
        ],
    }


def _inner(prefix: str, topic_filter: str) -> str:
    """Return a filter of the capture below the prefix; of a shared subscription, the filter inside."""
    try:
        return prefix + parse_shared(topic_filter)[1]
    except ProtocolError:
        return f"{prefix}#"
