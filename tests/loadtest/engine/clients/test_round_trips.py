"""Requests and answers: each round trip is measured once, and what stays unanswered is said."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from canopy_load.cli.common import exit_code
from canopy_load.engine import conductor
from canopy_load.engine.clients import round_trips
from canopy_load.engine.clients.round_trips import Requester, Responder
from canopy_load.engine.job import Job, Target
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.mark import pack
from canopy_load.report.result import Result
from canopy_load.report.wording import findings
from canopy_load.scenario.plan import Plan, PlanError
from canopy_load.scenario.scenario_schema import Reply, Scenario
from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.packets import V5, Publish
from canopy_mqtt.core.codec.properties import encode_forward
from tests.loadtest.paper import Paper
from tests.loadtest.playing import Cases, agrees, group, named, reader, scenario, sender
from tests.loadtest.script import DELIVER, DROP, Delivery, Fate
from tests.loadtest.scripted import ScriptedServer
from tests.support.runs import for_each

RUN = 0x0180
GUIDE = Path(__file__).parents[4] / "docs" / "load.md"


CASES = Cases()


@pytest.fixture(scope="module")
def played() -> tuple[ScriptedServer, Result]:
    """Callers and services are in processes of their own."""
    return CASES.play(processes=2)


def callers(name: str = "x", **publish: Any) -> dict[str, Any]:
    return sender(f"call-{name}", f"{name}/call/%c", 2, reply_to=f"{name}/answers/%c", **publish)


def service(name: str = "x", clients: int = 1, **reply: Any) -> dict[str, Any]:
    return reader(f"serve-{name}", f"{name}/call/#", clients, keys={"reply": reply}, qos=1)


def some_answers(delivery: Delivery) -> Fate:
    answer = delivery.message.topic == "missing/answers/0"
    return {3: DROP, 5: Fate(copies=3)}.get(delivery.number, DELIVER) if answer else DELIVER


CASES.add("quick", callers("quick", qos=0), service("quick", qos=0, size=40))
CASES.add("sure", callers("sure", qos=1), service("sure", qos=1, size=40))
CASES.add("missing", callers("missing"), service("missing"), fates=some_answers)
CASES.add("both", callers("both"), service("both", clients=2))


@pytest.mark.parametrize(("name", "qos"), [("quick", 0), ("sure", 1)])
def test_every_request_is_answered_and_its_round_trip_measured(
    name: str, qos: int, played: tuple[ScriptedServer, Result]
) -> None:
    server, result = played
    agrees(server, result, [f"call-{name}"])
    call = named(result, f"call-{name}")
    assert (call.requests, call.answered, call.answered_again) == (60, 60, 0)
    assert named(result, f"serve-{name}").deliveries.received == 60
    answers = [message for message in server.messages if message.topic.startswith(f"{name}/answers/")]
    assert {(message.qos, len(message.payload)) for message in answers} == {(qos, 40)}
    assert result.round_trip.count == 4 * 60 - 1
    assert (result.round_trip.min or 0) > 0
    assert result.errors == {}


def test_what_is_not_answered_is_said_and_strict_minds_it(played: tuple[ScriptedServer, Result]) -> None:
    _, result = played
    call = named(result, "call-missing")
    assert (call.requests, call.answered, call.answered_again, result.unanswered) == (60, 59, 2, 1)
    assert "Unanswered: 1 of 240 requests (0.42 %)." in [each.text for each in findings(result)]
    assert (exit_code(result, strict=True), exit_code(result, strict=False)) == (3, 0)


def test_two_who_answer_the_same_request_are_counted_once(played: tuple[ScriptedServer, Result]) -> None:
    call = named(played[1], "call-both")
    assert (call.answered, call.answered_again) == (60, 60)


async def test_the_scenario_of_the_guide_runs_on_a_broker() -> None:
    """A shared subscription of ours answers; smaller, and for half a second."""
    (text,) = re.findall(r"## Requests and answers.*?```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    data = tomllib.loads(text)
    data["groups"][0]["clients"] = 4
    found = Scenario.model_validate({"name": "guide", "quiet": 0.3, "stages": [{"name": "go", "seconds": 0.5}], **data})
    async with Broker(Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "sys": {"interval": 0.1}})) as broker:
        job = Job(found, "", [Target("127.0.0.1", broker.ports[0])], thresholds=("unanswered == 0",))
        result = await conductor.play(job)
    assert result.requests > 0
    assert [each.met for each in result.thresholds] == [True]
    assert (result.deliveries.lost, result.errors) == (0, {})


def answer(stream: int, sequence: int, run: int = RUN) -> bytes:
    return encode_forward(correlation_data=pack(run, 1_000, stream, sequence))


def test_each_request_counts_once_whatever_the_order_of_its_answers() -> None:
    tally = Tally()
    asked = Requester(RUN, 4, 6, tally)
    for stream, sequence in [(4, 0), (5, 7), (4, 3), (4, 1), (4, 3), (5, 2), (4, 1), (5, 7)]:
        assert asked.take(answer(stream, sequence), 3_500)
    assert (asked.answered, tally.answered, tally.answered_again) == (5, 5, 3)
    assert tally.round_trips == {2_500 >> 1 << 1: 5}


@for_each("properties",
    [
        answer(3, 0), answer(6, 0), answer(4, 0, run=RUN + 1), encode_forward(correlation_data=b"other"),
        encode_forward(content_type="x"), b"\xff",
    ],
)  # fmt: skip
def test_what_is_no_answer_to_its_requests_is_left_to_others(properties: bytes) -> None:
    asked = Requester(RUN, 4, 6, Tally())
    assert not asked.take(properties, 5)
    assert asked.answered == 0


class Service(Paper):
    """Who answers."""

    def __init__(self, **reply: Any) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.answers = Responder(Reply(**reply), V5, self.session, self.errors.append)
        self.answers.wire, self.wire.asked = self.wire, self.answers.hear

    def hear(self, times: int) -> None:
        """Requests, in one read."""
        asks = Publish(b"t", b"", 0, properties=encode_forward(response_topic="r", correlation_data=b"c"))
        for _ in range(times):
            self.answers.hear(asks)


def test_who_answers_reads_no_more_while_its_answers_are_not_taken() -> None:
    service = Service()
    service.wire.pause_writing()
    assert not service.reading
    service.wire.resume_writing()
    assert service.reading


def test_the_answers_to_one_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(size=100)
    monkeypatch.setattr(round_trips, "MAX_ANSWER_BYTES", 1_000)
    service.hear(50)
    assert 1_000 <= service.wire.behind < 1_150
    assert set(service.errors) == {"answers that were not sent: too many requests at once"}
    service.wire.data_received(b"\xd0\x00")  # the end of a read: a PINGRESP
    assert service.wire.behind == 0
    assert len(service.data) < 1_150


def test_no_more_answers_are_under_way_than_the_broker_allows_and_an_acknowledgement_makes_room() -> None:
    service = Service(qos=1)
    service.answers.maximum = 2
    service.hear(3)
    assert service.session.replying == service.session.reserved == {1, 2}
    assert service.errors == ["answers that were not sent: the broker has not acknowledged enough of them"]
    service.wire.data_received(b"\x40\x02\x00\x01")
    assert service.session.replying == service.session.reserved == {2}
    service.hear(1)
    assert len(service.errors) == 1


@for_each(
    ("made", "why"),
    [
        (lambda: scenario(callers() | {"version": "3.1.1"}), "publish.reply_to: exists in MQTT 5.0 only"),
        (lambda: scenario(callers(properties={"response_topic": "x"})), "reply_to: excludes"),
        (lambda: scenario(callers(properties={"topic_alias": True})), "reply_to: excludes"),
        (lambda: scenario(group("a", reply={})), "reply: needs a subscription"),
        (lambda: scenario(service() | {"version": "3.1.1"}), "reply: exists in MQTT 5.0 only"),
        (lambda: scenario(service(qos=2)), "less than or equal to 1"),
    ],
)
def test_what_excludes_requests_and_answers(made: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        made()


@for_each("topic", ["answers", "answers/%c/%n"])
def test_every_caller_has_a_response_topic_of_its_own(topic: str) -> None:
    with pytest.raises(PlanError, match="needs %c and takes no %n"):
        Plan(scenario(callers() | {"publish": [{"topic": "t/%c", "rate": 1, "reply_to": topic}]}), "0" * 8)


def test_a_response_topic_without_wildcards() -> None:
    with pytest.raises(PlanError, match=r"topic 'a/0/\+'"):
        Plan(scenario(callers() | {"publish": [{"topic": "t/%c", "rate": 1, "reply_to": "a/%c/+"}]}), "0" * 8)
