"""mosquitto's files, read as mosquitto reads them: what each line does, and some hundred cases beside a mosquitto."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from getpass import getuser
from itertools import product
from pathlib import Path

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.rules.acl_file import BLANKS, parse_acl, read_acl_file
from canopy_mqtt.security.rules.rule import PUBLISH, RECEIVE
from canopy_mqtt.security.rules.rule_book import RuleBook
from canopy_mqtt.settings import Access, Settings
from tests.e2e.wire import Peer
from tests.support.mosquitto import MOSQUITTO, needed
from tests.support.mosquitto import mosquitto as running
from tests.support.runs import for_each

ACL = """\
# Anonymous clients.
topic readwrite anon/#
topic read open
topic deny anon/secret
topic write $other/x
topic write both
topic read both

user admin
topic readwrite #
topic readwrite $other/#

user bob
topic bob/+/x
topic read r/#
topic write w/#
topic deny r/secret/#
topic readwrite r/secret/ok
topic read a/+
topic read {user}/x

user carol
topic   read   sp a/ce
topic readwrite

user bob
topic second

user deny everything
topic allow/first
topic deny #

pattern readwrite p/%u/c/%c
pattern read pc/%c/#
pattern deny p/%u/no
pattern write pre%u/x
pattern all/%%u/%d/%c
pattern everybody
"""

CLIENTS: tuple[tuple[str | None, str], ...] = (
    (None, "c1"),
    ("bob", "c2"),
    ("carol", "c3"),
    ("deny everything", "c4"),
    ("nobody", "c5"),
    ("x/y", "c/6"),
    ("b+", "c7"),
    ("bob", "c+"),
    ("%c", "%u"),
    ("", "c8"),
)

TOPICS = (
    "anon/a", "anon", "anon/secret", "open", "open/x", "$other/x", "both", "bob/1/x", "bob/1/2/x", "r/1", "r",
    "r/secret/ok", "w/1", "a/1", "a/1/2", "{user}/x", "second", "sp a/ce", "readwrite", "allow/first", "p/bob/c/c2",
    "p/bob/c/c1", "p/bob/no", "p/nobody/no", "p/x/y/c/c/6", "pc/c3/1", "pc/c/6/1", "prebob/x", "prenobody/x",
    "all/%bob/%d/c2",
    "all/%u/%d/c1", "everybody", "p//c/c8", "p/%c/c/%u", "nothing",
)  # fmt: skip

CASES = [*product(CLIENTS, (PUBLISH, RECEIVE), TOPICS)]


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a mosquitto that has read `ACL`."""
    folder = tmp_path_factory.mktemp("mosquitto")
    (folder / "acl").write_text(ACL)
    with running(folder, f"user {getuser()}", f"acl_file {folder / 'acl'}") as port:
        yield port


@needed
async def test_the_same_answers_as_mosquitto(mosquitto: int) -> None:
    """The same file, the same clients, the same topics: 700 verdicts, at PUBLISH and at delivery."""
    acl = parse_acl(ACL, "acl")
    admin = await Peer.join(mosquitto, "admin", user="admin")
    wrong: list[tuple[str | None, str, str, str, bool]] = []
    for user, client_id in CLIENTS:
        principal = Principal(user, client_id=client_id)
        client = await Peer.join(mosquitto, client_id, "#", "$other/#", "r/secret/ok", user=user)
        for topic in TOPICS:
            there = await client.publish(topic, b"x", qos=1) != reason_codes.NOT_AUTHORIZED
            if acl.about(principal, PUBLISH, topic)[0] is not there:
                wrong.append((user, client_id, "publish", topic, there))
        await client.fence()
        for topic in TOPICS:
            assert await admin.publish(topic, b"x", qos=1) != reason_codes.NOT_AUTHORIZED
            there = topic in [packet.topic for packet in await client.fence()]
            if acl.about(principal, RECEIVE, topic)[0] is not there:
                wrong.append((user, client_id, "receive", topic, there))
        client.abort()
    admin.abort()
    assert wrong == []
    assert len(CASES) == 700


BAD = [
    "topic foo bar",
    "topic write a#b",
    "bogus x",
    "user",
    "topic",
    "pattern",
    "topic a/b # comment",
    "TOPIC a",
    "\ttopic a",
    "\N{ZERO WIDTH NO-BREAK SPACE}topic a",
    "  # comment",
]

GOOD = [
    "topic read",
    "  topic a",
    "topic readwrite\ta/b",
    "user a b\ntopic x",
    "topic read \ttabbed",
    "\n \n#x\n",
    "topic deny",
]


@for_each("line", BAD)
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    """File, line and what is wrong; and it is the whole file that is not used."""
    path = tmp_path / "acl"
    path.write_text(f"user u\ntopic x\n{line}\n")
    with pytest.raises(SecurityError, match=re.escape(f"acl: line 3: {line.rstrip(BLANKS).lstrip(' ')!r}: ")):
        read_acl_file(path)


def test_every_bad_line_is_named() -> None:
    """In one line, and not without an end."""
    with pytest.raises(SecurityError) as caught:
        parse_acl("topic a/#\ntopc b\ntopic a+\nuser\n" + "x" * 100 + "\n" + "y\n" * 5, "acl")
    text = str(caught.value)
    assert text.startswith("acl: line 2: 'topc b': a line begins with")
    assert "; line 3: 'topic a+': topic filter holds + beside other characters" in text
    assert "; line 4: 'user': the user name is missing" in text
    assert f"; line 5: '{'x' * 80}': " in text
    assert text.endswith("; and 4 more")


@for_each("line", GOOD)
def test_an_odd_line_that_mosquitto_takes(line: str, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(line + "\n")
    assert read_acl_file(tmp_path / "acl").size == line.count("topic")


@needed
@pytest.mark.parametrize(("line", "code"), [*[(line, 3) for line in BAD], *[(line, None) for line in GOOD]])
def test_mosquitto_takes_and_refuses_the_same_lines(line: str, code: int | None, tmp_path: Path) -> None:
    acl, config = tmp_path / "acl", tmp_path / "mosquitto.conf"
    acl.write_text(f"user u\ntopic x\n{line}\n")
    port = free_port()
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {getuser()}\nacl_file {acl}\n")
    process = subprocess.Popen([str(MOSQUITTO), "-c", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for told in process.stderr:
            if "running" in told or "Error" in told:
                break
        if code is None:
            assert "running" in told
        else:
            assert process.wait(10) == code
    finally:
        process.kill()
        process.wait(10)
        if process.stderr is not None:
            process.stderr.close()


@for_each(
    ("write", "why"),
    [(None, "cannot be read"), (b"topic \xff", r"not UTF-8 text \(byte 6\)"), (b" " * 16_777_217, "longer")],
)
def test_a_file_that_cannot_be_used(write: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "acl"
    if write is not None:
        path.write_bytes(write)
    with pytest.raises(SecurityError, match=why):
        RuleBook(Settings(access=Access(acl_file=str(path))))
