"""A reverse proxy as a process of a test: how nginx is configured, and any of them while a block lasts."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.waiting import reachable

# Debian keeps daemons where an ordinary user's PATH does not look.
SEARCHED: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
NGINX: Final = shutil.which("nginx", path=SEARCHED) or ""

# It stays one process in the foreground, and writes nothing outside of its folder.
CONFIG: Final = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
{modules}
events {{ worker_connections 100; }}
{blocks}
"""

HTTP: Final = """
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {server}
}}
"""


def nginx(folder: Path, blocks: str, *modules: Path) -> list[str]:
    """Return the command of nginx with these blocks, configured in a file of the folder; `modules` are loaded."""
    config = folder / "nginx.conf"
    loads = "".join(f"load_module {each};" for each in modules)
    config.write_text(CONFIG.format(modules=loads, blocks=blocks))
    return [NGINX, "-e", "stderr", "-p", str(folder), "-c", str(config)]


def web(server: str) -> str:
    """Return the block of nginx with this server of HTTP."""
    return HTTP.format(server=server)


@asynccontextmanager
async def running(command: list[str], port: int) -> AsyncIterator[None]:
    """Run a proxy while the block lasts, which begins when it accepts connections at a port of 127.0.0.1."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        await reachable(port, process)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
