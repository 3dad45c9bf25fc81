"""`[[authenticator]]`: who says which clients these are. A table of each type that there is, told apart by `type`.

Owns what can be said of one authenticator. They are asked in the order of the file, and the first that knows a client
decides (`broker.security`).

Promises: a secret appears in no `repr` and in no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import AfterValidator, Discriminator

from broker.settings.access.authenticator_table import AuthenticatorTable, FilePath
from broker.settings.access.tokens import HttpTable, JwtTable, ScramTable
from broker.settings.values import wrong


class PasswordFileTable(AuthenticatorTable):
    """User names and hashed passwords in a file, as mosquitto_passwd and `canopy passwd` write it."""

    type: Literal["password-file"]
    path: FilePath
    """The file."""


class CertificateTable(AuthenticatorTable):
    """The client certificate, which the listener has verified, says who the client is."""

    type: Literal["certificate"]
    user: Literal["cn", "subject", "san-dns", "san-email", "san-uri"] = "cn"
    """What of the certificate is the user name: its common name, its whole subject (RFC 4514), or its first alternative
    name of one kind."""


class AnonymousTable(AuthenticatorTable):
    """Lets in clients that name no user, beside the authenticators that stand before it."""

    type: Literal["anonymous"]


class TrustTable(AuthenticatorTable):
    """Lets in every client under the user name that it gives, unchecked, and clients without one."""

    type: Literal["trust"]


class RejectTable(AuthenticatorTable):
    """Refuses every client that no authenticator before it has decided on."""

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
