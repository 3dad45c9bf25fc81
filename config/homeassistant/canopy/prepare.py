"""Writes the files that the broker reads, from the options that the user chose in Home Assistant.

Owns `/data/users` and `/data/canopy.toml`, which it writes anew at each start, and `/data/system_users.json`: the
passwords of the users `homeassistant` and `addons`, which it makes once.
"""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.passwd import set_password
from canopy_mqtt.security.passwords.password_file import edit

DATA: Final = Path("/data")
CERTIFICATES: Final = Path("/ssl")
FOLDER: Final = Path("/config")
"""The app's folder, which the user can reach."""

SYSTEM: Final = ("homeassistant", "addons")
"""The users by which Home Assistant and its other apps connect."""

PLAIN: Final = """
[[authenticator]]
type = "password-file"
name = "home-assistant"
path = {users}

[[listener]]
name = "mqtt"
url = "mqtt://0.0.0.0:1883"

[[listener]]
name = "websocket"
url = "ws://0.0.0.0:1884"
"""

ENCRYPTED: Final = """
[[listener]]
name = "mqtt-tls"
url = "mqtts://0.0.0.0:8883"
[listener.tls]
{tls}

[[listener]]
name = "websocket-tls"
url = "wss://0.0.0.0:8884"
[listener.tls]
{tls}
"""


class OptionError(Exception):
    """An option cannot be used; the message says which and why."""


def system_users() -> dict[str, str]:
    """Return the passwords of the system's users; make them at the first start."""
    file = DATA / "system_users.json"
    if not file.exists():
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps({name: secrets.token_urlsafe(32) for name in SYSTEM}), encoding="utf-8")
        new.replace(file)
    users: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return users


def write_users(logins: list[dict[str, Any]]) -> Path:
    """Write the password file. Raises OptionError and SecurityError."""
    file = DATA / "users"
    file.unlink(missing_ok=True)
    for name, password in system_users().items():
        set_password(file, name, password, "argon2id", create=True)
    for login in logins:
        name, password = login["username"], login["password"]
        if name in SYSTEM:
            raise OptionError(f"logins: {name} is a user of Home Assistant; choose another name")
        if login.get("password_pre_hashed"):
            edit(file, name, password)
        else:
            set_password(file, name, password, "argon2id", create=False)
    return file


def tls(options: dict[str, Any]) -> str:
    """Return the settings of the TLS listeners; empty: there is no certificate. Raises OptionError."""
    certificate, key = CERTIFICATES / options["certfile"], CERTIFICATES / options["keyfile"]
    if not (certificate.is_file() and key.is_file()):
        if options["require_certificate"]:
            raise OptionError(f"require_certificate: there is no {certificate} with its key {key}")
        print(f"canopy: no TLS: there is no {certificate} with its key {key}", file=sys.stderr)
        return ""
    lines = [f"certificate = {quoted(certificate)}", f"key = {quoted(key)}"]
    if options["require_certificate"]:
        if not options.get("cafile"):
            raise OptionError("require_certificate: cafile has to name the authority of the clients' certificates")
        lines += ['client_certificates = "required"', f"client_ca = {quoted(CERTIFICATES / options['cafile'])}"]
    return ENCRYPTED.format(tls="\n".join(lines))


def own_settings(name: str) -> str:
    """Return the text of the user's settings file; empty: there is none. Raises OptionError."""
    if not name:
        return ""
    try:
        return (FOLDER / name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise OptionError(f"settings: the app's folder has no readable file {name}: {error}") from None


def quoted(path: Path) -> str:
    """Return a path as a string of TOML."""
    return json.dumps(str(path), ensure_ascii=False)


def main() -> None:
    """Write both files, or say in one line why not."""
    try:
        options = json.loads((DATA / "options.json").read_text(encoding="utf-8"))
        users = write_users(options["logins"])
        # Tables at the end of a file may follow whatever stands in it.
        text = own_settings(options.get("settings", "")) + PLAIN.format(users=quoted(users)) + tls(options)
        (DATA / "canopy.toml").write_text(text, encoding="utf-8")
    except (OptionError, SecurityError) as error:
        sys.exit(f"canopy: {error}")


if __name__ == "__main__":
    main()
