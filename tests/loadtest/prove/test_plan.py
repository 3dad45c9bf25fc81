"""A plan follows from its seed and options alone."""

from __future__ import annotations

from canopy_load.prove.plan import BROKER_FAULTS, CLIENT_FAULTS, LOAD_SECONDS, Act, Fault, make


def test_the_same_seed_makes_the_same_plan() -> None:
    faults = CLIENT_FAULTS + BROKER_FAULTS
    assert make(7, 3, faults) == make(7, 3, faults)
    assert make(7, 3, faults) != make(8, 3, faults)


def test_only_what_is_asked_for_goes_wrong() -> None:
    plan = make(1, 4, [Fault.TAKEOVER, Fault.KILL])
    acts = {step.act for each in plan.rounds for step in each.steps}
    assert Act.TAKEOVER in acts
    assert not acts & {Act.CUT, Act.FREEZE, Act.ROAM}
    assert {each.fault.fault for each in plan.rounds if each.fault is not None} == {Fault.KILL}


def test_every_fault_of_a_broker_has_its_turn_and_so_has_peace() -> None:
    plan = make(1, 4, BROKER_FAULTS)
    faults = [None if each.fault is None else each.fault.fault for each in plan.rounds]
    assert sorted(faults, key=str) == sorted([*BROKER_FAULTS, None], key=str)


def test_steps_are_in_order_and_of_clients_that_there_are() -> None:
    plan = make(3, 2, CLIENT_FAULTS)
    for each in plan.rounds:
        times = [step.at for step in each.steps]
        assert times == sorted(times)
        assert all(step.client in plan.clients for step in each.steps)
        publishes = [step for step in each.steps if step.act is Act.PUBLISH]
        assert all(step.output < len(plan.clients[step.client].outputs) for step in publishes)
        assert all(step.at < LOAD_SECONDS for step in publishes)


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
    }
    for kind in ("connected", "cut", "away", "clean", "frozen", "taken over", "mortal", "publisher"):
        assert {each.version for each in plan.clients.values() if each.kind == kind} == {4, 5}
