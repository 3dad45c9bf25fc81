"""`[http]`: where the broker is looked at and steered over HTTP, and by whom.

Whether files exist is found out by who reads them (`broker.admin`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from broker.settings.listeners import Endpoint, endpoint_of
from broker.settings.values import MOST_BYTES, MOST_MESSAGES, Pattern, Section, wrong

PORTS: Final = {"http": 8080, "https": 8443}
"""The port of a URL that names none, by scheme."""

FORMS: Final = "http://HOST[:PORT], https://HOST[:PORT] or http+unix:///PATH"

Wait = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]


def parse_http(url: str) -> Endpoint:
    """Read where HTTP is spoken; an IPv6 address stands in brackets.

    Raises:
        ValueError: the text says what is allowed, without repeating the URL.
    """
    return endpoint_of(url, FORMS, PORTS, "http+unix")


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches a host: its name, or an IP address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(urls: Sequence[str]) -> tuple[str, ...]:
    for at, url in enumerate(urls):
        try:
            parse_http(url)
        except ValueError as error:
            raise wrong(str(error), f"[{at}]", url) from None
        if url in urls[:at]:
            raise wrong("an address that is not in it yet", f"[{at}]", url)
    return tuple(urls)


class Http(Section):
    """Metrics, health, the API and the page. Without an address there is no HTTP, and nothing of it is loaded."""

    listen: Annotated[Sequence[str], AfterValidator(_listen)] = ()
    """Where: http://HOST[:PORT] (8080), https:// (8443), or http+unix:///PATH. Port 0: any free port. Empty: nowhere.
    Always a tuple after validation."""
    certificate: str = ""
    """The certificate (PEM) of https://, and behind it those that lead to the authority's."""
    key: str = ""
    """Its private key (PEM), not encrypted."""
    password_file: str = ""
    """Users and hashed passwords, as `canopy passwd` writes them, for basic authentication. Empty: there are none."""
    operators: Annotated[Sequence[Pattern], AfterValidator(tuple)] = ()
    """Which of these users may change something: shell patterns. The others may look. Always a tuple."""
    viewer_token_file: str = ""
    """Tokens of those who may look, one a line, for `Authorization: Bearer`. Empty: there are none."""
    operator_token_file: str = ""
    """Tokens of those who may change something, too."""
    public_metrics: bool = False
    """Whether /metrics needs no user and no token. /healthz and /readyz never do."""
    hosts: Annotated[Sequence[Pattern], AfterValidator(tuple)] = ()
    """Names, beside IP addresses and localhost, under which a browser may reach a broker that has no users and no
    tokens. A page from elsewhere could otherwise steer it by a name of its own. Always a tuple."""
    socket_mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}\z")] = "0600"
    """Who may connect to a Unix socket, as the file's mode in octal digits; they are operators."""
    max_connections: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 128
    """Connections; one more is closed at once. An eighth of them may be open pages; one more is answered with 503."""
    max_request_bytes: Annotated[int, Field(ge=1_024, le=MOST_BYTES)] = 2_097_152
    """Bytes of the body of a request; a larger one is answered with 413."""
    timeout: Wait = 30.0
    """Seconds in which a request has to be here, and be answered, and in which its client has to take something of the
    answer. A connection without a request stays open for twice as long."""

    @model_validator(mode="after")
    def _whole(self) -> Http:
        schemes = {parse_http(url).scheme for url in self.listen}
        if "https" in schemes and not (self.certificate and self.key):
            missing = "key" if self.certificate else "certificate"
            raise wrong("a file, because http.listen has an https:// address", f".{missing}", "")
        if self.guarded:
            return self
        for at, url in enumerate(self.listen):
            host = parse_http(url).host
            if host and not is_loopback(host):
                needed = "http.password_file, http.operator_token_file or http.viewer_token_file"
                raise wrong(f"a loopback address; for any other set {needed}", f".listen[{at}]", url)
        return self

    @property
    def guarded(self) -> bool:
        """Whether somebody has to say who they are."""
        return bool(self.password_file or self.viewer_token_file or self.operator_token_file)

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses, taken apart."""
        return [parse_http(url) for url in self.listen]
