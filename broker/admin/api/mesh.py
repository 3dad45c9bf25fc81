"""The other nodes of a mesh, as this one sees them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from broker.admin.errors import ApiError
from broker.admin.routing import BASE, Call, Route


class Node(BaseModel):
    """Another node: one that is there, or for which something waits."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    state: str
    """`connected`; `joined`: it is there, and takes no messages yet; `gone`: what is for it waits."""
    down: float
    """Seconds for which it has taken nothing; 0: it is connected."""
    filters: int
    """Topic filters and share groups that it wants."""
    behind: bool
    """Whether it has not confirmed yet all that is wanted here."""
    in_step: bool
    """Whether retained messages have been compared since it came."""
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
    """This node."""
    told: int
    """Topic filters and share groups that other nodes are told to be wanted here."""
    left_out: int
    """Those that found no room (`mesh.max_filters`, or the other nodes' bounds): wider ones are told in their place."""
    sessions_in: int
    """Sessions that have come from other nodes since the start."""
    sessions_out: int
    """Sessions that have gone to other nodes."""
    claims_unanswered: int
    """Answers that clients waited for in vain, for `mesh.confirm_timeout` each."""
    nodes: list[Node]


async def mesh(call: Call) -> Nodes:
    """The mesh that this broker is a node of."""
    found = call.broker.mesh
    if found is None:
        raise ApiError(404, "NOT_FOUND", "this broker is on its own: its settings name no mesh (mesh.name)")
    from broker.mesh.status import status  # A broker on its own imports nothing of a mesh.

    return Nodes.model_validate(status(found))


ROUTES = (Route("GET", f"{BASE}/mesh", mesh, "The nodes of a mesh", answer=Nodes, tag="operating"),)
