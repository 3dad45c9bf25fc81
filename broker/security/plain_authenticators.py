"""The authenticators that need neither file nor service: the client certificate, no name at all, trust, and none."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from broker.core.codec import reasons
from broker.core.hooks import PeerCertificate
from broker.core.principal import Principal
from broker.security.authenticator import Ask, Attempt, Authenticator, Refusal, Verdict

Part: TypeAlias = Literal["cn", "subject", "san-dns", "san-email", "san-uri"]

REJECTED: Final = Refusal(reasons.NOT_AUTHORIZED, "nobody may come in here")


class CertificateAuthenticator(Authenticator):
    """The user is whom the client certificate names. The listener has verified the certificate.

    A client without one, or whose certificate lacks that part, is not known here. What a CONNECT says of user and
    password does not count, as in mosquitto.
    """

    def __init__(self, name: str, part: Part) -> None:
        self.name = name
        self._part = part

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        certificate = attempt.origin.certificate
        user = "" if certificate is None else self._user(certificate)
        return Principal(user) if user else None

    def _user(self, certificate: PeerCertificate) -> str:
        if self._part == "cn":
            return certificate.common_name
        if self._part == "subject":
            return certificate.subject
        names = {"san-dns": certificate.dns, "san-email": certificate.emails, "san-uri": certificate.uris}[self._part]
        return names[0] if names else ""


class AnonymousAuthenticator(Authenticator):
    """Admits clients that name no user and show no password."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        return Principal() if attempt.user_name is None and attempt.password is None else None


class TrustAuthenticator(Authenticator):
    """Admits every client that no authenticator before it has decided on, under the user name that it gives."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        return Principal(attempt.user_name)


class RejectAuthenticator(Authenticator):
    """Refuses every client that no authenticator before it has decided on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        del attempt
        return REJECTED

    def still_knows(self, principal: Principal) -> bool:
        del principal
        return False
