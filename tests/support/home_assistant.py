"""Home Assistant as far as an app of it can tell: options and folders, the Supervisor's API, and the ingress.

The app's files are copied, and what names places of its container (folders, addresses, ports) is replaced by places of
the test. Everything else runs as it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientSession, TCPConnector, hdrs, web

from canopy_load.brokers.process import free_port
from tests.support.daemon import environment
from tests.support.waiting import reachable

APP: Final = Path(__file__).resolve().parents[2] / "config" / "homeassistant" / "canopy"
PATIENCE: Final = 90.0
"""Seconds for five processes of Python to start, one after another, on a busy machine."""
TOKEN: Final = "of-the-test"
INGRESS: Final = "/api/hassio_ingress/secret"
INGRESS_ADDRESS: Final = "127.0.0.2"
"""Takes the place of 172.30.32.2."""


class HomeAssistant:
    """The Supervisor, and the ingress before the app's page. `asked`: requests, in order; `services`: what is known."""

    def __init__(self, page: int) -> None:
        self.asked: list[tuple[str, str]] = []
        self.discovery: list[dict[str, Any]] = []
        self.services: dict[str, Any] = {"mqtt": "of an earlier run"}
        self.announced = asyncio.Event()
        self._page = f"http://127.0.0.1:{page}"
        self._ingress: ClientSession
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[HomeAssistant]:
        """Serve while the block lasts."""
        app = web.Application()
        app.router.add_route("*", INGRESS + "/{path:.*}", self._show)
        app.router.add_get("/", self._panel)
        app.router.add_route("*", "/{path:.*}", self._supervise)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}"
        connector = TCPConnector(local_addr=(INGRESS_ADDRESS, 0))
        async with ClientSession(connector=connector, auto_decompress=False) as self._ingress:
            yield self
            await runner.cleanup()

    async def _supervise(self, request: web.Request) -> web.Response:
        if request.headers.get(hdrs.AUTHORIZATION) != f"Bearer {TOKEN}":
            return web.Response(status=401)
        self.asked.append((request.method, request.path))
        match request.method, request.path:
            case "POST", "/discovery":
                self.discovery.append(await request.json())
            case "DELETE", "/services/mqtt" if "mqtt" in self.services:
                del self.services["mqtt"]
            case "POST", "/services/mqtt" if "mqtt" not in self.services:
                self.services["mqtt"] = await request.json()
                self.announced.set()
            case _:
                return web.json_response({"result": "error"}, status=400)
        return web.json_response({"result": "ok", "data": {}})

    async def _panel(self, _: web.Request) -> web.Response:
        return web.Response(text=f'<iframe src="{INGRESS}/"></iframe>', content_type="text/html")

    async def _show(self, request: web.Request) -> web.StreamResponse:
        headers = {**request.headers, "X-Ingress-Path": INGRESS}
        path = request.raw_path.removeprefix(INGRESS)
        async with self._ingress.request(
            request.method, self._page + path, headers=headers, data=await request.read() or None
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            response.headers.popall(hdrs.TRANSFER_ENCODING, None)
            await response.prepare(request)
            try:
                async for part in answer.content.iter_any():
                    await response.write(part)
            except ConnectionError:
                """The visitor has gone."""
            return response


class App:
    """The app as it is installed in a folder: `data`, `certificates` and `own` are its /data, /ssl and /config."""

    def __init__(self, folder: Path) -> None:
        self.data, self.certificates, self.own, self._code = (folder / name for name in ("data", "ssl", "own", "app"))
        for each in (self.data, self.certificates, self.own, self._code, folder / "bin"):
            each.mkdir()
        self.ports = {inside: free_port() for inside in (1883, 1884, 8883, 8884, 8099)}
        self.home = HomeAssistant(self.ports[8099])
        self.log = ""
        self._folder = folder

    def _install(self) -> None:
        places = {
            "/app/": f"{self._code}/",
            '"/data"': f'"{self.data}"',
            "/data/": f"{self.data}/",
            '"/ssl"': f'"{self.certificates}"',
            '"/config"': f'"{self.own}"',
            "/run/canopy.sock": f"{self._folder}/socket",
            '"http://supervisor"': f'"{self.home.url}"',
            '"172.30.32.2"': f'"{INGRESS_ADDRESS}"',
            "PORT: Final = 8099": f"PORT: Final = {self.ports[8099]}",
            **{f"0.0.0.0:{port}": f"127.0.0.1:{free}" for port, free in self.ports.items() if port != 8099},
        }
        found = set()
        for file in [APP / "run.sh", *APP.glob("*.py")]:
            text = file.read_text(encoding="utf-8")
            found |= {place for place in places if place in text}
            for place, ours in places.items():
                text = text.replace(place, ours)
            (self._code / file.name).write_text(text, encoding="utf-8")
        assert found == set(places)
        # What the image's PATH finds.
        for name, command in (("python3", sys.executable), ("canopy", f"{sys.executable} -P -m canopy_mqtt")):
            file = self._folder / "bin" / name
            file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            file.chmod(0o755)

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[HomeAssistant]:
        """Run the app until it has announced itself, and while the block lasts. `options` replace the defaults."""
        self.home.announced.clear()
        async with self.home.serving(), self._process(options) as process:
            ended, announced = asyncio.create_task(process.wait()), asyncio.create_task(self.home.announced.wait())
            try:
                await asyncio.wait({ended, announced}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                assert announced.done(), (process.returncode, self.home.asked)
                await reachable(self.ports[8099], process)
                yield self.home
            finally:
                announced.cancel()
                ended.cancel()

    async def ended(self, **options: Any) -> str:
        """Run the app, which ends by itself; return what it wrote."""
        async with self.home.serving(), self._process(options) as process:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        return self.log

    @asynccontextmanager
    async def _process(self, options: dict[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
        await asyncio.to_thread(self._install)
        defaults = {"logins": [], "certfile": "fullchain.pem", "keyfile": "privkey.pem", "require_certificate": False}
        (self.data / "options.json").write_text(json.dumps(defaults | options))
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        target = f"mqtt://127.0.0.1:{self.ports[1883]}"
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", str(self._code / "run.sh")),
            env=environment(PATH=path, SUPERVISOR_TOKEN=TOKEN, CANOPY_HEALTH_TARGET=target),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # As a container's end does, for all processes; each of them has the pipe, so its end is theirs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            self.log = (await process.communicate())[0].decode()
