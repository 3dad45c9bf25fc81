"""A plan follows from its seed and options alone."""

from __future__ import annotations

from canopy_load.prove.faults import BROKER_FAULTS, CLIENT_FAULTS, Fault
from canopy_load.prove.plan import last_of_round, make, up_to
from canopy_load.prove.steps import Act


def test_the_same_seed_makes_the_same_plan() -> None:
    faults = CLIENT_FAULTS + BROKER_FAULTS
    assert make(7, 3, faults, nodes=4) == make(7, 3, faults, nodes=4)
    (one, other) = (make(seed, 3, faults, nodes=4).rounds for seed in (7, 8))
    assert [each.steps for each in one] != [each.steps for each in other]
    assert [each.faults for each in one] != [each.faults for each in other]


def test_members_of_a_share_group_are_at_one_node_where_sessions_stay() -> None:
    plan = make(7, 3, nodes=3, sessions_stay=True)
    members = [each for each in plan.clients.values() if each.kind == "member"]
    groups = {each.filters[0].topic_filter for each in members}
    assert len({(each.filters[0].topic_filter, each.node) for each in members}) == len(groups)
    assert {each.node for each in plan.clients.values() if not each.clean} == {0, 1, 2}
    assert plan.rounds == make(7, 3, nodes=3).rounds


def test_only_what_is_asked_for_goes_wrong() -> None:
    plan = make(1, 4, [Fault.TAKEOVER, Fault.KILL])
    acts = {step.act for each in plan.rounds for step in each.steps}
    assert Act.TAKEOVER in acts
    assert not acts & {Act.CUT, Act.FREEZE, Act.ROAM}
    assert {fault.fault for each in plan.rounds for fault in each.faults} == {Fault.KILL}


def test_steps_are_in_order_and_of_clients_that_there_are() -> None:
    plan = make(3, 2, CLIENT_FAULTS)
    for each in plan.rounds:
        times = [step.at for step in each.steps]
        assert times == sorted(times)
        assert all(step.client in plan.clients for step in each.steps)
        publishes = [step for step in each.steps if step.act is Act.PUBLISH]
        assert all(step.output < len(plan.clients[step.client].outputs) for step in publishes)
        assert all(step.at < each.seconds for step in publishes)


def test_there_are_subscribers_of_every_kind_in_both_versions() -> None:
    plan = make(1, 1)
    kinds = {each.kind for each in plan.clients.values()}
    assert kinds >= {
        "connected",
        "cut",
        "away",
        "clean",
        "frozen",
        "taken over",
        "#",
        "late",
        "member",
        "mortal",
        "heir",
        "roaming",
        "QoS 0",
        "No Local",
        "unsubscribes",
        "keep alive",
    }
    both = ("connected", "cut", "away", "clean", "frozen", "taken over", "mortal", "publisher", "roaming", "QoS 0")
    for kind in (*both, "unsubscribes", "keep alive"):
        assert {each.version for each in plan.clients.values() if each.kind == kind} == {4, 5}


def test_a_crowd_has_durable_sessions_behind_overlapping_filters_and_messages() -> None:
    plan = make(1, 1, crowd=10)
    crowd = [each for each in plan.clients.values() if each.kind == "crowd"]
    assert len(crowd) == 10
    assert all(not each.clean and len(each.filters) == 2 for each in crowd)
    assert {each.version for each in crowd} == {4, 5}
    steps = plan.rounds[0].steps
    assert sum(step.act in {Act.LEAVE, Act.VANISH} and step.client.startswith("crowd") for step in steps) == 5
    assert any(step.act is Act.PUBLISH and step.client == "herald-0" for step in steps)
    killed = make(1, 2, [Fault.KILL], crowd=10).rounds
    (kill,) = [fault for each in killed for fault in each.faults]
    heralds = [step.at for each in killed if each.faults for step in each.steps if step.client == "herald-0"]
    assert any(kill.at - 0.1 <= at <= kill.at for at in heralds)
    assert not [each for each in make(1, 1).clients.values() if each.kind in {"crowd", "herald"}]


def test_a_plan_ends_at_a_step_with_the_faults_that_had_begun() -> None:
    plan = make(5, 3, [Fault.KILL])
    number = next(at for at, each in enumerate(plan.rounds) if each.faults)
    fault = plan.rounds[number].faults[0]
    before = sum(len(each.steps) for each in plan.rounds[:number])
    first = next(at for at, step in enumerate(plan.rounds[number].steps) if step.at > fault.at)

    cut = up_to(plan, before + first)

    assert cut.rounds[:number] == plan.rounds[:number]
    assert cut.rounds[number].steps == plan.rounds[number].steps[: first + 1]
    assert cut.rounds[number].faults == plan.rounds[number].faults
    assert len(cut.rounds) == number + 1
    assert up_to(plan, before + first - 1).rounds[number].faults == ()
    assert up_to(plan, 10**6) == plan
    assert last_of_round(plan, before) == before + len(plan.rounds[number].steps) - 1
    assert last_of_round(plan, -1) == len(plan.rounds[0].steps) - 1
