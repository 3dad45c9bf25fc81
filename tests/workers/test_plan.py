"""The settings of each worker, made of those of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.configuration.reading import SettingsError
from broker.settings import Federation, Settings, Workers, flatten
from broker.workers.plan import Plan, as_they_are, count, unusable

ITS_OWN = {
    "federation.broker_id",
    "http.listen",
    "http.timeout",
    "workers.count",
    "log.format",
    "mesh.name",
    "mesh.node",
    "mesh.listen",
    "mesh.connect",
}
"""What a worker's settings may say other than those of all."""


def test_a_worker_has_the_settings_of_all_but_for_what_makes_it_one() -> None:
    settings = Settings.model_validate(
        {
            "listener": [{"url": "mqtt://127.0.0.1:0", "max_connections": 5}],
            "workers": {"count": 3},
            "http": {"listen": ["http://127.0.0.1:0"], "timeout": 7.0, "password_file": "/etc/passwords"},
            "limits": {"max_packet_size": 4_096},
            "mesh": {"confirm_timeout": 2.0},
        }
    )
    made = Plan(Path("/run/x"), 3, people=False).settings(settings, 1, 0)
    before, after = flatten(settings), flatten(made)
    assert {name for name in after if after[name] != before[name]} <= ITS_OWN | {"http.password_file"}
    assert made.http.listen == ("http+unix:///run/x/w1.http",)
    assert made.http.timeout == 7.0
    # Beside tables the default of `listen` does not count.
    assert made.listeners == settings.listeners
    assert Settings.model_validate_json(made.model_dump_json(exclude_unset=True)).listeners == settings.listeners


def test_the_workers_are_the_nodes_of_one_mesh_that_reach_each_other() -> None:
    plan = Plan(Path("/run/x"), 3, people=False)
    nodes = [plan.settings(Settings(), worker, 0).mesh for worker in range(3)]
    assert len({node.name for node in nodes}) == 1
    assert nodes[0].name != Plan(Path("/run/x"), 3, people=False).settings(Settings(), 0, 0).mesh.name
    places = {node.listen for node in nodes}
    assert len(places) == 3
    for node in nodes:
        assert {(place,) for place in node.connect} == places - {node.listen}


def test_a_worker_that_is_started_again_is_another_node_at_the_same_place() -> None:
    plan = Plan(Path("/run/x"), 2, people=False)
    first, second = (plan.settings(Settings(), 1, generation).mesh for generation in (0, 1))
    assert first.node != second.node
    assert first.listen == second.listen


def test_one_worker_has_the_links_for_all_and_is_the_same_node_when_it_is_started_again() -> None:
    settings = Settings.model_validate({"upstream": [{"name": "cloud", "url": "mqtt://broker.example.org"}]})
    assert unusable(settings) == []
    plan = Plan(Path("/run/x"), 3, people=False)
    made = [plan.settings(settings, worker, 0) for worker in range(3)]
    assert [[link.name for link in each.upstream] for each in made] == [["cloud"], [], []]
    assert plan.settings(settings, 0, 1).mesh.node == made[0].mesh.node
    # A message that comes back has been here, whichever worker it comes to.
    (broker_id,) = {each.federation.broker_id for each in made}
    assert broker_id
    named = settings.model_copy(update={"federation": Federation(broker_id="site-7")})
    assert plan.settings(named, 2, 0).federation.broker_id == "site-7"


def test_what_workers_cannot_share_is_named_with_a_remedy() -> None:
    settings = {"recorder": {"directory": "/var/lib/canopy", "deliveries": True}}
    (line,) = unusable(Settings.model_validate(settings))
    assert line.startswith("recorder.deliveries: ")
    assert "leave" in line


def site(**mesh: object) -> Settings:
    """The settings of a machine that is part of a mesh."""
    return Settings.model_validate({"mesh": {"name": "site", **mesh}, "workers": {"count": 2}})


def test_workers_are_nodes_of_the_mesh_of_their_settings() -> None:
    """The first one is the node that there is without workers; the others have names and ports behind its."""
    settings = site(node="a", listen=["tcp/0.0.0.0:7447"], connect=["tcp/b.example.org:7447"])
    plan = Plan(Path("/run/x"), 2, people=False, leavers=[5], mesh=settings.mesh)
    made = {worker: plan.settings(settings, worker, 0).mesh for worker in (0, 1, 5)}
    assert {node.name for node in made.values()} == {"site"}
    assert [node.node for node in made.values()] == ["a", "a-w1", "a-w5"]
    assert made[1].listen == ("unixsock-stream//run/x/w1.mesh", "tcp/0.0.0.0:7448")
    assert made[5].listen == ("unixsock-stream//run/x/w5.mesh", "tcp/0.0.0.0:7452")
    # The workers of this machine first.
    sockets = [f"unixsock-stream//run/x/w{worker}.mesh" for worker in (0, 5)]
    assert made[1].connect == (*sockets, "tcp/b.example.org:7447")
    # Whether it has a store or not, it is the same node when it is started again.
    assert plan.settings(settings, 1, 7).mesh.node == plan.node(1, 7, kept=False) == "a-w1"
    assert (
        Settings.model_validate_json(plan.settings(settings, 1, 0).model_dump_json(exclude_unset=True)).mesh == made[1]
    )


def test_a_machine_without_a_name_has_another_one_at_each_start() -> None:
    first, second = (Plan(Path("/run/x"), 2, people=False, mesh=site().mesh) for _ in range(2))
    assert first.machine != second.machine
    assert [first.node(worker, 0, kept=False) for worker in (0, 1)] == [first.machine, f"{first.machine}-w1"]


def test_where_workers_are_stays_from_the_start_of_their_supervisor_on() -> None:
    has, new = site(node="a", confirm_timeout=1.0), site(node="b", confirm_timeout=2.0)
    applied = as_they_are(has, new.model_copy(update={"workers": Workers(count=3)}))
    assert applied.workers == has.workers
    assert flatten(applied)["mesh.node"] == "a"
    assert flatten(applied)["mesh.confirm_timeout"] == 2.0
    # A plan goes by what it was made of.
    assert Plan(Path("/run/x"), 2, people=False, mesh=has.mesh).settings(new, 1, 0).mesh.node == "a-w1"


def test_each_worker_has_a_store_of_its_own_beside_the_first_ones() -> None:
    plan = Plan(Path("/run/x"), 2, people=False, leavers=[3])
    in_files = Settings.model_validate({"store": {"path": "/var/lib/canopy", "synchronous": "off"}})
    made = [plan.settings(in_files, worker, 0).store for worker in (0, 1, 3)]
    assert [each.path for each in made] == ["/var/lib/canopy", "/var/lib/canopy/w1", "/var/lib/canopy/w3"]
    assert {each.synchronous for each in made} == {"off"}
    in_database = Settings.model_validate({"store": {"url": "postgresql://db/x", "name": "site"}})
    assert [plan.settings(in_database, worker, 0).store.name for worker in (0, 1)] == ["site", "site_w1"]


def test_a_worker_with_a_store_is_the_same_node_when_it_is_started_again() -> None:
    """What waits for it elsewhere is for the sessions that it has kept."""
    plan = Plan(Path("/run/x"), 2, people=False)
    settings = Settings.model_validate({"store": {"path": "/var/lib/canopy"}})
    first, second = (plan.settings(settings, 1, generation).mesh.node for generation in (0, 1))
    assert first == second == plan.node(1, 7, kept=True)


def test_a_record_is_required_by_the_supervisor_alone() -> None:
    """Which records for all; a leaver takes part in none."""
    settings = Settings.model_validate({"recorder": {"directory": "/var/lib/canopy", "required": True}})
    assert unusable(settings) == []
    plan = Plan(Path("/run/x"), 2, people=False, leavers=[2])
    made = [plan.settings(settings, worker, 0).recorder for worker in (0, 1, 2)]
    assert [each.directory for each in made] == ["/var/lib/canopy", "/var/lib/canopy", ""]
    assert not any(each.required for each in made)


def test_a_schema_whose_name_leaves_no_room() -> None:
    settings = {"store": {"url": "postgresql://db/x", "name": "x" * 61}, "workers": {"count": 2}}
    (line,) = unusable(Settings.model_validate(settings))
    assert line.startswith("store.name: ")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.workers.plan.find_spec", lambda _: None)
    (line,) = unusable(Settings())
    assert line.startswith("workers.count: several workers need the extra mesh: in a clone of Canopy, pip install")


def test_a_directory_whose_name_leaves_no_room_for_sockets() -> None:
    (line,) = unusable(Settings.model_validate({"workers": {"count": 2, "directory": "/" + "x" * 90}}))
    assert line.startswith("workers.directory: /xxx")
    assert unusable(Settings.model_validate({"workers": {"count": 2, "directory": "/run/canopy"}})) == []


def test_nothing_else_is_refused() -> None:
    assert unusable(Settings()) == []
    assert unusable(Settings.model_validate({"recorder": {"directory": "/var/lib/canopy"}})) == []
    assert unusable(site(listen=["tcp/0.0.0.0:7447"])) == []


def test_as_many_as_there_are_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert count(Settings.model_validate({"workers": {"count": "auto"}})) == 6
    assert count(Settings.model_validate({"workers": {"count": 2}})) == 2
    assert count(Settings()) == 1


def test_a_folder_whose_name_leaves_no_room_for_sockets() -> None:
    with pytest.raises(SettingsError, match=r"^workers\.directory: /x+: too long for Unix sockets"):
        Plan(Path("/" + "x" * 100), 2, people=False)
