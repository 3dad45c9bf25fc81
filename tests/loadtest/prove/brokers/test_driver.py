"""A broker as a file of data: what it may say, and what is made of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from canopy_load.errors import Misuse
from canopy_load.prove.brokers.driver import FOLDER, fill, find, known
from tests.support.runs import for_each

MAX_LINES = 60
"""Of a file: a broker that needs more is no data any more."""
HERE = {
    "canopy", "canopy-memory", "canopy-nodes", "canopy-postgresql", "canopy-shared", "canopy-workers", "mosquitto",
    "rabbitmq", "amqtt", "aedes", "nats",
}  # fmt: skip
"""The brokers whose files have been tried."""


@pytest.mark.parametrize("name", known())
def test_a_known_broker_has_a_short_file_that_says_what_it_promises(name: str) -> None:
    driver = find(name)
    assert driver.durability.says
    assert len((FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_a_file_that_nobody_has_tried_says_so() -> None:
    assert {name for name in known() if not find(name).not_run} == HERE


def test_the_page_names_every_broker() -> None:
    page = (Path(__file__).parents[4] / "docs" / "prove.md").read_text(encoding="utf-8")
    assert [name for name in known() if f"`{name}`" not in page] == []


@for_each(
    ("text", "why"),
    [
        ("peer = 'canopy'\nstores = true", "stores: Unexpected keyword argument"),
        ("peer = 'canopy'\npatience = nan", "not JSON compliant"),
        ("peer = 'canopy'\nmax_nodes = 10", "max_nodes: Input should be less than or equal to 9"),
        ("peer = 'canopy'\n[environment]\n'A=B' = 'c'", r"environment\.A=B.*: String should match pattern '\^\[\^=\]"),
        ("peer = 'canopy'\n[files]\n'../../x' = ''", "files.'../../x': a file must be within the node's folder"),
        ("peer = 'canopy'\n[files]\n'/x' = ''", "files.'/x': a file must be within the node's folder"),
        ("peer = 'ibm'", "peer: known are canopy"),
        ("says = 'nothing'", "it has neither peer nor command"),
        ("peer = ", "Invalid value"),
    ],
)
def test_a_file_with_a_mistake_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(Misuse, match=why):
        find(str(file))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(Misuse, match="there is no such file"):
        find("/nowhere/broker.toml")


def test_places_are_filled_and_other_braces_stay() -> None:
    assert fill("listen { port {port} } {unknown}", {"port": "1883"}) == "listen { port 1883 } {unknown}"


def test_files_are_written_and_the_command_is_filled(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('command = ["{python}", "-c", "{folder}/conf/a"]\n[files]\n"conf/a" = "port = {port}"\n')
    command = find(str(file)).make({"folder": str(tmp_path), "port": "1883", "python": sys.executable})
    assert command == [sys.executable, "-c", f"{tmp_path}/conf/a"]
    assert (tmp_path / "conf" / "a").read_text() == "port = 1883"


def test_what_is_not_installed_is_named_with_what_installs_it(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('command = ["no-such-broker"]\n[needs]\nno-such-broker = "the shop"\n')
    assert find(str(file)).missing == "no-such-broker is not installed (the shop)"


def test_a_node_gets_the_lines_of_its_peer_and_its_own(tmp_path: Path) -> None:
    command = find("mosquitto").make({"folder": str(tmp_path), "store": "/store", "port": "1883"})
    lines = Path(command[-1]).read_text().splitlines()
    assert "listener 1883 127.0.0.1" in lines
    assert lines[-1] == "autosave_interval 1"
    assert "persistence_location /store/" in lines
