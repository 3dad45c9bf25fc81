"""Load generators of the tests are forked from a process that has imported all, but for those that tell how they start.

Failures of the assertions in helpers say as much as those in tests.
"""

import os

import pytest

pytest.register_assert_rewrite("tests.loadtest.playing")

from canopy_load.engine import conductor  # noqa: E402 (assertions are rewritten from here on)
from tests.support.forked import WORKER, Forked  # noqa: E402


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "start_worker", lambda channel: Forked(WORKER, [], os.environ, inherits=channel))
