"""The listeners of an attacked broker beside its first: WebSocket, behind proxies, TLS, one for tenants, and HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.certificates import certificate
from loadtest.brokers.process import HOST, free_port


@dataclass(frozen=True)
class Listeners:
    """Their ports. `proxied` believes PROXY headers of this machine, `forged` those of other machines alone.

    `mounted`: its clients are tenants, each below a prefix with its own client identifier.
    """

    web: int = 0
    proxied: int = 0
    forged: int = 0
    tls: int = 0
    mounted: int = 0
    http: int = 0

    @classmethod
    def free(cls) -> Self:
        """On ports that nobody listens on."""
        return cls(*(free_port() for _ in range(6)))

    def options(self) -> list[str]:
        """What `canopy serve` is given for them."""
        shown, key = certificate()
        tables = (
            f'{{url = "ws://{HOST}:{self.web}", name = "web"}}',
            f'{{url = "mqtt://{HOST}:{self.proxied}", name = "proxied", {_behind(f"{HOST}/32")}}}',
            f'{{url = "mqtt://{HOST}:{self.forged}", name = "forged", {_behind("10.0.0.0/8")}}}',
            f'{{url = "mqtts://{HOST}:{self.tls}", name = "tls", tls = {{certificate = "{shown}", key = "{key}"}}}}',
            f'{{url = "mqtt://{HOST}:{self.mounted}", name = "mounted", mount = "tenant/{{client}}/"}}',
        )
        return ["--set", f"listener=[{', '.join(tables)}]", "--set", f"http.listen=http://{HOST}:{self.http}"]


def _behind(network: str) -> str:
    return f'proxy_protocol = "v2", proxy_from = ["{network}"]'
