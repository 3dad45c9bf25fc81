"""What in the settings lets in more people than it seems to: said at the start, and by `canopy check-config`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from broker.settings import Settings


def exposed(settings: Settings, authenticated: bool = False) -> Iterator[str]:
    """One line for each setting that looks safer than it is.

    `authenticated`: something checks who clients are. The `canopy` command has nothing of the kind yet; a program that
    embeds the broker may (`access_control`, `auth_methods`).
    """
    if authenticated:
        return
    if not settings.mqtt.allow_anonymous:
        yield (
            "mqtt.allow_anonymous = false keeps nobody out: nothing checks user names and passwords here, so that any "
            "user name with any password will do"
        )
    for listener in settings.listeners:
        endpoint = listener.endpoint
        certified = listener.tls is not None and listener.tls.client_certificates == "required"
        if endpoint.host and not certified and not _is_loopback(endpoint.host):
            where = "listener" if listener in settings.listener else "listen"
            yield (
                f'{where} "{listener.called}": other machines may reach it, and no client is asked to prove who it is; '
                "whoever reaches it can read and publish everything. Put a firewall in front, or listen on 127.0.0.1"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
