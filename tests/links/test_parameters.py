"""The values that a link's settings become, and the topics that report them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, LATEST
from canopy_mqtt.links import parameters
from canopy_mqtt.links.filters.aggregated import AggregatedFilters, UpstreamSubscriptions
from canopy_mqtt.links.filters.budget import BudgetedFilters
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.status import status
from canopy_mqtt.settings import Settings, Upstream

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "federation.md"


def upstream(**keys: object) -> Upstream:
    return Upstream.model_validate({"name": "up", "url": "mqtt://127.0.0.1:1", **keys})


def test_filters_without_a_name_upstream_are_left_out() -> None:
    mapping = Mapping("plant/", "site/7/")
    assert parameters.names(["plant/#", "#", "other/a", "plant/#"], mapping) == ["site/7/#"]
    assert parameters.published(upstream(publish=("#", "plant/a")), mapping) == ["plant/#", "plant/a"]
    assert parameters.may_be_stale(upstream(aggregate=("plant/a/#", "x/#")), mapping) == ["site/7/a/#"]
    assert parameters.may_be_stale(upstream(aggregate="auto", roots=("plant/b/#",)), mapping) == ["site/7/b/#"]


def test_ledgers() -> None:
    face = UpstreamSubscriptions()
    assert isinstance(parameters.local_filters(upstream(), Mapping(), face), AggregatedFilters)
    assert isinstance(parameters.local_filters(upstream(aggregate="auto"), Mapping(), face), BudgetedFilters)


def test_what_is_offered() -> None:
    limits = Limits()
    limits.max_packet_size = MAX_PACKET + 5
    made = parameters.connect_terms(upstream(policy="latest", username="me", password="x"), Settings(), limits, "b1")
    assert (made.client_id, made.user_name, made.password) == ("canopy-b1-up", "me", b"x")
    assert made.max_packet_size == MAX_PACKET
    assert made.queue_policy == DROP_NEWEST
    assert parameters.connect_terms(upstream(client_id="c"), Settings(), limits, "b1").client_id == "c"


def test_a_password_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    wanted = upstream(username="me", password_file=str(file))
    with pytest.raises(ValueError, match=r"password_file .*: No such file"):
        parameters.connect_terms(wanted, Settings(), Limits(), "b1")
    file.write_bytes(b"secret\r\nsomething else\n")
    assert parameters.connect_terms(wanted, Settings(), Limits(), "b1").password == b"secret"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"it is not UTF-8"):
        parameters.connect_terms(wanted, Settings(), Limits(), "b1")
    file.write_bytes(b"\nsecret\n")
    with pytest.raises(ValueError, match=r"its first line is empty"):
        parameters.connect_terms(wanted, Settings(), Limits(), "b1")


async def test_the_guide_names_what_is_told() -> None:
    """Every topic under `$SYS/broker/upstream/<name>/`, and no other."""
    table = re.search(r"\| topic \| \|\n\|---\|---\|\n(.*?)\n\n", GUIDE.read_text(), re.DOTALL)
    assert table is not None
    named: set[str] = set()
    for row in table[1].splitlines():
        group = ""
        for name in re.findall("`([^`]+)`", row.split("|")[1]):
            folder, slash, _ = name.partition("/")
            group = folder + slash if slash else group
            named.add(name if slash else group + name)
    settings = Settings(listen=("mqtt://127.0.0.1:0",), upstream=(upstream(policy="latest"),))
    async with Broker(settings) as broker:
        assert broker.links is not None
        link = broker.links.links["up"]
        told = {topic for topic, _ in status(link)}
        message_terms = link.session.message_terms
        assert message_terms is not None
        assert message_terms.policy == LATEST
    assert named == told
