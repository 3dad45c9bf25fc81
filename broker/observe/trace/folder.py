"""The folder in which traces that have ended outlive the broker, as files for Wireshark.

Owns the names `canopy-TIME-NAME.pcapng` in it, and touches nothing else there. Promises: no more than `MOST_FILES` of
them, the oldest go first; nobody but the broker's user may read one; a file that is there is whole.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.observe.trace.kept import Trace
from broker.observe.trace.pcapng import blocks

MOST_FILES: Final = 32
"""Files of traces in the folder. Each is a little larger than its trace: `tracing.max_bytes` bounds them, too."""

_OURS: Final = re.compile(r"canopy-\d{8}T\d{6}Z-.+\.pcapng\Z")


def save(folder: Path, trace: Trace) -> Path:
    """Write a trace that has ended. It blocks: it is for a thread.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(trace.started_at))
    file = folder / f"canopy-{began}-{trace.name}.pcapng"
    draft = file.with_suffix(".part")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as opened:
            opened.writelines(blocks(trace.entries))
        draft.replace(file)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    # Their names begin with the time.
    ours = sorted(each for each in folder.iterdir() if _OURS.match(each.name))
    for old in ours[:-MOST_FILES]:
        old.unlink(missing_ok=True)
    return file
