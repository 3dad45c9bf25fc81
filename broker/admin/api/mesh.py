"""The other nodes of a mesh, from this node's view."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from broker.admin.errors import ApiError
from broker.admin.routing import BASE, Call, Route


class Node(BaseModel):
    """Another node that is reachable, or for which messages wait."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    state: str
    """`connected`; `joined`: reachable, but does not accept messages yet; `gone`: messages for it wait."""
    down: float
    """Seconds for which it has not accepted messages; 0: it is connected."""
    filters: int
    """Topic filters and share groups of its clients."""
    behind: bool
    """Whether it has not confirmed all of this node's topic filters yet."""
    synchronized: bool
    """Whether retained messages have been compared since it joined."""
    waiting: int
    """Messages that wait for it, or that it has not acknowledged."""
    waiting_bytes: int
    """Bytes of those that wait."""
    dropped: int
    """Messages for it that were lost."""


class Nodes(BaseModel):
    """A mesh, seen from one node."""

    model_config = ConfigDict(from_attributes=True)

    mesh: str
    node: str
    """This node; of a broker with workers "all workers": each is in the list as the others see it."""
    declared: int
    """Topic filters and share groups that this node declares to the others: they send it the messages of these."""
    left_out: int
    """Filters above the limits (`mesh.max_filters`, or those of other nodes), which are replaced by wider ones."""
    sessions_in: int
    """Sessions that have come from other nodes since the start."""
    sessions_out: int
    """Sessions that have gone to other nodes."""
    claims_unanswered: int
    """Times that a client waited for other nodes in vain, for `mesh.confirm_timeout` each."""
    nodes: list[Node]


async def mesh(call: Call) -> Nodes:
    """The mesh of this broker."""
    found = call.broker.mesh
    if found is None:
        raise ApiError(404, "NOT_FOUND", "this broker is on its own: its settings name no mesh (mesh.name)")
    from broker.mesh.status import status  # A broker on its own imports nothing of a mesh.

    return Nodes.model_validate(status(found))


ROUTES = (Route("GET", f"{BASE}/mesh", mesh, "The nodes of a mesh", answer=Nodes, tag="operating"),)
