"""Puts the parts of a record in order that no recorder has any more: those of workers that are fewer now, or of one
process.

Owns what is done for such a part at the start of the others: what its killed recorder left becomes a segment, and a gap
names what is lost, as at the next start of a recorder that stays. Blocks; never call it in an event loop.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from canopy_mqtt.record.files.folder import ENDED, Folder, RecorderError, noted, reason
from canopy_mqtt.record.files.parts import parts
from canopy_mqtt.record.tap import Sink, Tap
from canopy_mqtt.record.unpack import Rows
from canopy_mqtt.record.writer import Options, Writer, batch
from canopy_mqtt.store.division import name_of


def left_parts(directory: Path, workers: int, worker: int) -> list[Path]:
    """Return the parts that no recorder of this broker has: for the first worker, or the only process.

    `directory`: that of this recorder. `workers`: how many there are; 1: one process.
    """
    if workers == 1:
        return [each for each in parts(directory) if each != directory]
    present = [directory.parent / name_of(number) for number in range(workers)]
    return [each for each in parts(directory.parent) if each not in present] if worker == 0 else []


def settle_left_parts(options: Options, workers: int, worker: int, log: Any) -> None:
    """Put the parts in order that no recorder of this broker has: see `left_parts`."""
    settle(left_parts(options.directory, workers, worker), options, log)


def settle(folders: Sequence[Path], options: Options, log: Any) -> None:
    """Put these parts in order. What cannot be is logged, and left as it is."""
    for root in folders:
        state = noted(root)
        if state is None or state[1] == ENDED:
            continue
        try:
            _settle(root, options, log)
        except RecorderError as error:
            log.error("part of the record not put in order", directory=str(root), reason=str(error))
        except (OSError, pa.ArrowException) as error:
            log.error("part of the record not put in order", directory=str(root), reason=reason(error))


def _settle(root: Path, options: Options, log: Any) -> None:
    folder = Folder(root)
    left = folder.open()
    left.tell(log, directory=str(root))
    ended: int | None = None
    try:
        if left.missing is not None:
            tap = Tap(time.monotonic_ns, Sink(), folder.memo, 0, 0, False)
            tap.seq = left.last_seq
            tap.gap(*left.missing, left.why)
            rows, run_id = Rows(False), secrets.token_hex(4)
            rows.fill(tap.take(True), 0, 1)
            written = Writer(replace(options, directory=root, draft_seconds=0.0), lambda _: None)
            written.begin(run_id)
            written.write(batch(rows, run_id, (time.time_ns() - time.monotonic_ns()) // 1000))
            written.finish()
            tap.note_number()
        ended = ENDED
    finally:
        folder.close(ended)
