"""An attacked broker: its listeners beside the first one, and who comes in where an attack is on the authenticators."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any, Final

import jwt

from benchmarks.certificates import certificate
from canopy_load.brokers.process import HOST, free_port
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.security.passwords.passwd import set_password

USER: Final = "alice"
PASSWORD: Final = b"correct horse battery staple"
SECRET: Final = "a secret that the attacked broker shares with nobody"
AUDIENCE: Final = "attacked"
ACL: Final = f"topic readwrite pairs/#\ntopic read $SYS/#\nuser {USER}\ntopic readwrite secret/#\n"
"""Clients without a name may use the pairs' topics, and `$SYS`; `secret/#` is for one user."""

LISTENERS: Final = ("web", "proxied", "forged", "tls", "mounted", "http")
"""`proxied` believes PROXY headers of this machine, `forged` those of other machines alone.

`mounted`: its clients are tenants, each below a prefix with its own client identifier.
"""


def listeners() -> dict[str, int]:
    """Return a free port for each listener."""
    return {name: free_port() for name in LISTENERS}


def settings(ports: dict[str, int]) -> list[str]:
    """The settings that make a broker listen on these ports."""
    shown, key = certificate()
    behind = 'proxy_protocol = "v2", proxy_from'
    kinds = {
        "web": ("ws", ""),
        "proxied": ("mqtt", f', {behind} = ["{HOST}/32"]'),
        "forged": ("mqtt", f', {behind} = ["10.0.0.0/8"]'),
        "tls": ("mqtts", f', tls = {{certificate = "{shown}", key = "{key}"}}'),
        "mounted": ("mqtt", ', mount = "tenant/{client}/"'),
    }
    tables = [
        f'{{url = "{scheme}://{HOST}:{ports[name]}", name = "{name}"{more}}}' for name, (scheme, more) in kinds.items()
    ]
    return [f"listener=[{', '.join(tables)}]", f"http.listen=http://{HOST}:{ports['http']}"]


def guards(folder: Path) -> list[str]:
    """Settings for authenticators, and bans for all addresses but that of the well-behaved clients; files go there."""
    users, operators, acl = folder / "passwd", folder / "operators", folder / "acl"
    set_password(users, USER, PASSWORD.decode(), "argon2id", create=True)
    # With a hash that is quickly made, as mosquitto's are: it is not its time that keeps guesses few.
    operators.write_text(f"{USER}:{make(PASSWORD, 'pbkdf2-sha512', 101)}\n")
    operators.chmod(0o600)
    acl.write_text(ACL)
    tables = (
        f'{{type = "password-file", path = "{users}"}}',
        f'{{type = "jwt", algorithms = ["HS256"], secret = "{SECRET}", audience = ["{AUDIENCE}"]}}',
        '{type = "anonymous"}',
    )
    return [
        f"authenticator=[{', '.join(tables)}]",
        f'security.ban_exempt=["{HOST}"]',
        f'http.password_file="{operators}"',
        f'access.acl_file="{acl}"',
    ]


def token(algorithm: str = "HS256", secret: str = SECRET, **claims: Any) -> bytes:
    """Return a token that lets its holder in, unless these claims say otherwise. `none`: without a signature."""
    held = {"sub": "device", "aud": AUDIENCE, "exp": int(time.time()) + 3600, **claims}
    if algorithm == "none":
        parts = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "none", "typ": "JWT"}, held))
        return b".".join(part.rstrip(b"=") for part in parts) + b"."
    return jwt.encode(held, secret, algorithm).encode()
