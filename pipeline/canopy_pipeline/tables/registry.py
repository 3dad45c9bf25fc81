"""A schema registry: the schema of a number, over Confluent's HTTP API, which Karapace and Apicurio speak, too.

Promises: an answer takes at most three times the time-out and 3 seconds, and some MiB. A registry that does not answer
stops the job in a line; it makes no dead letters.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from canopy_pipeline.errors import PipelineError

_PAUSES: Final = (1.0, 2.0, None)
"""Seconds after each try that failed; None: it was the last one."""
_BYTES: Final = 4 << 20
"""Of an answer."""
_UNKNOWN: Final = range(40400, 40500)
"""The registry's own codes for what it does not have. A wrong address, or a proxy before it, answers without one."""


@dataclass(frozen=True)
class Registered:
    """A schema of a registry."""

    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    references: bool
    """True if it is made of other schemas, too."""


@dataclass(frozen=True)
class Registry:
    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    timeout: float = 10.0
    """Seconds for each step of a request."""

    def schema(self, number: int) -> Registered | None:
        """Return the schema of a number; None if the registry has none.

        Raises:
            PipelineError: the registry does not answer, or refuses to.
        """
        for pause in _PAUSES:
            try:
                status, body = self._get(f"/schemas/ids/{number}")
            except (OSError, HTTPException) as error:
                said = str(error) or type(error).__name__
            else:
                if status == 404 and _is_unknown(body):
                    return None
                if status in (401, 403):
                    raise PipelineError(
                        f"the registry {self.url} refuses to answer ({status}): see registry.user and "
                        "registry.password_file of the mapping"
                    )
                if status == 200:
                    return self._read(number, body)
                said = f"HTTP status {status}"
            if pause is not None:
                time.sleep(pause)
        raise PipelineError(f"the registry {self.url} does not answer ({said}): nothing was written of this batch")

    def _get(self, path: str) -> tuple[int, bytes]:
        """Answers are not followed elsewhere, where the password would go, too."""
        place = urlsplit(self.url)
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=self.timeout)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.user:
            headers["Authorization"] = "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()
        try:
            connection.request("GET", place.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_BYTES + 1)
        finally:
            connection.close()

    def _read(self, number: int, body: bytes) -> Registered:
        try:
            if len(body) > _BYTES:
                raise ValueError("too large")
            found = json.loads(body)
            return Registered(str(found.get("schemaType", "AVRO")), str(found["schema"]), bool(found.get("references")))
        except (ValueError, KeyError, AttributeError) as error:
            raise PipelineError(
                f"the registry {self.url} does not say what schema {number} is: is this a schema registry?"
            ) from error


def _is_unknown(body: bytes) -> bool:
    """Return whether it is the registry that says that it has no such schema."""
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("error_code") in _UNKNOWN
