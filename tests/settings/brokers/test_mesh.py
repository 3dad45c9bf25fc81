"""`[mesh]`: what is refused, and why."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from broker.mesh.ownership.moves import giving, records
from broker.mesh.retained import peer, replicas
from broker.mesh.wills import replicating
from broker.settings.brokers.mesh import Mesh


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"node": "x" * 65}, "at most 64"),
        ({"listen": ["127.0.0.1:7447"]}, "an address like tcp/"),
        ({"connect": ["tls/other:7447"]}, "a file, because of tls/other:7447"),
        ({"queue_bytes": 4_194_304, "pipe_bytes": 1_048_577}, r"at least 4 times mesh.pipe_bytes .1048577."),
        ({"queue_bytes": 4_194_303, "pipe_bytes": 65_536}, "greater than or equal to 4194304"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(values: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Mesh.model_validate(values)


def test_what_four_pipes_hold_fits_a_queue() -> None:
    assert Mesh(queue_bytes=4_194_304).pipe_bytes * 4 == 4_194_304


def test_what_the_mesh_itself_has_on_the_way_to_a_node_fits_half_of_a_queue() -> None:
    """The other half is for messages: two pipes, each of a quarter."""
    least = Mesh(queue_bytes=4_194_304, pipe_bytes=65_536).queue_bytes
    sessions = giving.WINDOW + records.PART_BYTES
    retained = peer.WINDOW_BYTES + replicas.BATCH_BYTES
    wills = replicating.WINDOW + replicating.TURN_BYTES
    assert sessions + retained + wills <= least // 2
