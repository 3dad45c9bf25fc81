"""From a target to a stream of MQTT bytes: TCP, TLS, WebSocket, or WebSocket over TLS.

Owns: the TLS context of a target, and ``open_stream``. On each of them a protocol gets `connection_made` when MQTT may
begin, and reads and writes the bytes of MQTT only.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import lru_cache
from typing import Any, cast

from canopy_load.engine.job import Target
from canopy_load.engine.websocket import WebSocket
from canopy_load.errors import Misuse
from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.failures import describe


class TargetError(Misuse):
    """A target's certificate, key or authority cannot be used."""


@lru_cache(maxsize=64)
def context(target: Target) -> ssl.SSLContext | None:
    """Return the TLS context of a target; None if it has no TLS.

    Raises:
        TargetError: a file cannot be read, or does not hold what it should.
    """
    if not target.encrypted:
        return None
    tls = target.tls
    try:
        made = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError) as error:
        raise TargetError(f"--ca {tls.ca}: {describe(error)}") from error
    if tls.insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        try:
            # Without a password of its own, OpenSSL would ask for one on the terminal.
            made.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:
            key = f" --key {tls.key}" if tls.key else ""
            raise TargetError(f"--cert {tls.certificate}{key}: {describe(error)}") from error
    return made


def address(target: Target) -> BrokerAddress:
    """A target as `canopy_mqtt.client` takes it. Raises TargetError."""
    path = target.path if target.framed else ""
    return BrokerAddress(target.host, target.port, tls=context(target), websocket=path)


async def open_stream(target: Target, protocol: object, sock: socket.socket | None = None) -> None:
    """Connect, and let a protocol (by its methods) speak MQTT. `sock`: one that is connected to the target already.

    Raises:
        OSError: there is no connection, or TLS or the WebSocket did not come about.
    """
    loop = asyncio.get_running_loop()
    secured = context(target)
    name = target.host if secured is not None else None
    web: WebSocket | None = None
    if target.framed:
        web = WebSocket(protocol, target.authority, target.path)
    first = cast(asyncio.Protocol, web if web is not None else protocol)
    where: dict[str, Any] = {"host": target.host, "port": target.port} if sock is None else {"sock": sock}
    await loop.create_connection(lambda: first, **where, ssl=secured, server_hostname=name)
    if web is not None:
        try:
            await web.opened
        except BaseException:
            web.abort()
            raise
