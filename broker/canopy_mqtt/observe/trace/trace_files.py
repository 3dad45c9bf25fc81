"""The folder in which ended traces outlive the broker, as files for Wireshark.

Owns the names `canopy-TIME-NAME.pcapng` in it, and touches no other file. Promises: it keeps at most `MAX_FILES` of
them and deletes the oldest; only the broker's user may read them; each file is complete.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from canopy_mqtt.observe.trace.entries import Trace
from canopy_mqtt.observe.trace.pcapng import blocks

MAX_FILES: Final = 32
"""Files of traces in the folder. Each is a little larger than its trace, which `tracing.max_bytes` bounds."""

_OURS: Final = re.compile(r"canopy-\d{8}T\d{6}Z-.+\.pcapng\Z")


def save(folder: Path, trace: Trace) -> Path:
    """Write an ended trace. Blocks: run it in a thread.

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
    for old in ours[:-MAX_FILES]:
        old.unlink(missing_ok=True)
    return file
