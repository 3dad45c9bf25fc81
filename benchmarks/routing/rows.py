"""All rows, by name, in the order of the table."""

from __future__ import annotations

from typing import Final

from benchmarks.routing import emqx, rabbitmq, zmq
from benchmarks.routing.row import Row

ROWS: Final[dict[str, Row]] = {row.name: row for row in (*rabbitmq.ROWS, *emqx.ROWS, *zmq.ROWS)}
