"""Runs the commands of a page as a reader would type them, and holds what comes against what the page shows.

A `console` block shows commands and what they print:

`$ ` begins a command, `> ` goes on with it. bash runs each by itself in the page's folder; it has to end with code 0
and print what stands below, if anything does. `…` stands for anything, alone on a line for any lines. A block with a
title is a terminal of that name: its command goes on running, and has to print what is shown before the next block
begins. Another block of that title, which may be `^C` alone, presses Ctrl-C first.

A block of another language with a title is a file of that name, which the reader writes.

A `sh` block is a script of commands, each of which has to end with 0, or with what its comment says (`# exit code 3`).
What goes on running, as a broker does, has to come up; it is interrupted at the end of the block.

Ports of a page become free ones, and folders of the system become folders below the reader's.
"""

from __future__ import annotations

import codecs
import contextlib
import getpass
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from canopy_load.brokers.process import free_port
from tests.support.daemon import environment
from tests.support.forked import Door

BLOCK: Final = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS: Final = ("1883", "8883", "8080")
FOLDERS: Final = (
    "/etc/canopy",
    "/etc/mosquitto",
    "/var/lib/canopy",
    "/var/lib/mosquitto",
    "/run/canopy",
    "/backup",
    "/srv/lake",
)
GOES_ON: Final = {
    r"canopy serve\b": "stop it with Ctrl-C",
    r"canopy ctl top\b": "messages",
    r"canopy ctl .*--(for (?!1s)|follow\b)": "\n",
    r"--every\b": "\n",
}
"""Commands that run until they are interrupted, and what they print when they are up."""
PASSWORD: Final = "PASSWORD"
"""What is typed where a command asks for one; pages write it like that."""
AGAIN: Final = 10.0
"""Seconds after which Ctrl-C is pressed once more."""
PATIENCE: Final = 60.0
"""Seconds after which a command has failed."""
ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Command:
    """What a page has one type, in which terminal (empty: one that waits for it), and what it shows below."""

    terminal: str
    text: str
    shown: str

    def matches(self, printed: str, *, whole: bool) -> bool:
        """Whether this was printed: as all of it, or at its beginning."""
        lines = [".*?" if line.strip() == "…" else f"{_line(line)}\n" for line in self.shown.splitlines()]
        pattern = re.compile("".join(lines), re.DOTALL)
        return bool(pattern.fullmatch(printed) if whole else pattern.match(printed))


def _line(shown: str) -> str:
    return re.escape(shown).replace("…", "[^\n]*")


def commands(page: str) -> Iterator[Command]:
    """The commands of a page, in its order.

    Raises:
        AssertionError: a block begins with something else than a command.
    """
    for language, title, block in BLOCK.findall(page):
        if language != "console":
            if title:
                yield Command("", f"cat > {title} <<'END'\n{block}END", "")
            continue
        if block.strip() == "^C":
            yield Command(title, "", "")
            continue
        assert block.startswith("$ "), f"no command at the beginning of: {block}"
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            more = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith(">")), len(lines))
            text = "\n".join([lines[0], *(line.removeprefix(">").removeprefix(" ") for line in lines[1:more])])
            yield Command(title, text, "".join(f"{line}\n" for line in lines[more:]))


class Terminal:
    """A command that goes on running, with a terminal of its own."""

    def __init__(self, command: Command, folder: Path, variables: Mapping[str, str]) -> None:
        self.command = command
        self.printed = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._own, other = pty.openpty()
        try:
            # `exec`, so that Ctrl-C meets the command and not a shell around it.
            text = command.text if re.search(r"[;&|\n]", command.text) else f"exec {command.text}"
            self.process = subprocess.Popen(
                ["bash", "-c", text],
                cwd=folder, env=dict(variables), stdin=other, stdout=other, stderr=other, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._own)
            raise
        finally:
            os.close(other)

    def wait(self) -> None:
        """Return when it has printed what the page shows.

        Raises:
            AssertionError: it ends, or prints something else.
        """
        deadline = time.monotonic() + PATIENCE
        while not self.command.matches(self.printed, whole=False):
            assert time.monotonic() < deadline, f"{self.command.text}\nshows:\n{self.printed}"
            assert self._read(), f"{self.command.text}\nended:\n{self.printed}"

    def wait_for(self, text: str) -> None:
        """Return when it has printed this.

        Raises:
            AssertionError: it ends, or does not.
        """
        deadline = time.monotonic() + PATIENCE
        while text not in self.printed:
            assert time.monotonic() < deadline, f"{self.command.text}\nprinted:\n{self.printed}"
            assert self._read(), f"{self.command.text}\nended:\n{self.printed}"

    def finish(self) -> int:
        """Let it come to its end, and type the password wherever it asks for one. Returns its exit code."""
        deadline = time.monotonic() + PATIENCE
        answered = 0
        while self._read() and time.monotonic() < deadline:
            if self.printed.endswith(": ") and len(self.printed) > answered:
                answered = len(self.printed)
                os.write(self._own, f"{PASSWORD}\n".encode())
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Take what was printed; False at the end."""
        if not select.select([self._own], [], [], 0.1)[0]:
            return True
        try:
            text = os.read(self._own, 65536)
        except OSError:  # Linux, where nobody has the other side open any more
            return False
        self.printed += ANSI.sub("", self._decoder.decode(text)).replace("\r\n", "\n")
        return bool(text)

    def interrupt(self) -> None:
        """Press Ctrl-C, and return when the command is over."""
        deadline = time.monotonic() + PATIENCE
        again = 0.0
        while time.monotonic() < deadline:
            if time.monotonic() >= again:
                # A shell that is between two commands of a loop may go on with the next one.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGINT)
                again = time.monotonic() + AGAIN
            if not self._read():
                break
        assert self.process.wait(PATIENCE) in (0, 130, -signal.SIGINT), self.printed

    def close(self) -> None:
        """Whatever happens, it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._own)


class Reader:
    """Somebody who follows a page in an empty folder. A context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._terminals: dict[str, Terminal] = {}
        self._ports = {port: str(free_port()) for port in PORTS}
        tools = folder / ".bin"
        tools.mkdir()
        python = shlex.quote(sys.executable)
        ctl = f'[ "$1" = ctl ] && shift && set -- ctl --url http://127.0.0.1:{self._ports["8080"]} "$@"\n'
        self._door = Door()
        programs = {"canopy": f'{ctl}exec {self._door.command} "$@"', "python": f'exec {python} -P "$@"'}
        # Nobody becomes root, and no service of the machine is touched.
        programs |= {"sudo": 'exec "$@"', "systemctl": "exit 0"}
        for name, lines in programs.items():
            (tools / name).write_text(f"#!/bin/sh\n{lines}\n")
            (tools / name).chmod(0o755)
        sources = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        self.environment = environment(
            PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
            PYTHONPATH=os.pathsep.join(sources),
            TERM="xterm",
            COLUMNS="200",
            USER=getpass.getuser(),
            XDG_CONFIG_HOME=str(folder / ".config"),
        )
        # The port that clients of mosquitto take where none is named.
        (folder / ".config").mkdir()
        for name in ("mosquitto_pub", "mosquitto_sub"):
            (folder / ".config" / name).write_text(f"-p {self._ports['1883']}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self._terminals.values():
            terminal.close()
        self._door.close()

    def follow(self, page: str) -> int:
        """Do what the page says. Returns the number of commands.

        Raises:
            AssertionError: a command fails, or prints something else than the page shows.
        """
        done = 0
        for command in commands(self.here(page)):
            if command.terminal:
                self._leave_running(command)
            else:
                self._run(command)
            done += 1
        return done

    def here(self, text: str) -> str:
        """What a page has, with ports and folders of this reader."""
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        text = text.replace("10.0.0.0/8", "127.0.0.0/8")  # where the clients are
        for path in FOLDERS:
            text = re.sub(rf"(?<![\w.]){path}\b", str(self.folder / path[1:]), text)
        return text

    def script(self, text: str) -> int:
        """Run a `sh` block. Returns the number of commands; what goes on running does so until `leave`.

        Raises:
            AssertionError: a command ends with another code than it should, or does not come up.
        """
        done, exports = 0, ""
        for line in self.here(text).replace("\\\n", " ").splitlines():
            if line.startswith("export "):
                exports += f"{line}\n"
            elif line.strip() and not line.startswith("#"):
                self._line(line, exports)
                done += 1
        return done

    def _line(self, line: str, exports: str) -> None:
        text = re.sub(r"\s+# .*", "", line)
        if text.startswith("mosquitto_sub") and " -C " not in text:
            text += " -E"  # it ends when the broker has acknowledged the subscription
        text = re.sub(r"--for \w+ -o", "--for 1s -o", text)  # a trace into a file says nothing until its end
        up = next((said for pattern, said in GOES_ON.items() if re.search(pattern, text)), None)
        if up is not None:
            self.stay(text, up)
            return
        terminal = Terminal(Command("", exports + text, ""), self.folder, self.environment)
        try:
            code = terminal.finish()
        finally:
            terminal.close()
        expected = int(found[1]) if (found := re.search(r"# .*exit code (\d)", line)) else 0
        assert code == expected, f"{text}\nended with {code}:\n{terminal.printed}"

    def stay(self, text: str, up: str = "") -> None:
        """Start a command that goes on until `leave`, and wait until it prints `up`."""
        terminal = self._terminals[f"$ {text}"] = Terminal(Command("", text, ""), self.folder, self.environment)
        terminal.wait_for(up)

    def leave(self) -> None:
        """Interrupt what goes on, the newest first, and wait for its end.

        Raises:
            AssertionError: something fails at its end.
        """
        for name in [name for name in reversed(self._terminals) if name.startswith("$ ")]:
            terminal = self._terminals.pop(name)
            try:
                terminal.interrupt()
            finally:
                terminal.close()

    def _leave_running(self, command: Command) -> None:
        before = self._terminals.pop(command.terminal, None)
        if before is not None:
            try:
                before.interrupt()
            finally:
                before.close()
        if command.text:
            terminal = self._terminals[command.terminal] = Terminal(command, self.folder, self.environment)
            terminal.wait()

    def _run(self, command: Command) -> None:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command.text}\nended with {done.returncode}:\n{done.stdout}"
        if command.shown:
            assert command.matches(done.stdout, whole=True), f"{command.text}\nprinted:\n{done.stdout}"
