"""`canopy acl explain`: the verdict, the rule that decides, and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from tests.support.runs import for_each

CONFIG = """\
[access]
acl_file = "{acl}"

[[rule]]
user = "alice"
filters = ["a/#"]
max_qos = 1

  [[ rule ]]
group = ["staff"]
action = "publish"
effect = "deny"
filters = ["b/{{user}}"]
"""

ACL = "user bob\ntopic read c\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "acl").write_text(ACL)
    made = tmp_path / "canopy.toml"
    made.write_text(CONFIG.format(acl=tmp_path / "acl"))
    return made


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--user", "alice", "--topic", "a/1"), 0, "allowed\n  {config}: line 4: rule[0]"),
        (
            ("--user", "alice", "--topic", "$share/g/a/+", "--action", "subscribe", "--qos", "2"),
            0,
            "allowed, QoS 1\n  {config}: line 4: rule[0]",
        ),
        (("--user", "x", "--group", "staff", "--topic", "b/x"), 3, "denied\n  {config}: line 9: rule[1]"),
        (("--user", "bob", "--topic", "c", "--action", "receive"), 0, "allowed\n  {acl}: line 2"),
        (("--user", "bob", "--topic", "c"), 3, "denied\n  {acl}: no line allows it"),
        (("--topic", "a/1"), 3, "denied\n  {acl}: no line allows it"),
    ],
)
def test_which_rule_decides(config: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = CliRunner().invoke(app, ["acl", "explain", "--config", str(config), *arguments])
    assert (result.output.rstrip(), result.exit_code) == (said.format(config=config, acl=config.parent / "acl"), code)


def test_the_last_word() -> None:
    result = CliRunner().invoke(app, ["acl", "explain", "--topic", "t"])
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "allowed")
    result = CliRunner().invoke(
        app, ["acl", "explain", "--topic", "t"], env={"CANOPY_RULE": '[{user = "a", filters = ["t"]}]'}
    )
    assert result.exit_code == 3
    assert "access.default" in result.output


@for_each(
    ("arguments", "said"),
    [
        (("--topic", "a/+"), "wildcard"),
        (("--topic", "a#", "--action", "subscribe"), "#"),
        (("--topic", "t", "--config", "/nowhere.toml"), "/nowhere.toml"),
        (
            ("--topic", "t", "--listener", "nope"),
            "--listener nope: no listener is called so; there are: mqtt://127.0.0.1",
        ),
        (("--topic", "t", "--address", "10.0.0"), "--address 10.0.0: not an IP address"),
    ],
)
def test_what_cannot_be_asked(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["acl", "explain", *arguments])
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_bad_file_is_told_by_both_commands(config: Path) -> None:
    (config.parent / "acl").write_text("nonsense\n")
    for arguments in (("acl", "explain", "--config", str(config), "--topic", "t"), ("check-config", str(config))):
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 2
        assert "acl: line 1: " in result.output


def test_where_a_client_comes_from(tmp_path: Path) -> None:
    config = tmp_path / "canopy.toml"
    config.write_text(
        '[[listener]]\nname = "in"\nurl = "mqtt://127.0.0.1"\n'
        '[[rule]]\nlistener = "in"\naddress = "10.0.0.0/8"\nfilters = "t"\n'
    )
    asked = ["acl", "explain", "--config", str(config), "--topic", "t", "--listener", "in", "--address"]
    assert CliRunner().invoke(app, [*asked, "10.1.2.3"]).exit_code == 0
    assert CliRunner().invoke(app, [*asked, "11.1.2.3"]).exit_code == 3


def test_a_filter_that_is_denied_for_a_part_of_it(tmp_path: Path) -> None:
    """A narrower filter may be granted: the answer says which part is in the way."""
    config = tmp_path / "canopy.toml"
    config.write_text('[[rule]]\naction = "subscribe"\neffect = "deny"\nfilters = ["a/b"]\n[[rule]]\nfilters = ["#"]\n')
    for topic_filter, said, code in (
        ("#", f'denied\n  {config}: line 1: rule[0], which denies "a/b", a part of this filter', 3),
        ("a/b", f"denied\n  {config}: line 1: rule[0]", 3),
        ("a/c", f"allowed, QoS 0\n  {config}: line 5: rule[1]", 0),
    ):
        arguments = ["acl", "explain", "--config", str(config), "--action", "subscribe", "--topic", topic_filter]
        result = CliRunner().invoke(app, arguments)
        assert (result.output.rstrip(), result.exit_code) == (said, code)
