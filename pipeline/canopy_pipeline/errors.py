"""The errors of a job, each one line for people.

PipelineError            it could not be done: exit code 1
├─ GoneError            a segment was removed while it was to be read
├─ DamagedError         a segment is not what was written
├─ UnreadError          a stream cannot find what it was to read next
├─ AwayError            a database does not answer: a stream waits for it
└─ MisuseError           it was asked for in a way that makes no sense: exit code 2
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any, Final

FAILED: Final = 1
MISUSED: Final = 2
INCOMPLETE: Final = 3
"""The job is done over a record with missing parts: there are results, and they say so."""


SCHEMES: Final = (
    "Spark has no client for it; of S3 it reads s3a:// with --packages org.apache.hadoop:hadoop-aws:3.4.2, and what a "
    "cluster brings"
)


AWAY: Final = "move it away, and the job goes on without it and names it as missing"
"""The remedy for a segment that is damaged."""


FULL: Final = "no space left on device: make room for --output, and for temporary files (TMPDIR), and run it again"
DENIED: Final = (
    "the object store denies access: check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE) and "
    "what they may do there"
)
NO_BUCKET: Final = "there is no such bucket: make it, or check its name, AWS_REGION and AWS_ENDPOINT_URL"
_REMEDIES: Final = {
    r"no space left on device": FULL,
    r"access_?denied|invalid_?access_?key_?id|signature_?does_?not_?match": DENIED,
    r"no_?such_?bucket|bucket '[^']*' not found|bucket does not exist": NO_BUCKET,
}
"""The cause and the remedy, by what several clients of disks and object stores say, in lower case or not."""
_KEY: Final = re.compile(r"key '([^']*)' in bucket '([^']*)'")
_PLACE: Final = re.compile(
    r"""s3a?://[^\s'",)]+|bucket '[^']*'|(?<=file \\")/[^"\\]+|(?<=file ")/[^"]+|(?<=device: ')[^']+"""
)


class PipelineError(Exception):
    """A job cannot be done; the message is one line that names the file or option, and the remedy."""

    exit_code = FAILED


class GoneError(PipelineError):
    """A segment was removed while it was to be read."""


class UnreadError(PipelineError):
    """Numbers of a record that a stream has not read are gone, or were never there: it stops before them."""


class AwayError(PipelineError):
    """A database cannot be reached, or cannot do anything now; the same call may succeed later."""


class DamagedError(PipelineError):
    """A segment is not as it was written; the job uses nothing of it."""


class MisuseError(PipelineError):
    """The command line, or an option of the data source, is wrong."""

    exit_code = MISUSED


def needed(library: str, by: str, install: str) -> Any:
    """Import a library that an extra of Canopy's brings. `by`: what needs it, and `install`: the command, for people.

    Raises:
        MisuseError: it is not there.
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise MisuseError(f"{by} needs {error.name}: in a clone of Canopy run `make setup` or {install}") from error


def foreseen() -> tuple[type[Exception], ...]:
    """Return further errors that may stop a job without a fault of its program: of a disk, a storage, Spark itself."""
    if sys.modules.get("pyspark") is None:
        return (OSError,)
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
    from pyspark.errors import PySparkException

    return (OSError, PySparkException, Py4JJavaError)


def in_a_line(error: BaseException) -> str:
    """Return an error as one line for people; of an error of Spark's, its first line."""
    if known := with_remedy(str(error)):
        return known
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    java = getattr(error, "java_exception", None)
    text = str(java.toString() if java is not None else error)
    if "No FileSystem for scheme" in text:
        return f"{text.splitlines()[0]}: {SCHEMES}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def with_remedy(text: str) -> str:
    """Return one line for an error of a disk or an object store that people can mend: the place, if it is named, the
    cause, and the remedy. Empty for any other error."""
    for said, remedy in _REMEDIES.items():
        if re.search(said, text, re.IGNORECASE):
            key, place = _KEY.search(text), _PLACE.search(text)
            where = f"s3://{key[2]}/{key[1]}" if key else place[0] if place else ""
            return f"{where}: {remedy}" if where else remedy
    return ""
