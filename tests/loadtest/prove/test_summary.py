"""What is reported: the same in all forms, of one piece and of several, and beside other brokers."""

from __future__ import annotations

import json
import math
import operator
import re
from functools import reduce

import pytest

from canopy_load.prove import page, report
from canopy_load.prove.faults import CLIENT_FAULTS, Fault
from canopy_load.prove.summary import NoReport, Summary, added, loads, packets_of_findings
from tests.loadtest.prove.fake import Planted
from tests.loadtest.prove.proving import proven, reported
from tests.support.runs import for_each


@pytest.fixture(scope="module")
def bad() -> Summary:
    return reported(proven(Planted.LOSES_SOME, faults=[*CLIENT_FAULTS, Fault.KILL]))


@pytest.fixture(scope="module")
def good() -> Summary:
    return reported(proven(faults=[Fault.KILL], recovery=5.0))


def test_a_report_comes_back_from_its_json(bad: Summary, good: Summary) -> None:
    assert loads(bad.dumps()) == bad
    assert loads(good.dumps()) == good


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "canopy prove 0"}', '{"format": "canopy prove 1"}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(NoReport):
        loads(text)


@for_each(
    ("path", "value", "why"),
    [
        (("settings", "broker"), 5, "settings.broker: Input should be a valid string"),
        (("promises", 0, "checked"), "3", "promises.0.checked: Input should be a valid integer"),
        (("promises", 0, "findings"), 3, "promises.0.findings: Input should be a valid array"),
        (("promises", 0), 3, "it is no report of canopy prove"),
        (("promises", 0, "findings", 0, "packets"), [1], "findings.0.packets.0: Input should be a valid string"),
        (("counts", "published"), None, "counts.published: Input should be a valid integer"),
        (("seconds",), math.inf, "not JSON compliant"),
        (("rounds",), True, "rounds: Input should be a valid integer"),
        (("refused",), [], "refused: Input should be an object"),
    ],
)
def test_a_report_with_a_wrong_type_is_refused_with_the_place(
    path: tuple[str | int, ...], value: object, why: str, bad: Summary
) -> None:
    made = json.loads(bad.dumps())
    *outer, last = path
    place = reduce(operator.getitem, outer, made)
    place[last] = value
    with pytest.raises(NoReport, match=re.escape(why)):
        loads(json.dumps(made))


def test_a_finding_has_its_operations_with_steps_their_packets_and_the_command_that_shows_it(bad: Summary) -> None:
    (lost,) = [each for each in bad.broken if each.promise == "lost"]
    case = lost.findings[0]
    assert any("PUBLISH" in line and "(step " in line for line in case.operations)
    assert any("-> PUBLISH id " in line for line in case.packets)
    assert any("<- PUBACK id " in line or "<- PUBCOMP id " in line for line in case.packets)
    assert f"--replay 1 --until {case.until}" in report.text(bad)


@for_each(("share", "told"), [(0.67, True), (0.05, False)])
def test_a_busy_machine_is_told_beside_what_is_broken(share: float, told: bool, bad: Summary) -> None:
    busy = loads(bad.dumps())
    busy.starved = share * busy.seconds
    assert ("this machine was busy: for 67% of the time" in report.text(busy)) is told


def test_the_page_has_the_verdicts_the_faults_the_findings_and_the_command(bad: Summary) -> None:
    html = page.page(bad)
    assert "promise broken" in html or "promises broken" in html
    assert bad.broken[0].findings[0].what in html
    assert bad.settings.again in html
    for chart in ("operations", "waits", "losses"):
        assert f'id="chart-{chart}"' in html
    operations, waits, losses = page.charts(bad)
    assert [each.name for each in operations.stages] == ["kill"]
    assert sum(each or 0 for each in losses.series[0].values) > 0
    assert max(each or 0 for each in waits.series[0].values) > 0


def test_text_from_outside_is_escaped_on_the_page(good: Summary) -> None:
    good = loads(good.dumps())
    good.refused["<script>alert(1)</script>"] = 1
    good.settings.broker = "<b>broker</b>"
    assert "<script>alert" not in page.page(good)
    assert "<b>broker" not in page.league([good])


def test_pieces_add_up(bad: Summary, good: Summary) -> None:
    both = added([good, bad, good])
    assert both.counts["published"] == 2 * good.counts["published"] + bad.counts["published"]
    assert both.code == 1
    assert both.rounds == 6
    assert both.seeds == [1, 1, 1]
    assert [each.findings for each in both.promises] == [each.findings for each in bad.promises]
    assert len(both.timeline) == 2 * len(good.timeline) + len(bad.timeline)
    assert both.faults[1].began == pytest.approx(bad.faults[0].began + len(good.timeline))
    assert both.waits["CONNACK"] == max(good.waits["CONNACK"], bad.waits["CONNACK"])
    assert added([good]).code == 0
    assert set(added([good]).counts) == set(good.counts)


def test_a_piece_that_could_not_be_judged_is_told(good: Summary) -> None:
    doubtful = loads(good.dumps())
    doubtful.obstacles = ["the tool was late"]
    both = added([good, doubtful])
    assert both.code == 2
    assert both.verdict == "could not judge: the tool was late"


def test_the_league_has_a_row_for_each_promise_and_a_column_for_each_broker(bad: Summary, good: Summary) -> None:
    rows = page.cells([good, bad])
    assert len(rows) == len(good.promises)
    assert all(len(row) == 3 for row in rows)
    lost = rows[0]
    assert lost[1].startswith("kept (")
    assert lost[2].startswith(f"BROKEN {len(bad.broken[0].findings)} (")
    assert any(row[1] == "not judged (never checked)" for row in rows)
    text = page.league_text([good, bad])
    assert "fake (1)" in text
    assert "fake (2)" in text
    assert bad.verdict in text


def test_a_fault_has_the_time_for_which_it_was_felt(good: Summary) -> None:
    ((fault, times, longest),) = report.felt(good)
    assert (fault, times) == ("kill", 1)
    assert "CONNACK" in longest


def test_a_report_lists_the_faults_that_happened_and_those_that_had_no_turn() -> None:
    short = reported(proven(rounds=1, faults=[Fault.CUT, Fault.KILL, Fault.STOP]))
    (missing,) = [each for each in (Fault.KILL, Fault.STOP) if each in short.turnless]
    (happened,) = {Fault.KILL, Fault.STOP} - {missing}
    said = f"cut {short.played['cut']}, {happened} 1", f"{missing}, none; --rounds 3 plays each"
    assert short.played["cut"] > 1
    assert tuple(report.faults_told(short).values()) == said
    for form in (report.text(short), report.junit(short), page.page(short)):
        assert all(each in form for each in (*said, "no turn in 1 round"))
    assert loads(short.dumps()).played == short.played
    long = reported(proven(rounds=3, faults=[Fault.KILL, Fault.STOP]))
    assert set(long.played) == {"kill", "stop", "none"}
    assert list(report.faults_told(long)) == ["faults that happened"]


def test_a_replay_shows_all_packets_of_the_clients_of_findings() -> None:
    judgement = proven(Planted.ALTERS, faults=CLIENT_FAULTS)
    lines = packets_of_findings(judgement)
    clients = {finding.client for ruling in judgement.broken for finding in ruling.findings}
    assert clients <= {line.split()[2] for line in lines}
    assert [float(line.split()[0]) for line in lines] == sorted(float(line.split()[0]) for line in lines)
    assert packets_of_findings(proven(faults=())) == ["nothing was found: there are no packets to show"]


def test_a_crowd_is_judged_like_everybody() -> None:
    assert reported(proven(crowd=40, rounds=1, faults=[Fault.KILL])).code == 0
    (lost, *_) = reported(proven(Planted.LOSES_SOME, crowd=40, rounds=1, faults=[Fault.KILL])).broken
    assert lost.promise == "lost"
    assert lost.by_kind["crowd"] > 10
