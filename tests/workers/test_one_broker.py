"""One answer of those of all workers: pages as those of one list, and a way for each route."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.admin.paging import cursor_of, name_of
from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.workers import inquiries
from canopy_mqtt.workers.asking import Heard
from canopy_mqtt.workers.one_broker import one_page
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.ways import WAYS, raised, reasons

NAMES = st.lists(st.text(max_size=3), unique=True, max_size=30)


def page(names: list[str], after: str | None, limit: int, most: int) -> dict[str, Any]:
    """A page of one worker, which may be shorter than `limit`: `most`."""
    rest = sorted(name for name in names if after is None or name > after)
    some = rest[: min(limit, most)]
    more = len(some) < len(rest)
    meta = {"limit": limit, "hasnext": more, "cursor": cursor_of(some[-1]) if more else None}
    return {"data": [{"name": name} for name in some], "meta": meta}


@given(NAMES, st.integers(1, 4), st.integers(1, 7), st.integers(1, 7))
def test_pages_of_all_workers_have_each_entry_once_and_in_order(
    names: list[str], workers: int, limit: int, most: int
) -> None:
    lists: list[list[str]] = [[] for _ in range(workers)]
    for name in names:
        lists[worker_of(name.encode(), workers)].append(name)
    found: list[str] = []
    after: str | None = None
    while True:
        made = one_page((page(some, after, limit, most) for some in lists), limit, lambda each: str(each["name"]))
        assert len(made["data"]) <= limit
        found += [each["name"] for each in made["data"]]
        if not made["meta"]["hasnext"]:
            break
        assert made["data"]
        after = name_of(made["meta"]["cursor"])
    assert found == sorted(names)


def test_a_reason_of_all_is_said_once_and_one_of_some_with_their_names() -> None:
    heard = Heard({"w0": ["full", "late"], "w1": ["full"]}, [])
    assert reasons(heard) == ["full", "w0: late"]
    assert reasons(heard._replace(missing=["w2"])) == ["w2 does not answer", "w0, w1: full", "w0: late"]


def test_an_alarm_of_some_names_them_and_one_of_all_is_one() -> None:
    def alarm(message: str, since: int) -> dict[str, Any]:
        return {"name": "room", "message": message, "since": since}

    assert raised({"w0": [alarm("full", 3)], "w1": [alarm("fuller", 1), alarm("full", 2)]}, "since") == [
        alarm("w1: fuller", 1),
        alarm("full", 2),
    ]


def test_each_route_has_its_way() -> None:
    """A new one is refused with workers until it has one."""
    ways = WAYS | inquiries.WAYS
    assert [route.path for route in all_routes() if route.role != "anyone" and route.handler not in ways] == []
