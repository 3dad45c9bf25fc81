"""Nodes in processes of their own, which are killed and stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.mesh.zenoh.nodes import QUICK, Node, running
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]


def place(folder: Path, name: str) -> str:
    return f"unixsock-stream/{folder}/{name}"


@asynccontextmanager
async def process(**settings: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A node that sends back what it gets."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "tests.mesh.zenoh.nodes", json.dumps(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path) + f":{ROOT}"},
    )  # fmt: skip
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()


async def line(of: asyncio.subprocess.Process) -> str:
    """The next line that a process writes."""
    assert of.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await of.stdout.readline()).decode().strip()


async def test_a_process_that_is_killed_has_left_long_before_the_timeout(tmp_path: Path) -> None:
    a = Node("a", listen=[place(tmp_path, "a")], node_timeout=PATIENCE * 2)
    async with running(a), process(node="b", connect=[place(tmp_path, "a")]) as b:
        await a.sees("b")
        b.send_signal(signal.SIGKILL)
        await a.sees()
        assert a.events == ["+b", "-b"]


async def test_a_process_that_stands_still_has_left_after_the_timeout_and_comes_back(tmp_path: Path) -> None:
    a = Node("a", listen=[place(tmp_path, "a")], node_timeout=QUICK)
    settings = {"connect": [place(tmp_path, "a")], "node_timeout": QUICK}
    named = {"connect": [place(tmp_path, "a"), place(tmp_path, "c")], "node_timeout": QUICK}
    async with running(a), process(node="b", listen=[place(tmp_path, "b")], **named) as b:
        await a.sees("b")
        assert await line(b) == "+a"
        async with process(node="c", listen=[place(tmp_path, "c")], **settings):
            await a.sees("b", "c")
            assert await line(b) == "+c"
            b.send_signal(signal.SIGSTOP)
            began = asyncio.get_running_loop().time()
            await a.sees("c")
            assert asyncio.get_running_loop().time() - began < 3 * QUICK
            b.send_signal(signal.SIGCONT)
            # It finds back to those whom its settings name. Whether the third has found it silent too is a race.
            await a.sees("b", "c")
            heard = [await line(b)]
            while heard[-1] != "+a":
                heard.append(await line(b))
            assert "-a" in heard
            a.send("b", b"there and back")
            await a.hears(1)


async def test_what_a_node_that_takes_nothing_is_sent_is_bounded_and_blocks_nobody(tmp_path: Path) -> None:
    """The event loop goes on, and another node hears what it is sent."""
    a = Node("a", listen=[place(tmp_path, "a")], node_timeout=5.0, queue_bytes=4_194_304)
    async with (
        running(a),
        process(node="b", connect=[place(tmp_path, "a")]) as b,
        process(node="c", connect=[place(tmp_path, "a")]),
    ):
        await a.sees("b", "c")
        b.send_signal(signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        longest = 0.0
        sent = 0
        while "-b" not in a.events:
            before = loop.time()
            a.send("b", bytes(65_536))
            a.send("c", b"%d" % sent)
            sent += 1
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - before)
        assert longest < 1.0
        assert sent * 65_536 < 64 * 1_048_576
        assert a.log.named("node left")[0]["why"] == "more waits for it than mesh.queue_bytes"
        await a.hears(sent)
        assert a.messages == [b"%d" % number for number in range(sent)]


async def test_a_second_process_with_the_same_id_says_so_in_one_line_and_ends(tmp_path: Path) -> None:
    a = Node("a", listen=[place(tmp_path, "a")])
    async with running(a), process(node="a", connect=[place(tmp_path, "a")]) as again:
        _, told = await again.communicate()
        assert again.returncode == 1
        assert told.decode().splitlines() == [
            "refused: another process is the node 'a' of the mesh 'test' already: give this one a mesh.node of its own"
        ]
