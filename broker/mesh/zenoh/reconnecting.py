"""Finding back to nodes that no setting names: Zenoh itself connects again only to the places of `mesh.connect`.

Owns the places to which this session has connected because gossip or multicast told it of them, and whose connection
has broken. To bring two nodes together again, a second session connects to both for a moment: gossip then tells each of
the other, as when they first met, and one of them connects.

Promises: there is one such session at a time, and a thread only while a place is missing. At most `MOST_PLACES` are
remembered, each for `REMEMBERED`.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Final

import zenoh

from broker.settings.brokers.mesh import Mesh

FIRST_RETRY: Final = 0.5
"""Seconds after which a place that was lost is tried; then twice as many, up to `LAST_RETRY`."""

LAST_RETRY: Final = 15.0

ANSWER: Final = 2.0
"""Seconds within which a place answers, and the two nodes connect."""

MOST_PLACES: Final = 256
"""Beyond, the one that was lost first is forgotten."""

REMEMBERED: Final = 86_400.0
"""Seconds for which a place is tried: nodes whose addresses change leave places where nobody will be again."""

_PORT: Final = re.compile(r"(\w+)/.*:(\d+)")


class Place:
    """A place whose connection has broken: when it is tried next, and until when."""

    __slots__ = ("due", "name", "until", "wait")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.wait = FIRST_RETRY
        self.due = now + FIRST_RETRY
        self.until = now + REMEMBERED


class Reconnector:
    """Brings the nodes of one session together again. All but `start` and `stop` is called by Zenoh, or its own thread.

    `configuration` makes what a session of this mesh has for Zenoh.
    """

    def __init__(self, settings: Mesh, configuration: Callable[[Mesh], zenoh.Config]) -> None:
        self.lost: dict[str, Place] = {}
        """The places that are tried, the one first that was lost first."""
        self._settings = settings
        self._configuration = configuration
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._session: zenoh.Session | None = None
        self._ours = {_listener(place) for place in settings.listen}
        # Where this node is reached. A port that the system chooses is in no setting.
        self._here = next((place for place in settings.listen if not place.endswith(":0")), "")

    def start(self, session: zenoh.Session) -> None:
        """Hear of the connections of a session. Nobody can be brought to a node that does not listen."""
        if self._here:
            self._session = session
            heard = zenoh.handlers.Callback(self._on_link, indirect=False)
            session.info.declare_link_events_listener(heard, history=True)

    def stop(self) -> None:
        """Try no more. Before the session is closed; it may take `ANSWER` seconds."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None:
            thread.join(ANSWER)

    def _on_link(self, event: zenoh.LinkEvent) -> None:
        place = event.link.dst
        with self._changed:
            if event.kind == zenoh.SampleKind.PUT:
                self.lost.pop(place, None)
            elif _listener(event.link.src) not in self._ours and place not in self._settings.connect:
                self.lose(place, time.monotonic())
            self._changed.notify_all()

    def lose(self, place: str, now: float) -> None:
        """The connection to a place has broken."""
        self.lost.pop(place, None)
        self.lost[place] = Place(place, now)
        if len(self.lost) > MOST_PLACES:
            del self.lost[next(iter(self.lost))]
        if self._thread is None and not self._stopped and self._session is not None:
            self._thread = threading.Thread(target=self._run, name="canopy mesh reconnects", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (place := self._next()) is not None:
            if self._introduce(place.name):
                with self._changed:
                    # It may have been lost again by now.
                    if self.lost.get(place.name) is place:
                        del self.lost[place.name]

    def _next(self) -> Place | None:
        """The place that is due, when it is. None: there is no more to be done."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                due = self.due(now)
                if due is not None:
                    return due
                if not self.lost:
                    break
                self._changed.wait(min(place.due for place in self.lost.values()) - now)
            self._thread = None
            return None

    def due(self, now: float) -> Place | None:
        """A place that is to be tried now."""
        for place in list(self.lost.values()):
            if now >= place.until:
                del self.lost[place.name]
            elif now >= place.due:
                place.wait = min(2 * place.wait, LAST_RETRY)
                place.due = now + place.wait
                return place
        return None

    def _introduce(self, place: str) -> bool:
        """Connect to a place and to this node, so that the two hear of each other. Whether they are connected."""
        session = self._session
        assert session is not None
        made = self._configuration(self._settings)
        values = {
            "listen/endpoints": [],
            "connect/endpoints": [place, self._here],
            # Both at once, or not at all.
            "connect/timeout_ms": 0,
            "connect/exit_on_failure": True,
            "transport/unicast/open_timeout": int(ANSWER * 1_000),
            "scouting/multicast/enabled": False,
            "scouting/gossip/autoconnect": {"peer": [], "router": []},
        }
        for name, value in values.items():
            made.insert_json5(name, json.dumps(value))
        try:
            between = zenoh.open(made)
        except zenoh.ZError:
            return False
        try:
            there = [str(link.zid) for link in between.info.links() if link.dst == place]
            return bool(there) and self._connected(session, there[0])
        except zenoh.ZError:
            return False
        finally:
            with contextlib.suppress(zenoh.ZError):
                between.close()  # type: ignore[no-untyped-call]

    def _connected(self, session: zenoh.Session, other: str) -> bool:
        """Whether the session is connected to another one, within `ANSWER` seconds."""
        until = time.monotonic() + ANSWER
        while other != str(session.info.zid()) and other not in map(str, session.info.peers_zid()):
            left = until - time.monotonic()
            if left <= 0.0 or self._stopped:
                return False
            with self._changed:
                self._changed.wait(min(left, 0.1))
        return True


def _listener(place: str) -> str:
    """What two places have in common where one is what the other listens at: the port, or the path of a socket."""
    found = _PORT.match(place)
    return place if found is None else f"{found[1]}:{found[2]}"
