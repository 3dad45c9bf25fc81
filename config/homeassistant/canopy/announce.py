"""Tells Home Assistant and its other apps how they reach the broker, through the Supervisor.

Runs once the broker answers. Each message is sent whether or not the other one is accepted.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

SUPERVISOR: Final = "http://supervisor"
TIMEOUT: Final = 30.0
"""Seconds for an answer of the Supervisor."""


def ask(method: str, path: str, body: dict[str, Any] | None = None) -> str:
    """Send a request to the Supervisor. Returns why it failed; empty: it did not."""
    request = urllib.request.Request(
        SUPERVISOR + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['SUPERVISOR_TOKEN']}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return ""
    except (OSError, HTTPException) as error:
        return str(error)


def main() -> None:
    """Announce the broker to Home Assistant, and to apps that use the service `mqtt`."""
    passwords = json.loads(Path("/data/system_users.json").read_text(encoding="utf-8"))
    reached = {"host": socket.gethostname(), "port": 1883, "ssl": False, "protocol": "3.1.1"}

    def login(user: str) -> dict[str, Any]:
        return {**reached, "username": user, "password": passwords[user]}

    discovery = ask("POST", "/discovery", {"service": "mqtt", "config": login("homeassistant")})
    # That of an earlier run, if there is one: the Supervisor takes no second one.
    ask("DELETE", "/services/mqtt")
    service = ask("POST", "/services/mqtt", login("addons"))
    failed = [f"{what}: {why}" for what, why in (("discovery", discovery), ("service", service)) if why]
    if failed:
        sys.exit(f"canopy: the Supervisor did not take the announcement: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
