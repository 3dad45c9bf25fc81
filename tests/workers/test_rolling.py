"""SIGUSR2: all workers are restarted, one after the other, with the settings that were read last."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from tests.e2e import wire
from tests.workers.crew import Crew, runs


def roll(crew: Crew) -> None:
    crew.daemon.process.send_signal(signal.SIGUSR2)


async def test_one_after_the_other_ends_and_serves_again(stack: AsyncExitStack, tmp_path: Path) -> None:
    crew = await Crew.started(stack, 3, "--set", f"store.path={tmp_path / 'store'}", "--set", "log.level=info")
    names = [next(crew.names(worker)) for worker in range(3)]
    peers = [await crew.stay(name) for name in names]
    for peer in peers:
        await peer.subscribe(("a", 1))
    before = crew.pids
    roll(crew)
    # In the middle of it.
    await crew.line("worker serves again", worker="w0")
    roll(crew)
    await crew.line("workers are restarted")
    assert len(crew.told("rolling restart goes on already")) == 1
    assert not set(before.values()) & set(crew.pids.values())
    assert not any(map(runs, before.values()))
    told = [line for line in map(str, crew.daemon.lines) if '"worker ended"' in line or '"worker serves again"' in line]
    assert [("ended" in line, f'"w{number // 2}"' in line) for number, line in enumerate(told)] == [
        (True, True), (False, True),
    ] * 3  # fmt: skip
    assert all(line["level"] == "info" for line in crew.told("worker ended"))
    # The links between workers are none of an operator's business, as long as they come back.
    assert crew.told("link down") == crew.told("link up") == []
    assert not any(line["client_id"].startswith("$node/") for line in crew.told("client connected"))
    for name, peer in zip(names, peers, strict=True):
        # It was told to go, and finds its session.
        assert (await peer.expect(wire.DISCONNECT)).code == 0x8B
        back = await crew.stay(name, present=True)
        await back.publish("a", name.encode(), qos=1)


async def test_an_address_of_http_is_guarded_whatever_address_a_reload_has_written_before_it(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    config, token = tmp_path / "canopy.toml", tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses\n")

    def listen(*urls: str) -> None:
        config.write_text(f'[http]\nlisten = {list(urls)}\noperator_token_file = "{token}"\n')

    listen("http://127.0.0.1:0")
    crew = await Crew.started(stack, 2, "--config", str(config))
    # Who may open a Unix socket need not say who they are.
    listen(f"http+unix://{tmp_path / 'socket'}", "http://127.0.0.1:0")
    await crew.reload()
    assert any("http.listen" in line["detail"] for line in crew.told("setting takes a restart"))
    roll(crew)
    await crew.line("workers are restarted")
    async with aiohttp.request("GET", crew.daemon.started["http"][0] + "/api/v5/stats") as answer:
        assert answer.status == 401


async def test_a_listener_with_a_name_stays_what_it_is(stack: AsyncExitStack, tmp_path: Path) -> None:
    config = tmp_path / "canopy.toml"

    def listen(scheme: str) -> None:
        http = '[http]\nlisten = ["http://127.0.0.1:0"]\n'
        config.write_text(f'{http}[[listener]]\nname = "main"\nurl = "{scheme}://127.0.0.1:0"\n')

    listen("mqtt")
    crew = await Crew.started(stack, 2, "--config", str(config))
    listen("ws")
    async with aiohttp.request("POST", crew.daemon.started["http"][0] + "/api/v5/reload") as answer:
        assert any('listener "main"' in line for line in (await answer.json())["restart"])
    roll(crew)
    await crew.line("workers are restarted")
    (port,) = {int(url.rpartition(":")[2]) for url in crew.daemon.urls} - {crew.daemon.port}
    peer = await wire.Peer.open("127.0.0.1", port)
    stack.callback(peer.abort)
    await peer.send(wire.connect("device"))
    assert (await peer.expect(wire.CONNACK)).code == 0


async def test_a_worker_that_does_not_start_ends_it_and_keeps_what_reloads_have_changed(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """It starts with what takes a restart as it was before."""
    config = tmp_path / "canopy.toml"
    config.write_text("")
    crew = await Crew.started(stack, 2, "--config", str(config))
    (tmp_path / "file").write_text("")
    members_only = "[mqtt]\nallow_anonymous = false\n"
    recorder = f'[recorder]\ndirectory = "{tmp_path / "file"}"\nrequired = true\n'
    config.write_text(members_only)
    await crew.reload()
    config.write_text(members_only + recorder)
    await crew.reload()
    other = crew.pids["w1"]
    roll(crew)
    line = await crew.line("rolling restart stopped", worker="w0")
    assert "recorder.required" in line["reason"]
    await crew.line("worker serves again", worker="w0")
    peer = await crew.knock(next(crew.names(0)))
    assert (await peer.expect(wire.CONNACK)).code == 0x87
    assert crew.pids["w1"] == other
    assert crew.told("workers are restarted") == []


async def test_behind_a_reload_it_has_what_that_has_read(stack: AsyncExitStack, tmp_path: Path) -> None:
    config = tmp_path / "canopy.toml"
    config.write_text("")
    crew = await Crew.started(stack, 2, "--config", str(config))
    config.write_text(f'[recorder]\ndirectory = "{tmp_path / "record"}"\n')
    crew.daemon.process.send_signal(signal.SIGHUP)
    roll(crew)
    await crew.line("workers are restarted")
    assert any("recorder.directory" in line["detail"] for line in crew.told("setting takes a restart"))
    # The lines of workers come by another way.
    for worker in ("w0", "w1"):
        await crew.line("recording", worker=worker)
