"""What can go wrong with a job, as one line for people each.

PipelineError            it could not be done: exit code 1
└─ MisuseError           it was asked for in a way that makes no sense: exit code 2
"""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
MISUSED: Final = 2


class PipelineError(Exception):
    """Why a job cannot be done; the message is one line that names the file or option, and the remedy."""

    exit_code = FAILED


class MisuseError(PipelineError):
    """The command line, or an option of the data source, is wrong."""

    exit_code = MISUSED
