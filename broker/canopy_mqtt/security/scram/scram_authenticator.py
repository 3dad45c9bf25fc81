"""The authenticator of the type scram-sha-256. It decides on no CONNECT, and offers an authentication method.

Owns the exchange of AUTH packets (MQTT 5.0, section 4.12), re-authentication included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AuthExchange, AuthMethod
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Ask, Attempt, Authenticator, Verdict
from canopy_mqtt.security.scram.key_file import ScramFile, read_scram_file
from canopy_mqtt.security.scram.scram_server import METHOD, ScramError, ScramServer
from canopy_mqtt.settings import ScramTable, called


class ScramAuthenticator(Authenticator):
    """Offers SCRAM with the users and salted keys of a file, as they were when it was read."""

    def __init__(self, table: ScramTable, file: ScramFile) -> None:
        self.name = called(table)
        self._table = table
        self._file = file
        self._method = ScramMethod(self.name, file)

    @classmethod
    def from_table(cls, table: ScramTable) -> ScramAuthenticator:
        """Read the file: never in the event loop. Raises SecurityError."""
        return cls(table, read_scram_file(Path(table.path)))

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        del attempt
        return None

    async def authenticate(self, attempt: Attempt) -> Verdict:
        del attempt
        return None

    def methods(self) -> Mapping[str, AuthMethod]:
        # In force from here on: also for who authenticates again on a connection that is open.
        self._method.file = self._file
        return {METHOD: self._method}

    def suspicion(self) -> str:
        path = self._table.path
        return "" if self._file.users else f"{path}: there is no user in it; canopy passwd --scram {path} USER"

    def still_knows(self, principal: Principal) -> bool:
        return principal.user_name in self._file.users

    def files(self) -> tuple[Path, ...]:
        return (Path(self._table.path),)

    async def renewed(self) -> Authenticator:
        fresh = await asyncio.to_thread(self.from_table, self._table)
        fresh._method = self._method
        return fresh


class ScramMethod(AuthMethod):
    """Makes exchanges. `file`: the users and keys in force; only the authenticator changes it."""

    def __init__(self, name: str, file: ScramFile) -> None:
        super().__init__()
        self.name = name
        self.file = file

    def begin(self) -> AuthExchange:
        return ScramExchange(self)


class ScramExchange(AuthExchange):
    """One exchange: client-first in CONNECT or AUTH, server-first in AUTH, client-final in AUTH, server-final at last.

    A wrong proof or an unknown user is answered 0x86, a message that is not SCRAM 0x87.
    """

    def __init__(self, method: ScramMethod) -> None:
        super().__init__()
        self._method = method
        self._server: ScramServer | None = None
        # The user name of the CONNECT. A client may leave it out, and may not be two users.
        self._user_name: str | None = None

    def start(self, connect: Connect, data: bytes | None) -> None:
        self._user_name = connect.user_name
        self._first(data)

    def again(self, data: bytes | None) -> None:
        self._first(data)

    def _first(self, data: bytes | None) -> None:
        self._server = ScramServer(self._method.file)
        self.data = None
        if data is None:
            # A server may ask for the first message (RFC 5802, section 5): an AUTH without data does.
            self.reason_code = reason_codes.CONTINUE_AUTHENTICATION
            return
        self._take(self._server, data)

    def proceed(self, data: bytes | None) -> None:
        server = self._server
        if server is None or data is None:
            self._refuse(reason_codes.NOT_AUTHORIZED)
            return
        self._take(server, data)

    def _take(self, server: ScramServer, data: bytes) -> None:
        try:
            if not server.user:
                self.data = server.first(data)
                self.reason_code = reason_codes.CONTINUE_AUTHENTICATION
                return
            self.data = server.final(data)
        except ScramError as error:
            self._refuse(
                reason_codes.BAD_USER_NAME_OR_PASSWORD if error.wrong_credentials else reason_codes.NOT_AUTHORIZED
            )
            return
        self._server = None
        if self._user_name not in (None, "", server.user):
            self._refuse(reason_codes.BAD_USER_NAME_OR_PASSWORD)
            return
        self.principal = Principal(server.user, authenticator=self._method.name)
        self.reason_code = reason_codes.SUCCESS

    def _refuse(self, reason_code: int) -> None:
        self._server = None
        self.data = None
        self.reason_code = reason_code
