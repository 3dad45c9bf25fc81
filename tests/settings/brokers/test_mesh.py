"""`[mesh]`: what is refused, and why."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from broker.settings.brokers.mesh import Mesh


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"node": "x" * 65}, "at most 64"),
        ({"listen": ["127.0.0.1:7447"]}, "an address like tcp/"),
        ({"connect": ["tls/other:7447"]}, "a file, because of tls/other:7447"),
        ({"queue_bytes": 4_194_303}, r"at least 4 times mesh.pipe_bytes .1048576."),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(values: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Mesh.model_validate(values)


def test_what_four_pipes_hold_fits_a_queue() -> None:
    assert Mesh(queue_bytes=4_194_304).pipe_bytes * 4 == 4_194_304
