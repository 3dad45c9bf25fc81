"""How a broker is asked, and how it is told that it cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker, Settings
from canopy_mqtt.ctl.api_client import ApiClient, CtlError, named
from canopy_mqtt.ctl.options import Options
from canopy_mqtt.settings.loader import load_settings
from canopy_mqtt.settings.secret_files import open_to_others
from tests.support.runs import for_each


async def call(api: ApiClient, *arguments: Any, **query: Any) -> Any:
    """In a thread: the broker is in this one."""
    return await asyncio.to_thread(api.call, *arguments, **query)


async def test_over_tcp(broker: Broker) -> None:
    known = await call(ApiClient(broker.http[0]), "GET", "/status")
    assert known["listening"] == broker.listening


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "canopy.sock"
    settings = {"listen": ("mqtt://127.0.0.1:0",), "http": {"listen": (f"http+unix://{path}",)}}
    async with Broker(Settings.model_validate(settings)) as broker:
        assert (await call(ApiClient(f"http+unix://{path}"), "GET", "/status"))["listening"] == broker.listening


async def test_what_the_broker_refuses_is_in_its_words(broker: Broker) -> None:
    with pytest.raises(CtlError, match="no topic filter"):
        await call(ApiClient(broker.http[0]), "POST", "/trace", {"type": "topic", "value": "a/#/b"})
    with pytest.raises(CtlError, match="there is no such trace"):
        await call(ApiClient(broker.http[0]), "GET", f"/trace/{named('a/../b')}")


async def test_a_token_and_a_user_are_sent_and_never_told(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("the-token-of-an-operator-0123456789\n")
    tokens.chmod(0o600)
    http = {"listen": ("http://127.0.0.1:0",), "operator_token_file": str(tokens)}
    async with Broker(Settings.model_validate({"listen": ("mqtt://127.0.0.1:0",), "http": http})) as broker:
        url = broker.http[0]
        with_token = await asyncio.to_thread(Options(url, tokens, "", None, False).api)
        assert (await call(with_token, "GET", "/trace"))["data"] == []
        for api in (ApiClient(url, token="x" * 40), ApiClient(url, user="bob", password="secret-word"), ApiClient(url)):
            with pytest.raises(CtlError) as caught:
                await call(api, "GET", "/trace")
            assert "secret-word" not in str(caught.value)
            assert "x" * 40 not in str(caught.value)


def test_nobody_there() -> None:
    """The message says how to switch HTTP on, by a command line and by the settings, which work as they stand there."""
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(CtlError) as caught:
        ApiClient(url).call("GET", "/status")
    text = str(caught.value)
    assert text.startswith(f"{url}: no broker listens there. Is it running, with HTTP switched on?")
    assert load_settings(sets=[f"http.listen={url}"], environ={}).http.listen == (url,)
    assert f"--set http.listen={url}, " in text
    assert f'[http] listen = ["{url}"].' in text


def test_no_socket_there(tmp_path: Path) -> None:
    with pytest.raises(CtlError, match=f"no broker listens there.*--set http.listen=http\\+unix://{tmp_path}/s"):
        ApiClient(f"http+unix://{tmp_path}/s").call("GET", "/status")


@for_each("url", ["ftp://x", "127.0.0.1:8080", "http://", "http+unix://", "http://x:99999"])
def test_no_such_url(url: str) -> None:
    with pytest.raises(CtlError, match=r"^\S+: "):
        ApiClient(url)


@for_each(
    ("text", "mode", "why"),
    [("", 0o600, "has no token"), ("# only this\n", 0o600, "has no token")],
)
def test_a_token_file_that_is_not_good(tmp_path: Path, text: str, mode: int, why: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(CtlError, match=why):
        Options("http://127.0.0.1:1", file, "", None, False).api()
    with pytest.raises(CtlError, match="No such file"):
        Options("http://127.0.0.1:1", tmp_path / "nothing", "", None, False).api()


@for_each("mode", [0o400, 0o600, 0o440, 0o640, 0o660, 0o644, 0o604, 0o666])
def test_the_mode_of_a_token_file_has_one_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    """That of the broker: a file that everybody may read is reported, and used. What its group may do is a choice.

    Kubernetes mounts a secret for a group.
    """
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(mode)
    api = Options("http://127.0.0.1:1", file, "", None, False).api()
    assert api._headers["Authorization"] == "Bearer 0123456789abcdef"
    http = {"listen": ["http://127.0.0.1:0"], "operator_token_file": str(file)}
    said = [f"canopy: {line}" for line in open_to_others(Settings.model_validate({"http": http}))]
    assert capsys.readouterr().err.splitlines() == said
    assert bool(said) == bool(mode & 0o004)


def test_a_token_is_read_as_the_broker_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("# of the operator\n 0123456789#abcdef \n")
    file.chmod(0o600)
    api = Options("http://127.0.0.1:1", file, "", None, False).api()
    assert api._headers["Authorization"] == "Bearer 0123456789#abcdef"


@for_each(
    "url", ["http://[::1", "http://h:99999", "http://", "ftp://h", "", "http://\udce4:1", f"http://{'a' * 70}.x:1"]
)
def test_a_url_that_leads_nowhere(url: str) -> None:
    with pytest.raises(CtlError):
        ApiClient(url).call("GET", "/status")


@for_each(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP; is it Canopy?"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "HTTP 302 Found; is it Canopy?"),
        (b"", "whoever listens there closed the connection without an answer; is it the address of [http]?"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "the answer is not a JSON object; is it Canopy?"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "the answer is not a JSON object; is it Canopy?"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "the answer is not a JSON object; is it Canopy?"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "the answer is not a JSON object; is it Canopy?"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"a": {"b": 1}}', "the answer has no 'uptime'; is it Canopy, and of this version?"),
    ],
    ids=["ssh", "redirected", "nothing", "empty", "html", "list", "deep", "other"],
)
async def test_another_program_answers(answer: bytes, why: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        api = ApiClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(CtlError) as caught:
            (await call(api, "GET", "/status"))["uptime"]
        assert str(caught.value).removeprefix(f"{api.url}: ") == why


async def test_https_where_http_is_spoken(broker: Broker) -> None:
    url = broker.http[0].replace("http:", "https:")
    with pytest.raises(CtlError, match="whoever listens there speaks no TLS"):
        await call(ApiClient(url), "GET", "/status")


def test_a_password_in_the_url_is_neither_taken_nor_told() -> None:
    with pytest.raises(CtlError, match="--user") as caught:
        ApiClient("http://bob:secret-word@127.0.0.1:8080")
    assert "secret-word" not in str(caught.value)


def test_names_that_are_no_utf_8_or_steps_of_a_path() -> None:
    assert named("a\udcff/") == "a%FF%2F"
    assert (named("."), named("..."), named("\x1b..")) == ("%1B.", "...", "%1B%1B..")
