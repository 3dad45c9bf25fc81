"""Runs a command in a process that `tests.support.forked` forks, for a script that has this file in place of it.

The command has the streams, the folder and the environment of this process, gets its signals, and gives it its exit
code. It ends when this process does. Run by its path, without `site`, since it starts as often as commands do.
"""

import contextlib
import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> int:
    """Ask at the abstract address that is the first argument; the others are the module and its arguments."""
    name, module, *arguments = sys.argv[1:]
    request = {"module": module, "arguments": arguments, "environ": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
        asks.connect(f"\0{name}")
        socket.send_fds(asks, [json.dumps({**request, "session": True}).encode()], [0, 1, 2])
        pid = int(asks.recv(100))

        def forward(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in FORWARDED:
            signal.signal(number, forward)
        code = int(asks.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
