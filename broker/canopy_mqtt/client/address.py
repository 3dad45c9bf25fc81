"""Where a broker listens, and how to speak to it: TCP, TLS, WebSocket over either, or a Unix socket."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 8080, "wss": 8443}
"""The schemes of URLs, each with its port where none is given."""

WEBSOCKET_PATH: Final = "/mqtt"


@dataclass(frozen=True)
class BrokerAddress:
    """`unix`: the path of a Unix socket, in place of host and port. `tls`: None for none. `server_name`: the name that
    the broker's certificate has to be for; empty: `host`. `websocket`: the path to ask for; empty: MQTT without one."""

    host: str = "127.0.0.1"
    port: int = 1883
    unix: str = ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    websocket: str = ""

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None = None, server_name: str = "") -> BrokerAddress:
        """From `mqtt://HOST:PORT`, `mqtts://`, `ws://HOST:PORT/PATH`, `wss://` or `mqtt+unix:///PATH`.

        `tls`: for `mqtts` and `wss`; None: what the system trusts.

        Raises:
            ValueError: it is something else.
        """
        parts = urlsplit(url)
        if parts.scheme == "mqtt+unix" and parts.path and not parts.netloc:
            return cls(unix=parts.path)
        framed = parts.scheme in ("ws", "wss")
        if parts.scheme not in PORTS or not parts.hostname or (not framed and parts.path not in ("", "/")):
            raise ValueError(
                f"{url}: not of the form mqtt://HOST:PORT, mqtts://, ws://HOST:PORT/PATH, wss://, mqtt+unix:///PATH"
            )
        path = ""
        if framed:
            path = (parts.path if parts.path not in ("", "/") else WEBSOCKET_PATH) + (parts.query and f"?{parts.query}")
        tls = tls or ssl.create_default_context() if parts.scheme in ("mqtts", "wss") else None
        return cls(parts.hostname, parts.port or PORTS[parts.scheme], "", tls, server_name, path)

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        if self.unix:
            return f"mqtt+unix://{self.unix}"
        scheme = ("ws" if self.websocket else "mqtt") + ("s" if self.tls is not None else "")
        return f"{scheme}://{self.authority}{self.websocket}"
