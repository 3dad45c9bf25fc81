"""`[http]`: the addresses of HTTP, and the credentials for it.

The code that reads the files checks that they exist (`canopy_mqtt.admin`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from canopy_mqtt.settings.listeners import Endpoint, endpoint_of
from canopy_mqtt.settings.values import MAX_BYTES, MAX_MESSAGES, Pattern, Section, wrong

PORTS: Final = {"http": 8080, "https": 8443}
"""The default port of each scheme."""

FIXED: Final = (
    "listen", "certificate", "key", "socket_mode", "max_connections", "max_request_bytes", "timeout", "public_metrics",
)  # fmt: skip
"""Settings that take a restart."""

FORMS: Final = "http://HOST[:PORT], https://HOST[:PORT] or http+unix:///PATH"

Wait = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]


def parse_http(url: str) -> Endpoint:
    """Parse an address to serve HTTP on; an IPv6 address stands in brackets.

    Raises:
        ValueError: the text says what is allowed, without repeating the URL.
    """
    return endpoint_of(url, FORMS, PORTS, "http+unix")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a host (a name or an IP address)."""
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
    """Metrics, health, the API and the page. Without an address the broker loads no code for HTTP."""

    listen: Annotated[Sequence[str], AfterValidator(_listen)] = ()
    certificate: str = ""
    key: str = ""
    password_file: str = ""
    operators: Annotated[Sequence[Pattern], AfterValidator(tuple)] = ()
    viewer_token_file: str = ""
    operator_token_file: str = ""
    public_metrics: bool = False
    hosts: Annotated[Sequence[Pattern], AfterValidator(tuple)] = ()
    socket_mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}\z")] = "0600"
    max_connections: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 128
    max_request_bytes: Annotated[int, Field(ge=1_024, le=MAX_BYTES)] = 2_097_152
    timeout: Wait = 30.0

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
        return bool(self.password_file or self.viewer_token_file or self.operator_token_file)

    def changed_by(self, new: Http) -> Http:
        """Return these settings with what a reload changes of them."""
        return new.model_copy(update={name: getattr(self, name) for name in FIXED})

    @property
    def endpoints(self) -> list[Endpoint]:
        return [parse_http(url) for url in self.listen]
