"""Who comes in to an attacked broker: a user with a password, holders of tokens, and clients without a name."""

from __future__ import annotations

import atexit
import base64
import json
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

import jwt

from broker.security.passwords.hashes import make
from broker.security.passwords.passwd import set_password
from loadtest.brokers.process import HOST

USER: Final = "alice"
PASSWORD: Final = "correct horse battery staple"
SECRET: Final = "a secret that the attacked broker shares with nobody"
AUDIENCE: Final = "attacked"


def options() -> list[str]:
    """What `canopy serve` is given: authenticators, and bans for all addresses but that of the well-behaved clients."""
    tables = (
        f'{{type = "password-file", path = "{_password_file()}"}}',
        f'{{type = "jwt", algorithms = ["HS256"], secret = "{SECRET}", audience = ["{AUDIENCE}"]}}',
        '{type = "anonymous"}',
    )
    settings = (
        f"authenticator=[{', '.join(tables)}]",
        f'security.ban_exempt=["{HOST}"]',
        f'http.password_file="{_operators_file()}"',
        f'access.acl_file="{_acl_file()}"',
    )
    return [part for setting in settings for part in ("--set", setting)]


def token(algorithm: str = "HS256", secret: str = SECRET, **claims: Any) -> bytes:
    """A token that lets its holder in, but for what is said here. `none`: without a signature."""
    held = {"sub": "device", "aud": AUDIENCE, "exp": int(time.time()) + 3600, **claims}
    if algorithm == "none":
        return b".".join((_part({"alg": "none", "typ": "JWT"}), _part(held), b""))
    return jwt.encode(held, secret, algorithm).encode()


def _part(content: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")


@cache
def _folder() -> Path:
    """A folder that goes with this process."""
    folder = tempfile.mkdtemp(prefix="canopy-attack-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def _acl_file() -> str:
    """Clients without a name have what the pairs exchange, and `$SYS`; `secret/#` is for one user."""
    file = _folder() / "acl"
    file.write_text(f"topic readwrite pairs/#\ntopic read $SYS/#\nuser {USER}\ntopic readwrite secret/#\n")
    return str(file)


@cache
def _operators_file() -> str:
    """With a hash that is quickly made, as mosquitto's are: it is not its time that keeps guesses few."""
    file = _folder() / "operators"
    file.write_text(f"{USER}:{make(PASSWORD.encode(), 'pbkdf2-sha512', 101)}\n")
    file.chmod(0o600)
    return str(file)


@cache
def _password_file() -> str:
    file = _folder() / "passwd"
    set_password(file, USER, PASSWORD, "argon2id", create=True)
    return str(file)
