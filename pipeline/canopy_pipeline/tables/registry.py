"""A schema registry: the schema of a number, over Confluent's HTTP API, which Karapace and Apicurio speak, too.

Promises: an answer has some MiB at most, and is there in time as a whole. A registry that does not answer stops the job
in a line; it makes no dead letters.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

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
    """Seconds for a whole answer."""

    def schema(self, number: int) -> Registered | None:
        """Return the schema of a number; None if the registry has none.

        Raises:
            PipelineError: the registry does not answer, or refuses to.
        """
        # It takes time, and most mappings have no registry.
        import aiohttp

        for pause in _PAUSES:
            try:
                status, body = asyncio.run(self._get(f"/schemas/ids/{number}"))
            except (OSError, aiohttp.ClientError) as error:
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

    async def _get(self, path: str) -> tuple[int, bytes]:
        import aiohttp

        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.user:
            headers["Authorization"] = "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()
        limit = aiohttp.ClientTimeout(total=self.timeout)
        # Answers are not followed elsewhere, where the password would go, too.
        async with (
            aiohttp.ClientSession(timeout=limit, headers=headers, auto_decompress=False) as session,
            session.get(self.url.rstrip("/") + path, allow_redirects=False) as answer,
        ):
            body = b""
            async for part in answer.content.iter_any():
                body += part
                if len(body) > _BYTES:
                    break
            return answer.status, body

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
