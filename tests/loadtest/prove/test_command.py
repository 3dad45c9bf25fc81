"""`canopy prove`: what it refuses, what it writes, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from canopy_load.brokers.process import BrokerProcess, free_port
from canopy_load.brokers.registry import PEERS
from canopy_load.cli.prove import MAX_ROUNDS, Chosen, rounds_of
from canopy_load.engine import running
from canopy_load.ledger.history import Event, Operation
from canopy_load.prove.faults import BROKER_FAULTS, CLIENT_FAULTS
from canopy_mqtt.command.cli import app
from tests.loadtest.prove.proving import EVERYTHING
from tests.support.runs import for_each


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A broker's."""
    found = free_port()
    with BrokerProcess(PEERS["canopy"].command(found, tmp_path_factory.mktemp("canopy")), found, None, patience=60):
        yield found


def prove(*words: str) -> Result:
    return CliRunner().invoke(app, ["prove", *words])


@for_each(
    ("words", "why"),
    [
        ([], "canopy: give the URL of a running broker, such as mqtt://127.0.0.1:1883, or --broker NAME"),
        (["mqtt://h", "--broker", "canopy"], "canopy: --broker starts a broker of its own"),
        (["mqtt://h", "--fault", "kill"], "canopy: --fault kill: this needs a broker that is started for it"),
        (["mqtt://h", "--nodes", "3"], "canopy: --nodes and --timeout need a broker that is started for it"),
        (["mqtt://h", "--until", "3"], "canopy: --until needs --replay SEED"),
        (
            ["mqtt://127.0.0.1", "--replay", "3", "--until", "99999999", "--rounds", "2"],
            "canopy: --until 99999999: the plan of seed 3 with 2 rounds and these options ends with step ",
        ),
        (
            ["--broker", "canopy", "--fault", "pair"],
            "canopy: nothing of what --fault asks for can be made here (pair: it needs 3 nodes (--nodes 3))",
        ),
        (["compare"], "canopy: give the files that --json has written"),
        (["compare", __file__], "it is no report of canopy prove"),
        (["compare", "a.json", "--json", "b.json"], "canopy: compare writes --html only"),
        (["mqtt://h", "--cert", "file"], "canopy: --ca, --cert, --key and --insecure are for mqtts:// and wss://"),
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str], why: str) -> None:
    done = prove(*words)
    assert why in done.output
    assert done.exit_code == 2


def test_without_a_number_of_rounds_each_fault_has_its_turn() -> None:
    chosen = Chosen(rounds=None)
    assert rounds_of(chosen, CLIENT_FAULTS) == 4
    assert rounds_of(replace(chosen, minutes=1.0), CLIENT_FAULTS) == 8
    for each in (chosen, replace(chosen, minutes=1.0)):
        assert rounds_of(each, BROKER_FAULTS) == len(BROKER_FAULTS) + 1 <= MAX_ROUNDS
    assert rounds_of(replace(chosen, rounds=2), BROKER_FAULTS) == 2


def test_a_broker_that_is_not_there_cannot_be_judged() -> None:
    done = prove(f"mqtt://127.0.0.1:{free_port()}")
    assert "canopy: no client was accepted: mqtt://127.0.0.1:" in done.output
    assert "connection refused" in done.output
    assert done.exit_code == 2


def test_what_a_broker_prints_does_not_reach_the_terminal_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "loud.toml"
    file.write_text(
        """command = ["{python}", "-c", "raise SystemExit('\\u001b[2Jgone\\u009b')"]\n"""
        """version_command = ["printf", "%b", '\\033[31mred']\n"""
    )
    done = prove("--broker", str(file))
    assert "broker: \\x1b[31mred\n" in done.output
    assert "\\x1b[2Jgone" in done.output
    assert all(each.isprintable() or each == "\n" for each in done.output)
    assert done.exit_code == 1


def test_a_running_broker_is_judged(port: int, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{port}"
    written = {name: tmp_path / f"a.{name}" for name in ("json", "junit", "history", "html")}
    files = [word for name, file in written.items() for word in (f"--{name}", str(file))]

    options = ["--user", "somebody", "--password", "secret", "--recovery", "60"]
    done = prove(url, "--seed", "5", "--rounds", "1", *options, *files)

    assert done.exit_code == 0, done.output
    assert "verdict: nothing that was promised was broken" in done.output
    again = f"CANOPY_LOAD_PASSWORD=… canopy prove {url} --user somebody --recovery 60"
    assert f"again: {again} --seed 5 --rounds 1" in done.output
    made = json.loads(written["json"].read_text())
    assert (made["seed"], made["code"], made["targets"]) == (5, 0, [url])
    assert made["counts"]["acknowledged"] > 0
    assert ElementTree.parse(written["junit"]).getroot().get("failures") == "0"
    kinds = {json.loads(line)[0] for line in written["history"].read_text().splitlines()}
    assert kinds == {each.__name__ for each in {*Event.__subclasses__(), *Operation.__subclasses__()} - {Operation}}
    assert again in written["html"].read_text()
    assert not any("secret" in each.read_text() for each in written.values())

    league = tmp_path / "league.html"
    table = prove("compare", str(written["json"]), str(written["json"]), "--html", str(league))
    assert table.exit_code == 0
    assert f"{url} (2)" in table.output
    assert "kept (" in league.read_text()


def test_a_plan_is_played_again_until_a_step(port: int) -> None:
    done = prove(f"mqtt://127.0.0.1:{port}", "--replay", "5", "--until", "20", "--rounds", "1")
    assert done.exit_code == 0, done.output
    assert "nothing was found: there are no packets to show" in done.output
    assert "--replay 5 --until 20 --rounds 1" in done.output


def test_a_second_signal_tells_that_something_may_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(running, "run", cancelled)
    done = prove("mqtt://127.0.0.1:1883")
    assert "canopy: the broker may keep sessions and retained messages of this run" in done.output
    assert done.exit_code == 130


def test_the_page_names_every_fault() -> None:
    page = (Path(__file__).parents[3] / "docs" / "prove.md").read_text(encoding="utf-8")
    assert [f"| `{each}` |" in page for each in EVERYTHING] == [True] * len(EVERYTHING)
