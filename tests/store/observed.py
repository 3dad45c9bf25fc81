"""Shows a router's lasting state as plain values to compare. Times are relative to `now`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence.journal import Saved, share_name
from canopy_mqtt.core.queues.delivery import RELEASED, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.store import Store
from tests.support.restored import restore

Seen = dict[str, Any]

_Value = TypeVar("_Value")


def at_once(work: Coroutine[Any, Any, _Value]) -> _Value:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        value: _Value = done.value
        return value
    raise AssertionError("it waits")


def _left(when: float, now: float) -> float | None:
    """Seconds until a time; whatever is past is due now."""
    return None if when == 0.0 else max(when - now, 0.0)


def see_message(message: Message, now: float) -> tuple[object, ...]:
    """All of a message."""
    return (
        message.topic, message.payload(), message.qos, message.retain, message.properties,
        _left(message.expires_at, now), message.publisher, message.size,
    )  # fmt: skip


def see_delivery(session: Session, delivery: Delivery, now: float) -> tuple[object, ...]:
    """All of a delivery that matters still: the message of a released one does not."""
    share = share_name(delivery)
    message = () if delivery.state == RELEASED else see_message(delivery.message, now)
    return (
        delivery.packet_id, delivery.state, delivery.attempts > 0, delivery.qos, delivery.retain, delivery.identifiers,
        share if share in session.subscriptions else "", message,
    )  # fmt: skip


def see_session(session: Session, now: float) -> Seen:
    """All of a session that is not connected."""
    will = session.will
    return {
        "expires in": _left(session.expires_at, now),
        "expiry interval": session.expiry_interval,
        "will": None if will is None else (will, _left(session.will_due, now)),
        "subscriptions": {
            name: (one.request(), one.identifier, session.is_streaming(one))
            for name, one in session.subscriptions.items()
        },
        "in flight": [see_delivery(session, one, now) for one in session.inflight.values()],
        "waiting": [see_delivery(session, one, now) for one in session.queue.pending or ()],
        "bytes": session.queue.bytes,
        "received": sorted(session.received_qos2 or ()),
    }  # fmt: skip


def see(router: Router, now: float) -> Seen:
    """All that lasts, of a router to which nobody is connected."""
    return {
        "sessions": {client_id: see_session(session, now) for client_id, session in router.sessions.items()},
        "retained": {
            node.topic: see_message(node.value, now)
            for node in router.retained.matching("#")
            if isinstance(node.value, Message)
        },
        "retained bytes": router.retained_store.bytes,
        "subscriptions": router.table.count,
        "filters": len(router.trie),
        "due": len(router.deadlines),
        "next due": max(router.deadlines.next_due() - now, 0.0) if len(router.deadlines) else None,
    }


def see_kept(router: Router, now: float) -> Seen:
    """Show the state that a broker that died now would have kept, without what only an orderly end makes known."""
    sessions: Seen = {}
    for client_id, session in router.sessions.items():
        if session.journal is not None:
            seen = see_session(session, now)
            for name in ("in flight",):
                seen[name] = [(*one[:2], *one[3:]) for one in seen[name]]
            for name in ("expires in", "will"):
                del seen[name]
            sessions[client_id] = {**seen, "will": session.will}
    return {"sessions": sessions, **{name: see(router, now)[name] for name in ("retained", "retained bytes")}}


def restored(saved: Saved, limits: Limits, now: float, store: Store | None = None) -> Router:
    """A new router with everything back, and not ticked yet."""
    router = Router(limits)
    if store is not None:
        router.journal = store.journal
    restore(router, saved, now)
    return router
