"""The authenticators without file or service: client certificate, anonymous, trust, and reject."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.hooks import PeerCertificate
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Ask, Attempt, Authenticator, Refusal, Verdict

Part: TypeAlias = Literal["cn", "subject", "san-dns", "san-email", "san-uri"]

REJECTED: Final = Refusal(reason_codes.NOT_AUTHORIZED, "nobody may come in here")


class CertificateAuthenticator(Authenticator):
    """Takes the user name from the client certificate, which the listener has verified.

    It does not know clients without a certificate, or without that part in it. User name and password of the CONNECT do
    not count, as in mosquitto.
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
    """Admits clients without user name and password."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        return Principal() if attempt.user_name is None and attempt.password is None else None


class TrustAuthenticator(Authenticator):
    """Admits every client that no earlier authenticator has decided on, under the user name that it claims."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        return Principal(attempt.user_name)


class RejectAuthenticator(Authenticator):
    """Refuses every client that no earlier authenticator has decided on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        del attempt
        return REJECTED

    def still_knows(self, principal: Principal) -> bool:
        del principal
        return False
