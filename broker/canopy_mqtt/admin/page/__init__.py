"""The page: its files, as they stand in `static`, and their headers.

Promises: only the listed files are served, whatever the path of a request; a browser runs and loads only these files,
and turns no text into HTML. The files contain nothing of the broker, so everybody may load them; their data comes from
`/events` and the API, with the roles of these.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from canopy_mqtt.admin.routing import Call, Handler, Route

STATIC: Final = Path(__file__).parent / "static"

FILES: Final = (
    "api.js", "app.js", "charts.js", "client.js", "dom.js", "explain.js", "findings.js", "format.js", "icon.svg",
    "lists.js", "live.js", "overview.js", "page.css", "parts.js", "status.js", "topics.js", "traces.js",
)  # fmt: skip
"""The files of the page, below `/page/`."""

SHARED: Final = ("look.css", "uPlot.LICENSE", "uPlot.iife.min.js", "uPlot.min.css")
"""The files of `canopy_mqtt.pages` that all pages of Canopy share."""

KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    # Each time it is asked whether it is still the same: after an upgrade no half of the page is an old one.
    hdrs.CACHE_CONTROL: "no-cache",
}


@cache
def _content(name: str) -> tuple[bytes, str]:
    """Return a file and its tag. The first call reads the disk: run it in a thread."""
    folder = files("canopy_mqtt.pages") if name in SHARED else STATIC
    content = (folder / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:32]


def _handler(name: str) -> Handler:
    kind = KINDS.get(Path(name).suffix, "text/plain")

    async def file(call: Call) -> web.Response:
        """Serve a file of the page, or 304 if the browser has it."""
        content, tag = await asyncio.to_thread(_content, name)
        asked = call.request.headers.get(hdrs.IF_NONE_MATCH, "")
        headers = HEADERS | {hdrs.ETAG: f'"{tag}"'}
        if f'"{tag}"' in asked:
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    return file


ROUTES: Final = (
    Route("GET", "/", _handler("index.html"), "The page", role="anyone"),
    *(Route("GET", f"/page/{name}", _handler(name), "A file of the page", role="anyone") for name in (*FILES, *SHARED)),
)
