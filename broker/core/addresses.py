"""Groups addresses into clients: an IPv4 address, or a network of IPv6."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

PREFIX: Final = 64
"""Bits of an IPv6 address that count: whoever has one address has all that share them."""


@lru_cache(maxsize=4_096)
def network(host: str) -> str:
    """The address, or the /64 of an IPv6 address, as text. What is no IP address stays as it is."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> (128 - PREFIX) << (128 - PREFIX), PREFIX)))
