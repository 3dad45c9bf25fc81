"""This node's session with Zenoh: opened from the settings, heard, and closed.

Owns the keys: `canopy/MESH/to/RECEIVER/SENDER` for frames, `canopy/MESH/alive/NODE/INCARNATION` for who is there. Its
functions may block and are called by threads, never by the event loop; what comes is told by Zenoh's own threads.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import zenoh

from broker.mesh.zenoh import threads
from broker.mesh.zenoh.files import fault
from broker.mesh.zenoh.reconnecting import Reconnector
from broker.settings.brokers.mesh import Mesh

ASK: Final = 2.0
"""Seconds for an answer to whether another process has our node id. Those there are answer within one round trip."""

FIRST_RETRY: Final = 0.25
"""Seconds after which a place where nobody was reached is tried again; then twice as many, up to `LAST_RETRY`."""

LAST_RETRY: Final = 4.0


class MeshError(Exception):
    """The mesh cannot be used, in one line for the operator."""


def configuration(settings: Mesh) -> zenoh.Config:
    """What the settings come to for Zenoh."""
    timeout = int(settings.node_timeout * 1_000)
    values: dict[str, Any] = {
        # Every node reaches every other by a link of its own, and hands nothing on.
        "mode": "peer",
        "listen/endpoints": list(settings.listen),
        "connect/endpoints": list(settings.connect),
        "connect/retry": {
            "period_init_ms": int(FIRST_RETRY * 1_000),
            "period_max_ms": int(LAST_RETRY * 1_000),
            "period_increase_factor": 2,
        },
        "scouting/multicast/enabled": settings.scouting,
        # Nodes tell each other where the others are. One of two connects, or else there would be two links.
        "scouting/gossip/autoconnect_strategy": {"peer": {"to_peer": "greater-zid", "to_router": "always"}},
        "scouting/multicast/autoconnect_strategy": {"peer": {"to_peer": "greater-zid", "to_router": "always"}},
        # One queue to each node, in order.
        "transport/unicast/qos/enabled": False,
        "transport/link/tx/lease": timeout,
        # A node that takes nothing for as long is given up by Zenoh, too, and the thread that waits for it goes on.
        "transport/link/tx/queue/congestion_control/block/wait_before_close": timeout * 1_000,
        "transport/link/rx/max_message_size": settings.queue_bytes + (1 << 20),
        # What a process leaves there when it is killed would stay.
        "transport/shared_memory/enabled": False,
    }
    if settings.ca_file:
        values |= {
            "transport/link/tls/root_ca_certificate": settings.ca_file,
            "transport/link/tls/listen_certificate": settings.cert_file,
            "transport/link/tls/listen_private_key": settings.key_file,
            "transport/link/tls/connect_certificate": settings.cert_file,
            "transport/link/tls/connect_private_key": settings.key_file,
            "transport/link/tls/enable_mtls": True,
            # Each node has a certificate of this authority, whichever of two connects; nodes learn of each other's
            # addresses, and those are in no certificate.
            "transport/link/tls/verify_name_on_connect": False,
        }
    made = zenoh.Config()
    for name, value in values.items():
        made.insert_json5(name, json.dumps(value))
    return made


class MeshSession:
    """The session of one process. `heard(key, payload)` and `alive(key, whether)` are called by Zenoh's threads."""

    def __init__(
        self,
        settings: Mesh,
        node: str,
        incarnation: int,
        heard: Callable[[str, bytes], None],
        alive: Callable[[str, bool], None],
    ) -> None:
        self._settings = settings
        self._node = node
        self._incarnation = incarnation
        self._heard = heard
        self._alive = alive
        self._session: zenoh.Session | None = None
        self._token: zenoh.LivelinessToken | None = None
        self._reconnector = Reconnector(settings, configuration)
        self.seen: list[str] = []
        """The other nodes that were there when this one came."""

    def open(self) -> None:
        """Become a node of the mesh.

        Raises:
            MeshError: a file or an address cannot be used, or another process has this node's id.
        """
        if why := fault(self._settings):
            raise MeshError(why)
        try:
            self._session = session = zenoh.open(configuration(self._settings))
        except Exception as error:
            raise MeshError(f"the mesh cannot be opened: {_first_line(error)}") from None
        try:
            self._look_who_is_there(session)
            root = f"canopy/{self._settings.name}"
            frames = zenoh.handlers.Callback(self._on_frame, indirect=False)
            session.declare_subscriber(f"{root}/to/{self._node}/*", frames)
            tokens = zenoh.handlers.Callback(self._on_token, indirect=False)
            session.liveliness().declare_subscriber(f"{root}/alive/*/*", tokens, history=True)
            self._token = session.liveliness().declare_token(f"{root}/alive/{self._node}/{self._incarnation}")
            self._reconnector.start(session)
        except BaseException:
            self.close()
            raise

    def publisher(self, node: str) -> zenoh.Publisher:
        """What sends frames to a node. Raises ZError when the session is closed."""
        assert self._session is not None
        return self._session.declare_publisher(
            f"canopy/{self._settings.name}/to/{node}/{self._node}",
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            # A frame is what one turn of the event loop had to say: nothing is to be waited for.
            express=True,
        )

    def leave(self) -> None:
        """Have the other nodes see that this one goes."""
        if self._token is not None:
            with contextlib.suppress(zenoh.ZError):
                self._token.undeclare()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the session. Zenoh waits for links that do not answer, up to ten seconds."""
        self._reconnector.stop()
        if self._session is not None:
            with contextlib.suppress(zenoh.ZError):
                self._session.close()  # type: ignore[no-untyped-call]

    def _look_who_is_there(self, session: zenoh.Session) -> None:
        for reply in session.liveliness().get(f"canopy/{self._settings.name}/alive/*/*", timeout=ASK):
            if reply.ok is not None:
                node = str(reply.ok.key_expr).split("/")[-2]
                if node == self._node:
                    raise MeshError(same_id(self._settings.name, self._node))
                self.seen.append(node)

    def _on_frame(self, sample: zenoh.Sample) -> None:
        threads.CALLERS.keep()
        self._heard(str(sample.key_expr), sample.payload.to_bytes())

    def _on_token(self, sample: zenoh.Sample) -> None:
        self._alive(str(sample.key_expr), sample.kind == zenoh.SampleKind.PUT)


def same_id(mesh: str, node: str) -> str:
    """What is told of two processes with one node id."""
    return f"another process is the node {node!r} of the mesh {mesh!r} already: give this one a mesh.node of its own"


def _first_line(error: Exception) -> str:
    """What Zenoh says is wrong, without the places in its source."""
    text = str(error).splitlines()[0] if str(error) else repr(error)
    return text.partition(" at /")[0][:300]
