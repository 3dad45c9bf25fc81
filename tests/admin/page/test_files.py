"""The page's files, and how browsers are told to treat them."""

from __future__ import annotations

import re

import aiohttp
import pytest
from yarl import URL

from canopy_mqtt.admin.page import FILES, SHARED, STATIC
from tests.admin.conftest import Serve


def test_the_list_has_every_file() -> None:
    assert sorted({*FILES, "index.html"}) == sorted(path.name for path in STATIC.iterdir())


def test_nothing_is_from_elsewhere_and_no_text_becomes_html() -> None:
    for name in FILES:
        text = (STATIC / name).read_text("utf-8")
        if name.endswith((".js", ".css", ".html")):
            assert not re.search(
                r"(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function)", text
            )
        if not name.startswith("uPlot"):
            found = re.findall(r"https?://[^\s\"']+", text)
            assert set(found) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in (*FILES, *SHARED))])
async def test_a_file_is_for_everybody_and_for_this_page_alone(
    serve: Serve, ask: aiohttp.ClientSession, path: str
) -> None:
    broker = await serve()
    async with ask.get(broker.http[0] + path) as answer:
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        tag = answer.headers["ETag"]
        assert await answer.read()
    async with ask.get(broker.http[0] + path, headers={"If-None-Match": tag}) as again:
        assert again.status == 304
        assert await again.read() == b""


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/..%2F__init__.py", "/page/%2e%2e/__init__.py", "/page//etc/passwd", "/page/app.js%00", "/app.js"],
)
async def test_no_other_file_is_served(serve: Serve, ask: aiohttp.ClientSession, path: str) -> None:
    broker = await serve()
    async with ask.get(URL(broker.http[0] + path, encoded=True)) as answer:
        assert answer.status == 404
