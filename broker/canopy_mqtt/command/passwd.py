"""`canopy passwd` changes a password file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.hashes import Kind
from canopy_mqtt.security.passwords.passwd import delete_user, set_password
from canopy_mqtt.terminal import MISUSED, fail

app = typer.Typer(rich_markup_mode=None)


@app.command()
def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="The user name.")],
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Remove the user.")] = False,
    create: Annotated[bool, typer.Option("--create", "-c", help="Create the file if it does not exist.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from the first line of the input.")] = False,
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            "-b",
            metavar="TEXT",
            help="The password; other users of this machine can see it.",
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--hash", metavar="KIND", help="argon2id, pbkdf2-sha512 (which mosquitto can read) or sha512."),
    ] = "argon2id",
    scram: Annotated[bool, typer.Option("--scram", help="Write keys for SCRAM-SHA-256, in a separate file.")] = False,
) -> None:
    """Add a user to a password file, change its password, or remove the user.

    The command asks for the password twice. It replaces the file as a whole; only the owner can read a new file. A
    running broker reads the changed file automatically.
    """
    if kind not in get_args(Kind):
        fail(f"--hash {kind}: allowed: {', '.join(get_args(Kind))}", MISUSED)
    if sum((delete, stdin, password is not None)) > 1:
        fail("--delete, --stdin and --password exclude each other", MISUSED)
    try:
        if delete:
            delete_user(file, user)
            typer.echo(f"{file}: {user} is gone")
            return
        chosen = None if scram else cast(Kind, kind)
        changed = set_password(file, user, _password(stdin, password), chosen, create=create)
    except SecurityError as error:
        fail(str(error))
    typer.echo(f"{file}: {user} {'has another password' if changed else 'was added'}")


def _password(stdin: bool, given: str | None) -> str:
    if given is not None:
        return given
    if stdin:
        # The bytes of any encoding: MQTT has no rule for them.
        line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
        return line.removeprefix("\ufeff").rstrip("\r\n")
    if not sys.stdin.isatty():
        fail("nobody can be asked for the password here: use --stdin", MISUSED)
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt="The same again"))
