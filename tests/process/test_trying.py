"""The commands that a started broker prints for trying it: mosquitto's clients run them as they are printed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.process.trying import lines_to_try
from broker.security.passwords.passwd import set_password
from canopy import Broker, Settings
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE, until

TOOLS = shutil.which("mosquitto_sub") is not None and shutil.which("mosquitto_pub") is not None
ANYWHERE = "mqtt://127.0.0.1:0"
MTLS = {"client_certificates": "required"}


class Place:
    """A folder with the files that settings name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority: Authority | None = None

    def users(self, *names: str) -> dict[str, str]:
        """A password file, whose users have the password that is printed."""
        file = self.folder / "users"
        for name in names:
            set_password(file, name, "PASSWORD", "pbkdf2-sha512", create=True)
        return {"type": "password-file", "path": str(file)}

    def certificate(self, *names: str, own: bool = True) -> dict[str, str]:
        """A certificate for these names; `own`: its file has the authority's too."""
        authority = self._authority = self._authority or Authority(self.folder)
        certificate, key = authority.issue(*names, file="my server")
        if own:
            with Path(certificate).open("a") as file:
                file.write(Path(authority.file).read_text())
        return {"certificate": certificate, "key": key}

    def clients(self) -> str:
        """A file with an authority."""
        assert self._authority is not None
        return self._authority.file

    def acl(self, text: str) -> dict[str, str]:
        """A file of access rules."""
        (self.folder / "acl").write_text(text)
        return {"acl_file": str(self.folder / "acl")}


@pytest.fixture
def place() -> Iterator[Place]:
    """Short enough for a Unix socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Place(Path(folder))


Make = Callable[[Place], dict[str, Any]]

WORKING: dict[str, tuple[Make, str]] = {
    "the defaults, on another port": (lambda _: {"listen": [ANYWHERE]}, "demo/#"),
    "every interface": (lambda _: {"listen": ["mqtt://0.0.0.0:0"]}, "demo/#"),
    "a plain listener beside others": (
        lambda at: {
            "listener": [
                {"url": "ws://127.0.0.1:0"},
                {"url": "mqtts://127.0.0.1:0", "tls": at.certificate("localhost")},
                {"url": ANYWHERE},
            ]
        },
        "demo/#",
    ),
    "the tutorial": (
        lambda at: {
            "listener": [{"url": "mqtts://127.0.0.1:0", "tls": at.certificate("127.0.0.1")}],
            "authenticator": [at.users("alice")],
            "rule": [{"user": ["alice"], "filters": ["home/#"], "effect": "allow"}],
        },
        "home/#",
    ),
    "canopy init public": (
        lambda at: {
            "listener": [{"url": "mqtts://0.0.0.0:0", "tls": at.certificate("localhost")}],
            "authenticator": [at.users("admin")],
            "security": {"client_ids": ["{user}", "{user}-*"]},
            "rule": [
                {"action": "all", "filters": ["users/{user}/#"]},
                {"action": ["subscribe", "receive"], "filters": ["public/#"]},
            ],
        },
        "users/admin/#",
    ),
    "a Unix socket": (
        lambda at: {"listener": [{"url": f"mqtt+unix://{at.folder}/mqtt.sock", "mode": "0600"}]},
        "demo/#",
    ),
    "mosquitto's rules": (
        lambda at: {
            "listen": [ANYWHERE],
            "authenticator": [at.users("bob")],
            "access": at.acl("topic a/#\nuser bob\ntopic read b/#\ntopic c/+/d\n"),
        },
        "c/+/d",
    ),
    "mosquitto's patterns": (
        lambda at: {
            "listen": [ANYWHERE],
            "authenticator": [at.users("bob")],
            "access": at.acl("pattern write %u/#\npattern readwrite state/%u/#\n"),
        },
        "state/bob/#",
    ),
    "users who may nothing, before one who may": (
        lambda at: {
            "listen": [ANYWHERE],
            "authenticator": [at.users("ann", "bob", "carl's")],
            "rule": [{"user": "carl*", "filters": ["its own/#"]}],
        },
        "its own/#",
    ),
    "guests beside users": (
        lambda at: {
            "listen": [ANYWHERE],
            "authenticator": [at.users("ann"), {"type": "anonymous"}],
            "rule": [{"anonymous": True, "filters": ["public/#"]}],
        },
        "public/#",
    ),
    "a denied part of what is allowed": (
        lambda _: {
            "listen": [ANYWHERE],
            "rule": [{"filters": ["demo/#"], "effect": "deny"}, {"filters": ["a/b"]}, {"filters": ["#"]}],
        },
        "a/b",
    ),
    "only 5.0, and with names": (
        lambda _: {
            "listen": [ANYWHERE],
            "mqtt": {"versions": ["5.0"], "allow_empty_client_id": False},
        },
        "demo/#",
    ),
    "names of clients that belong to users": (
        lambda at: {
            "listen": [ANYWHERE],
            "authenticator": [at.users("ann")],
            "mqtt": {"allow_empty_client_id": False},
            "security": {"client_ids": ["{user}", "{user}-*"]},
        },
        "demo/#",
    ),
}

NOTHING: dict[str, Make] = {
    "WebSocket alone": lambda _: {"listen": ["ws://127.0.0.1:0"]},
    "a certificate of an authority that is elsewhere": lambda at: {
        "listener": [{"url": "mqtts://127.0.0.1:0", "tls": at.certificate("localhost", own=False)}]
    },
    "a certificate for another machine": lambda at: {
        "listener": [{"url": "mqtts://127.0.0.1:0", "tls": at.certificate("broker.example.org")}]
    },
    "certificates of clients": lambda at: {
        "listener": [
            {
                "url": "mqtts://127.0.0.1:0",
                "tls": {**at.certificate("localhost"), **MTLS, "client_ca": at.clients()},
            }
        ]
    },
    "a proxy in front": lambda _: {
        "listener": [{"url": ANYWHERE, "proxy_protocol": "v2", "proxy_from": ["127.0.0.1/32"]}]
    },
    "tokens": lambda _: {
        "listen": [ANYWHERE],
        "authenticator": [{"type": "jwt", "secret": "s" * 32, "algorithms": ["HS256"]}],
    },
    "nobody may publish what he may read": lambda _: {
        "listen": [ANYWHERE],
        "rule": [{"action": "publish", "filters": ["a/#"]}, {"action": "subscribe", "filters": ["b/#"]}],
    },
    "what only the broker publishes": lambda _: {"listen": [ANYWHERE], "rule": [{"filters": ["$SYS/#"]}]},
    "identifiers that one client alone may have": lambda at: {
        "listen": [ANYWHERE],
        "authenticator": [at.users("ann")],
        "mqtt": {"allow_empty_client_id": False},
        "security": {"client_ids": ["{user}"]},
    },
}


async def shell(line: str) -> asyncio.subprocess.Process:
    """What a reader does with a line."""
    return await asyncio.create_subprocess_exec(
        "bash", "-c", f"exec {line}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent"},
    )  # fmt: skip


@pytest.mark.skipif(not TOOLS, reason="the mosquitto clients are not installed")
@pytest.mark.parametrize("name", WORKING)
async def test_the_lines_work_as_they_are_printed(name: str, place: Place) -> None:
    make, topic_filter = WORKING[name]
    settings = Settings(**await asyncio.to_thread(make, place))
    async with Broker(settings) as broker:
        lines = await asyncio.to_thread(lines_to_try, settings, broker.listening)
        assert len(lines) == 2, lines
        assert f" -t '{topic_filter}' -v" in lines[0] or f" -t {topic_filter} -v" in lines[0]
        # It ends with the first message.
        sub = await shell(f"{lines[0]} -C 1")
        try:
            sessions = broker.router.sessions
            await until(lambda: any(each.subscriptions for each in sessions.values()), lines[0])
            async with asyncio.timeout(PATIENCE):
                pub = await shell(lines[1])
                assert (await pub.communicate())[0] == b""
                assert pub.returncode == 0
                output, _ = await sub.communicate()
                assert output.endswith(b" hello world\n")
        finally:
            if sub.returncode is None:
                sub.kill()
            await sub.wait()


@pytest.mark.parametrize("name", NOTHING)
async def test_there_are_no_lines_that_would_not_work(name: str, place: Place) -> None:
    settings = Settings(**await asyncio.to_thread(NOTHING[name], place))
    async with Broker(settings) as broker:
        assert await asyncio.to_thread(lines_to_try, settings, broker.listening) == []


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """The broker has said so by itself."""
    absent = str(tmp_path / "absent")
    tls = {"certificate": absent, "key": absent}
    for given in (
        {"listener": [{"url": "mqtts://127.0.0.1:1", "tls": tls}]},
        {"authenticator": [{"type": "password-file", "path": absent}]},
        {"access": {"acl_file": absent}},
    ):
        assert lines_to_try(Settings(**given), ["mqtts://127.0.0.1:1" if "listener" in given else ANYWHERE]) == []


def test_how_they_look(place: Place) -> None:
    settings = Settings()
    assert lines_to_try(settings, ["mqtt://127.0.0.1:1883"]) == [
        "mosquitto_sub -h 127.0.0.1 -t 'demo/#' -v",
        "mosquitto_pub -h 127.0.0.1 -t demo/hello -m 'hello world'",
    ]
    tls = place.certificate("broker.example.org", "localhost")
    public = Settings(listener=[{"url": "mqtts://0.0.0.0:8883", "tls": tls}], authenticator=[place.users("ann")])
    assert lines_to_try(public, ["mqtts://0.0.0.0:8883"])[0] == (
        f"mosquitto_sub -h localhost -p 8883 --cafile '{tls['certificate']}' -u ann -P PASSWORD -t 'demo/#' -v"
    )
