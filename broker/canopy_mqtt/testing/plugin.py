"""The pytest plug-in: fixtures. pytest loads this module in every run, so the fixtures import the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from canopy_mqtt.testing.client import RawClient
    from canopy_mqtt.testing.control import RunningBroker


@pytest.fixture
def canopy_settings() -> dict[str, Any]:
    """Sections of the settings of `canopy_broker`, `{"mqtt": {"max_qos": 1}}`: override it."""
    return {}


@pytest.fixture
def canopy_broker(canopy_settings: dict[str, Any]) -> Iterator[RunningBroker]:
    """A broker of this test alone, in a thread of its own, on a free port of 127.0.0.1."""
    from canopy_mqtt.testing.control import RunningBroker

    with RunningBroker(**canopy_settings) as broker:
        yield broker


@pytest.fixture
def canopy_broker_factory() -> Iterator[Callable[..., RunningBroker]]:
    """Start brokers, each with the sections that it is called with; they stop when the test ends."""
    from canopy_mqtt.testing.control import RunningBroker

    with ExitStack() as stack:
        yield lambda **sections: stack.enter_context(RunningBroker(**sections))


@pytest.fixture(scope="session")
def canopy_session_broker() -> Iterator[RunningBroker]:
    """One broker for all tests that ask for it. What a test leaves behind is there in the next: `reset` clears it."""
    from canopy_mqtt.testing.control import RunningBroker

    with RunningBroker() as broker:
        yield broker


@pytest.fixture
def canopy_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., RawClient]]:
    """Connect clients that send and receive single packets: `canopy_client("id")`. They are closed with the test."""
    from canopy_mqtt.testing.client import RawClient

    with ExitStack() as stack:

        def connect(client_id: str = "", *, port: int = 0, **options: Any) -> RawClient:
            if not port:
                port = request.getfixturevalue("canopy_broker").port
            client = stack.enter_context(RawClient(port))
            client.connect(client_id, **options)
            return client

        yield connect
