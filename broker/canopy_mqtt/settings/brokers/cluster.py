"""`[cluster]`: the other nodes with which this broker exchanges messages, and where it listens for them.

Owns the keys and the checks of their combinations. Without `name` there is no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from canopy_mqtt.settings.http import is_loopback
from canopy_mqtt.settings.listeners import Endpoint, endpoint_of
from canopy_mqtt.settings.values import MAX_BYTES, Section, distinct, only, readable, wrong

FORMS: Final = "mqtts://HOST[:PORT], or mqtt+unix:///PATH on one machine"
PORTS: Final = {"mqtts": 8884, "mqtt": 1884}
"""The default port of each scheme: not those of clients."""

NAME: Final = r"^[A-Za-z0-9_-]{1,64}\z"
LOWEST_TIMEOUT: Final = 0.1
HIGHEST_TIMEOUT: Final = 300.0
LOWEST_DEAD_AFTER: Final = 2.0
"""Two signs of life, in seconds."""


def parse_node(url: str) -> Endpoint:
    """Parse the address of a node. Raises ValueError: the text says what is allowed."""
    endpoint = endpoint_of(url, FORMS, PORTS, "mqtt+unix")
    if endpoint.scheme == "mqtt" and not is_loopback(endpoint.host):
        raise ValueError(f"{FORMS}; plain mqtt:// only on this machine, like mqtt://127.0.0.1:1884")
    return endpoint


def _listen(value: str) -> str:
    return readable(parse_node)(value) if value else value


class ClusterNode(Section):
    """One node: its name, and the address at which the others reach it."""

    name: Annotated[str, Field(pattern=NAME)]
    address: Annotated[str, AfterValidator(readable(parse_node))]

    @property
    def endpoint(self) -> Endpoint:
        """The parsed `address`."""
        return parse_node(self.address)


class Cluster(Section):
    """This broker as a node of a cluster."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}\z")] = ""
    node: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}\z")] = ""
    listen: Annotated[str, AfterValidator(_listen)] = ""
    nodes: Annotated[Sequence[ClusterNode], AfterValidator(distinct("node"))] = ()
    """The nodes of the cluster; this one may be among them."""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    link_timeout: Annotated[float, Field(ge=LOWEST_TIMEOUT, le=HIGHEST_TIMEOUT, allow_inf_nan=False)] = 3.0
    dead_after: Annotated[float, Field(ge=LOWEST_DEAD_AFTER, le=HIGHEST_TIMEOUT, allow_inf_nan=False)] = 5.0
    link_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES)] = 67_108_864

    @property
    def others(self) -> tuple[ClusterNode, ...]:
        """The nodes but this one: all nodes may have the same list."""
        return tuple(each for each in self.nodes if each.name != self.node)

    @property
    def endpoint(self) -> Endpoint:
        """The parsed `listen`."""
        return parse_node(self.listen)

    _of_a_cluster = only(
        "only with cluster.name", "node", "listen", "nodes", where=lambda given: bool(given.get("name", "-"))
    )

    @model_validator(mode="after")
    def _complete(self) -> Cluster:
        if not self.name:
            return self
        if not self.node:
            raise wrong("the name of this node, with cluster.name", ".node", self.node)
        if not self.listen:
            raise wrong(f"where the other nodes reach this one, with cluster.name: {FORMS}", ".listen", self.listen)
        secure = self.endpoint.tls or any(each.endpoint.tls for each in self.others)
        for key in ("ca_file", "cert_file", "key_file"):
            if secure and not getattr(self, key):
                raise wrong("a file (PEM), with an mqtts:// address of a node", f".{key}", "")
            if not secure and getattr(self, key):
                raise wrong("only with an mqtts:// address of a node", f".{key}", getattr(self, key))
        return self
