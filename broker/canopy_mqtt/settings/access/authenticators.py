"""`[[authenticator]]`: the authenticators, one kind of table for each `type`.

They are asked in the order of the file, and the first that knows a client decides (`canopy_mqtt.security`).

Promises: a secret appears in no `repr` and in no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import AfterValidator, Discriminator

from canopy_mqtt.settings.access.authenticator_table import AuthenticatorTable, FilePath
from canopy_mqtt.settings.access.tokens import HttpTable, JwtTable, ScramTable
from canopy_mqtt.settings.values import wrong


class PasswordFileTable(AuthenticatorTable):
    """Checks user names and hashed passwords in a file, as mosquitto_passwd and `canopy passwd` write it."""

    type: Literal["password-file"]
    path: FilePath
    """The file."""


class CertificateTable(AuthenticatorTable):
    """Takes the user name from the client certificate, which the listener has verified."""

    type: Literal["certificate"]
    user: Literal["cn", "subject", "san-dns", "san-email", "san-uri"] = "cn"
    """The part of the certificate that is the user name: its common name, its whole subject (RFC 4514), or its first
    alternative name of one kind."""


class AnonymousTable(AuthenticatorTable):
    """Admits clients without a user name, besides the authenticators before it."""

    type: Literal["anonymous"]


class TrustTable(AuthenticatorTable):
    """Admits every client under the user name that it claims, unchecked, and clients without one."""

    type: Literal["trust"]


class RejectTable(AuthenticatorTable):
    """Refuses every client that no earlier authenticator has decided on."""

    type: Literal["reject"]


AnyTable: TypeAlias = (
    PasswordFileTable | CertificateTable | JwtTable | HttpTable | ScramTable | AnonymousTable | TrustTable | RejectTable
)

Authenticators: TypeAlias = Sequence[Annotated[AnyTable, Discriminator("type")]]

TYPES: Final[Mapping[str, type[AuthenticatorTable]]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(AnyTable)
}
"""The value of `type` → the model of such a table."""


def called(table: AuthenticatorTable) -> str:
    return table.name or str(getattr(table, "type", ""))


def _named_apart(tables: Sequence[AnyTable]) -> tuple[AnyTable, ...]:
    seen: set[str] = set()
    for at, table in enumerate(tables):
        if called(table) in seen:
            raise wrong(
                "a name that no other authenticator has (without one, its type is its name)",
                f"[{at}].name",
                called(table),
            )
        seen.add(called(table))
    scram = [at for at, table in enumerate(tables) if isinstance(table, ScramTable)]
    if len(scram) > 1:
        first = called(tables[scram[0]])
        text = f'another type: "{first}" has the authentication method already; put the users of both into one file'
        raise wrong(text, f"[{scram[1]}].type", "scram-sha-256")
    return tuple(tables)


AuthenticatorList: TypeAlias = Annotated[Authenticators, AfterValidator(_named_apart)]
