"""Makes the two commands that a started broker prints for trying it: `mosquitto_sub` and `mosquitto_pub`.

Promises: the commands work as they are printed. If clients need TLS, a user, rights or an identifier, none are printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from canopy_mqtt.settings import DEFAULT_PORT, Settings, parse_endpoint
from canopy_mqtt.settings.exposure import admits_anonymous


def lines_to_try(settings: Settings, listening: Sequence[str]) -> list[str]:
    """Return the two commands, or none. `listening`: the URLs of the settings' listeners, with their real ports."""
    access = settings.access
    if settings.rule or access.acl_file or access.default == "deny" or not settings.mqtt.allow_empty_client_id:
        return []
    for listener, url in zip(settings.listeners, listening, strict=False):
        endpoint = parse_endpoint(url)
        plain = endpoint.scheme in ("mqtt", "mqtt+unix") and listener.proxy_protocol == "none"
        if plain and admits_anonymous(listener, settings):
            host = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(endpoint.host, endpoint.host)
            port = [] if endpoint.port == DEFAULT_PORT else ["-p", str(endpoint.port)]
            version = (
                []
                if "3.1.1" in settings.mqtt.versions
                else ["-V", "mqttv5" if "5.0" in settings.mqtt.versions else "mqttv31"]
            )
            where = shlex.join([*(["--unix", endpoint.path] if endpoint.path else ["-h", host, *port]), *version])
            return [
                f"mosquitto_sub {where} -t 'demo/#' -v",
                f"mosquitto_pub {where} -t demo/hello -m 'hello world'",
            ]
    return []
