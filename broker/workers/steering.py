"""Which of the sockets that share a port gets the next connection: Linux asks a small program of ours.

Without one, Linux chooses by a hash of the addresses, and a worker that is being restarted keeps the connections that
are its share waiting. With it, each connection goes to any of those that are there, evenly.

The program is one of the classic packet filter (Documentation/networking/filter.rst of Linux): it takes a random
number, divides it by how many there are, and answers with the place of one of them.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

POSSIBLE: Final = sys.platform.startswith("linux")
"""Whether several sockets share a port, each with a queue of its own, and a program may choose."""

ATTACH: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF, which Python's `socket` does not name."""

LOAD_RANDOM: Final = (0x20, 0, 0, 0xFFFFF000 + 56)
"""Load the extension SKF_AD_RANDOM into the accumulator."""

MODULO: Final = 0x94
JUMP_IF_EQUAL: Final = 0x15
RETURN: Final = 0x06


def steer(sock: socket.socket, places: Sequence[int]) -> bool:
    """Have the sockets at these places, in the order in which they began to listen, get the connections to come.

    `sock`: any that shares the port. Whether that was possible; where not, nothing has changed.
    """
    if not POSSIBLE or not places:
        return False
    program = [LOAD_RANDOM, (MODULO, 0, 0, len(places))]
    for at, place in enumerate(places[:-1]):
        program += [(JUMP_IF_EQUAL, 0, 1, at), (RETURN, 0, 0, place)]
    program.append((RETURN, 0, 0, places[-1]))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    try:
        sock.setsockopt(socket.SOL_SOCKET, ATTACH, struct.pack("HP", len(program), ctypes.addressof(code)))
    except OSError:
        # A system that looks like Linux and has none of this.
        return False
    return True
