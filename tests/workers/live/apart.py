"""`canopy`, with workers that are no mesh: for the tests of the processes alone, which need none."""

from __future__ import annotations

from functools import partialmethod

from broker.command.cli import main
from broker.workers.supervisor import Supervisor

if __name__ == "__main__":
    Supervisor.__init__ = partialmethod(Supervisor.__init__, joined=False)  # type: ignore[method-assign, assignment]
    main()
