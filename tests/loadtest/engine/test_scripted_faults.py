"""Deliveries that a server drops, doubles, holds back, delays and changes: the result states exactly those."""

from __future__ import annotations

import random

import pytest

from canopy_load.report.result import Result
from tests.loadtest.account import Account
from tests.loadtest.playing import Cases, agrees, named, play, reader, sender, stage, stated
from tests.loadtest.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.scripted import ScriptedServer

Played = tuple[ScriptedServer, Result]


def flipped(payload: bytes) -> bytes:
    """The payload with its last bit turned over; marks stand in front."""
    return payload[:-1] + bytes([payload[-1] ^ 1])


EVERYTHING = Cases()

EVERYTHING.add(
    "pair",
    sender("p-pair", "pair/%c", 2),
    reader("s-pair", "pair/#", 2),
    fates=lambda each: (
        DROP
        if (each.message.publisher, each.subscriber) == ("p-pair-1", "s-pair-0") and each.message.number in range(9)
        else DELIVER
    ),
)

EDGES = {"all": range(30), "last": range(20, 30), "first": range(10)}
for _name, _numbers in EDGES.items():
    EVERYTHING.add(_name, sender(f"p-{_name}", _name), reader(f"s-{_name}", _name), fates=dict.fromkeys(_numbers, DROP))

EVERYTHING.add(
    "again",
    sender("p-again", "again", qos=1),
    reader("s-again", "again", qos=1),
    fates={4: Fate(copies=2, dup=True), 9: Fate(copies=3, dup=True), 14: Fate(copies=2)},
)

GARBAGE = {3: b"", 5: b"x", 7: bytes(64), 9: b"\xff" * 300}
EVERYTHING.add(
    "garbage",
    sender("p-garbage", "garbage"),
    reader("s-garbage", "garbage"),
    fates={number: Fate(payload=lambda _, garbage=garbage: garbage) for number, garbage in GARBAGE.items()},  # type: ignore[misc]
)

EVERYTHING.add(
    "told",
    sender("p-told", "told"),
    reader("s-told", "told"),
    fates={
        3: DROP,
        4: DROP,
        5: DROP,
        8: Fate(told=("3;full-messages",)),
        12: Fate(told=("1;expired", "40;age")),
        15: Fate(told=("nonsense", "x;y", "")),
    },
)


@pytest.fixture(scope="module")
def everything() -> Played:
    return EVERYTHING.play()


def test_a_fault_for_one_subscriber_stands_at_its_pair(everything: Played) -> None:
    server, result = everything
    agrees(server, result, ["p-pair", "s-pair"])
    mine = [each for each in result.pairs if each.group == "s-pair" and each.deliveries.lost]
    assert [(each.publisher, each.subscriber, each.deliveries.lost) for each in mine] == [("p-pair-1", "s-pair-0", 9)]
    [told] = [each for each in result.as_json()["pairs"] if each["group"] == "s-pair"]
    assert (told["publisher"], told["subscriber"], told["deliveries"]["lost"]) == ("p-pair-1", "s-pair-0", 9)


@pytest.mark.parametrize("name", EDGES)
def test_losses_at_the_edges(everything: Played, name: str) -> None:
    """A gap that nothing follows, or that nothing went before, cannot be seen in what comes."""
    server, result = everything
    agrees(server, result, [f"p-{name}", f"s-{name}"])
    lost = len(EDGES[name])
    assert stated(named(result, f"s-{name}").deliveries) == Account(30, 30 - lost, lost)


def test_copies_that_quality_1_allows(everything: Played) -> None:
    server, result = everything
    agrees(server, result, ["p-again", "s-again"])
    assert stated(named(result, "s-again").deliveries) == Account(30, 30, duplicates=1, redelivered=3)


def test_who_lost_its_mark_cannot_be_known_and_is_missing(everything: Played) -> None:
    _, result = everything
    assert stated(named(result, "s-garbage").deliveries) == Account(30, 26, 4)
    assert list(result.errors.values()) == [4], result.errors


def test_losses_that_are_told(everything: Played) -> None:
    server, result = everything
    agrees(server, result, ["p-told", "s-told"])
    assert stated(named(result, "s-told").deliveries) == Account(30, 27, 3, told_lost=44)


def test_the_totals(everything: Played) -> None:
    server, result = everything
    books = server.books.account()
    assert (result.deliveries.expected, result.deliveries.received) == (books.expected, books.received - 4)
    assert result.sent == sum(each.sent for each in result.groups) == len(server.messages)
    assert not result.interrupted
    assert len(result.run) == 8
    int(result.run, 16)
    assert result.reconciled is not None
    assert (result.reconciled.seen, result.reconciled.told) == (result.deliveries.lost, 44)
    assert (result.reconciled.reported, result.reconciled.agrees) == (None, None), "it publishes no ledger"


def copies(result: Result) -> tuple[int, int]:
    """Further copies as the seconds have them, and as the headline does."""
    found = result.deliveries
    return (
        sum(each.copies for each in result.seconds),
        found.duplicates + found.redelivered + found.overlapping,
    )


def test_the_seconds_have_the_copies_of_the_headline_under_a_name_that_fits_them_all(everything: Played) -> None:
    _, result = everything
    seen, told = copies(result)
    assert seen == told > result.deliveries.duplicates


async def test_gaps_of_slow_readers_are_apart_as_in_the_headline() -> None:
    lost = {3: DROP, 4: DROP, 9: Fate(copies=3, dup=True)}
    slow = reader("slow", keys={"reading": {"rate": 100_000}})
    async with ScriptedServer(Script(fate=lambda each: lost.get(each.message.number, DELIVER))) as server:
        result = await play(server, sender(), reader("free"), slow)
    assert (result.deliveries.lost, sum(each.gaps for each in result.seconds)) == (2, 2)
    assert sum(each.slow_gaps for each in result.seconds) == 2
    assert copies(result) == (2, 2)


async def test_a_delivery_after_long_silence_is_lost_and_one_in_time_is_not() -> None:
    script = Script(fate=lambda each: {28: Fate(delay=0.5), 29: Fate(delay=30)}.get(each.message.number, DELIVER))
    async with ScriptedServer(script) as server:
        result = await play(server, sender(), reader(), stages=[stage(0.4)], quiet=0.8)
        agrees(server, result)
    assert (result.deliveries.received, result.deliveries.lost) == (29, 1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_faults(seed: int) -> None:
    """The result equals the server's books, whatever the script, in one process and in two."""
    chance = random.Random(seed)
    fates = [
        Fate(
            drop=chance.random() < 0.3,
            copies=chance.choice([1, 1, 2, 4]),
            dup=chance.random() < 0.5,
            hold=chance.choice([0, 0, 0, 1, 2, 5]),
            delay=chance.choice([0.0, 0.0, 0.0, 0.02, 0.1]),
            payload=chance.choice([None, None, None, flipped]),
            told=chance.choice([(), (), ("2;age",)]),
        )
        if chance.random() < 0.4
        else DELIVER
        for _ in range(997)
    ]

    def fate(delivery: Delivery) -> Fate:
        # By names and numbers only: the same whoever comes first.
        who = sum(delivery.message.publisher.encode()) * 31 + sum(delivery.subscriber.encode()) * 17
        return fates[(who + delivery.message.number * 7919) % len(fates)]

    async with ScriptedServer(Script(fate=fate)) as server:
        result = await play(
            server,
            *(sender(f"p{qos}", f"t/%c/{qos}/%n", 2, topics=3, choose="random", qos=qos) for qos in (0, 1, 2)),
            *(reader(f"s{qos}", clients=2, qos=qos) for qos in (0, 1, 2)),
            processes=seed,
        )
        assert server.violations == []
        agrees(server, result)
    assert result.processes == seed
    for name in ("lost", "duplicates", "redelivered", "reordered", "altered", "told_lost"):
        assert getattr(result.deliveries, name) > 0, name
    assert named(result, "s0").deliveries.redelivered == 0
