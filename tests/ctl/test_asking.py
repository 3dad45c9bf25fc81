"""How a broker is asked, and how it is told that it cannot be."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from broker.ctl.asking import Api, CtlError, named
from broker.ctl.options import Options
from canopy import Broker, Settings
from loadtest.brokers.process import free_port


async def call(api: Api, *arguments: Any, **query: Any) -> Any:
    """In a thread: the broker is in this one."""
    return await asyncio.to_thread(api.call, *arguments, **query)


async def test_over_tcp(broker: Broker) -> None:
    known = await call(Api(broker.http[0]), "GET", "/status")
    assert known["listening"] == broker.listening


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "canopy.sock"
    settings = {"listen": ("mqtt://127.0.0.1:0",), "http": {"listen": (f"http+unix://{path}",)}}
    async with Broker(Settings.model_validate(settings)) as broker:
        assert (await call(Api(f"http+unix://{path}"), "GET", "/status"))["listening"] == broker.listening


async def test_what_the_broker_refuses_is_in_its_words(broker: Broker) -> None:
    with pytest.raises(CtlError, match="no topic filter"):
        await call(Api(broker.http[0]), "POST", "/trace", {"type": "topic", "value": "a/#/b"})
    with pytest.raises(CtlError, match="there is no such trace"):
        await call(Api(broker.http[0]), "GET", f"/trace/{named('a/../b')}")


async def test_a_token_and_a_user_are_sent_and_never_told(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("the-token-of-an-operator-0123456789\n")
    tokens.chmod(0o600)
    http = {"listen": ("http://127.0.0.1:0",), "operator_token_file": str(tokens)}
    async with Broker(Settings.model_validate({"listen": ("mqtt://127.0.0.1:0",), "http": http})) as broker:
        url = broker.http[0]
        with_token = Options(url, tokens, "", None, False).api()
        assert (await call(with_token, "GET", "/trace"))["data"] == []
        for api in (Api(url, token="x" * 40), Api(url, user="bob", password="secret-word"), Api(url)):
            with pytest.raises(CtlError) as caught:
                await call(api, "GET", "/trace")
            assert "secret-word" not in str(caught.value)
            assert "x" * 40 not in str(caught.value)


def test_nobody_there() -> None:
    port = free_port()
    with pytest.raises(CtlError, match=f"http://127.0.0.1:{port}: Connection refused"):
        Api(f"http://127.0.0.1:{port}").call("GET", "/status")


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8080", "http://", "http+unix://", "http://x:99999"])
def test_no_such_url(url: str) -> None:
    with pytest.raises(CtlError, match=r"^\S+: "):
        Api(url)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [("", 0o600, "has no token"), ("# only this\n", 0o600, "has no token"), ("t\n", 0o644, "others than its owner")],
)
def test_a_token_file_that_is_not_good(tmp_path: Path, text: str, mode: int, why: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(CtlError, match=why):
        Options("http://127.0.0.1:1", file, "", None, False).api()
    with pytest.raises(CtlError, match="No such file"):
        Options("http://127.0.0.1:1", tmp_path / "nothing", "", None, False).api()


@pytest.mark.parametrize(
    ("user", "mode", "taken"),
    [(0, 0o440, False), (10_001, 0o440, True), (10_001, 0o444, False), (0, 0o400, True)],
)
def test_root_may_hand_a_token_to_a_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int, mode: int, taken: bool
) -> None:
    """As Kubernetes mounts a secret. The file is root's."""
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    root = os.stat_result((0o100000 | mode, 1, 1, 1, 0, 10_001, 17, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda _: root)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    made = Options("http://127.0.0.1:1", file, "", None, False)
    if taken:
        made.api()
    else:
        with pytest.raises(CtlError, match="others than its owner"):
            made.api()


def test_a_token_is_read_as_the_broker_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("# of the operator\n 0123456789#abcdef \n")
    file.chmod(0o600)
    api = Options("http://127.0.0.1:1", file, "", None, False).api()
    assert api._headers["Authorization"] == "Bearer 0123456789#abcdef"
