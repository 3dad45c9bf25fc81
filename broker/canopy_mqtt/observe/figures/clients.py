"""The figures about clients: connections, sessions, subscriptions, slow subscribers, authentication."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.observe.figures.figure import Figure, Kind, Topic, each, one
from canopy_mqtt.observe.figures.merging import Merge, Sample, Value, added, greatest
from canopy_mqtt.observe.figures.sources import Reading

if TYPE_CHECKING:
    from canopy_mqtt.observe.monitor import SlowClient

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE


def _most(reading: Reading) -> int:
    return max(reading.connected, reading.sources.most_clients)


def _connections(reading: Reading) -> int:
    """Return the number of open connections; of a worker, without those of the others to it."""
    table = reading.server.connection_table
    return len(table.connections) - (table.of_nodes if reading.sources.worker else 0)


def _ends(reading: Reading) -> dict[str, int]:
    return reading.server.connection_table.ends


def _refused_connections(reading: Reading) -> Value | None:
    server = reading.server
    if server.admission is None:
        return None
    return reading.sources.monitor.turned_away + server.admission.turned_away + server.handshakes.evicted


def _refusals(reading: Reading) -> dict[str, int]:
    security = reading.sources.security
    return {} if security is None else security.refusals()


def _slowest(reading: Reading) -> dict[str, str]:
    return {str(place): _slow(client) for place, client in enumerate(reading.sources.monitor.slowest, 1)}


PLACES: Final = 3
"""Entries of each list under `$SYS/broker/top/`; `canopy ctl top` shows more."""


def _top(reading: Reading) -> Iterator[Sample]:
    top = reading.sources.top
    if top is not None and top.settings.counters:
        for of, by, found in top.all(PLACES):
            if found.places:
                entries = [{"name": place.name, "value": round(place.value, 3)} for place in found.places]
                yield (of, by), json.dumps(entries)


def _top_of_all(found: Mapping[str, list[Sample]]) -> list[Sample]:
    """Return the lists of several workers as one: values of the same name are added."""
    values: dict[tuple[str, ...], Counter[str]] = {}
    for samples in found.values():
        for labels, text in samples:
            for entry in json.loads(str(text)):
                values.setdefault(labels, Counter())[entry["name"]] += entry["value"]
    return [
        (labels, json.dumps([{"name": name, "value": round(value, 3)} for name, value in some.most_common(PLACES)]))
        for labels, some in values.items()
    ]


def _slowest_of_all(found: Mapping[str, list[Sample]]) -> list[Sample]:
    def delay(text: str) -> Any:
        return json.loads(text)["delay"]

    most = max(map(len, found.values()), default=0)
    ranked = sorted((str(text) for samples in found.values() for _, text in samples), key=delay, reverse=True)
    return [((str(place),), text) for place, text in enumerate(ranked[:most], 1)]


def _traces(reading: Reading) -> Value | None:
    traces = reading.sources.traces
    return None if traces is None else sum(trace.running for trace in traces.all.values())


def _left_out(reading: Reading) -> Value | None:
    traces = reading.sources.traces
    return None if traces is None or traces.spans is None else traces.spans.left_out


def _slow(client: SlowClient) -> str:
    """Return a slow subscriber as JSON; `delay` in seconds."""
    return json.dumps(
        {
            "client_id": client.client_id,
            "delay": round(client.delay, 3),
            "waiting": client.waiting,
            "bytes": client.bytes,
            "high_water": client.high_water,
            "dropped": client.dropped(),
        }
    )


def _security(name: str, kind: Kind, topic: str, text: str, merge: Merge = added) -> Figure:
    """Make a figure that authentication counts; it has no samples if the broker does not authenticate."""
    samples = one(lambda reading: reading.security.get(topic))
    return Figure(name, kind, text, samples, topics=(Topic(f"security/{topic}"),), merge=merge)


CLIENTS: Final = (
    Figure(
        "connections",
        GAUGE,
        "Open connections, accepted or not",
        one(_connections),
        topics=(Topic("connections/open"), Topic("connections/socket/count")),
    ),
    Figure(
        "connections_opened",
        COUNTER,
        "Connections that were opened",
        one(lambda reading: int(reading.counters.connections)),
        topics=(Topic("connections/total"),),
    ),
    Figure(
        "connects",
        COUNTER,
        "CONNECT packets received, accepted or not",
        one(lambda reading: int(reading.counters.connects)),
        topics=(Topic("connections/connects"),),
    ),
    Figure(
        "connections_closed",
        COUNTER,
        "Connections that ended, by cause",
        each(_ends),
        labels=("cause",),
        topics=(Topic("connections/closed/{cause}"),),
    ),
    Figure(
        "connections_turned_away",
        COUNTER,
        "Connections closed without an answer, far above a limit or because of too many handshakes in progress",
        one(_refused_connections),
        topics=(Topic("connections/turned away"),),
    ),
    Figure(
        "handshakes",
        GAUGE,
        "Handshakes of TLS, WebSocket and the PROXY protocol in progress",
        one(lambda reading: len(reading.server.handshakes)),
        topics=(Topic("connections/handshakes"),),
    ),
    Figure(
        "clients_connected",
        GAUGE,
        "Connected clients",
        one(lambda reading: reading.connected),
        topics=(Topic("clients/connected"), Topic("clients/active")),
    ),
    Figure(
        "clients_disconnected",
        GAUGE,
        "Sessions whose clients are not connected",
        one(lambda reading: reading.sessions - reading.connected),
        topics=(Topic("clients/disconnected"), Topic("clients/inactive")),
    ),
    Figure(
        "sessions",
        GAUGE,
        "Sessions, connected or not",
        one(lambda reading: reading.sessions),
        topics=(Topic("clients/total"),),
    ),
    Figure(
        "clients_maximum",
        GAUGE,
        "The maximum of connected clients, at the times of reading",
        one(_most),
        topics=(Topic("clients/maximum"),),
        merge=greatest,
    ),
    Figure(
        "sessions_expired",
        COUNTER,
        "Sessions that expired",
        one(lambda reading: int(reading.counters.sessions_expired)),
        topics=(Topic("clients/expired"),),
    ),
    Figure(
        "subscriptions",
        GAUGE,
        "Subscriptions",
        one(lambda reading: reading.subscriptions),
        topics=(Topic("subscriptions/count"),),
    ),
    Figure(
        "shared_subscriptions",
        GAUGE,
        "Shared subscriptions",
        one(lambda reading: reading.router.table.shared_count),
        topics=(Topic("shared_subscriptions/count"),),
    ),
    Figure(
        "topic_filters",
        GAUGE,
        "Distinct topic filters of the subscriptions",
        one(lambda reading: len(reading.router.trie)),
        topics=(Topic("subscriptions/filters"),),
        # Each worker has what the others want among its own.
        merge=greatest,
    ),
    Figure(
        "subscriptions_not_authorized",
        COUNTER,
        "Subscriptions that access control did not allow",
        one(lambda reading: int(reading.counters.denied_subscriptions)),
        topics=(Topic("subscriptions/not authorized"),),
    ),
    Figure(
        "deliveries_not_authorized",
        COUNTER,
        "Messages not sent to a subscriber that access control does not let receive them",
        one(lambda reading: int(reading.counters.denied_deliveries)),
        topics=(Topic("deliveries/not authorized"),),
    ),
    Figure(
        "cached_topics",
        GAUGE,
        "Topics in the match cache",
        one(lambda reading: len(reading.router.cache)),
        topics=(Topic("routing/cached topics"),),
    ),
    Figure(
        "slow_clients",
        GAUGE,
        "Slow clients (queue.slow_after)",
        one(lambda reading: reading.sources.monitor.slow_count),
        topics=(Topic("slow/count"),),
    ),
    Figure(
        "slowest_clients",
        Kind.TEXT,
        "The slowest clients as JSON, the slowest first: identifier, lag in seconds, queued messages",
        each(_slowest),
        labels=("place",),
        topics=(Topic("slow/{place}"),),
        merge=_slowest_of_all,
    ),
    Figure("traces", GAUGE, "Traces of packets that run (docs/explain.md)", one(_traces), merge=greatest),
    Figure("spans_left_out", COUNTER, "Spans of OpenTelemetry for which otel.max_rate had no room", one(_left_out)),
    Figure(
        "top",
        Kind.TEXT,
        "The most expensive names as JSON, with rates a second or lag in seconds (docs/operations.md)",
        _top,
        labels=("of", "by"),
        topics=(Topic("top/{of}/{by}"),),
        merge=_top_of_all,
    ),
    _security("auth_admitted", COUNTER, "admitted", "Clients that authenticators let in"),
    _security("auth_refused", COUNTER, "refused", "Clients that authenticators did not let in"),
    Figure(
        "auth_refusals",
        COUNTER,
        "Clients refused by authenticators, by reason code",
        each(_refusals),
        labels=("reason",),
        topics=(Topic("security/refused/{reason}"),),
    ),
    _security("auth_failures", COUNTER, "failures", "Wrong credentials"),
    _security("auth_under_way", GAUGE, "authenticating", "CONNECTs that authenticators are working on"),
    _security("passwords_waiting", GAUGE, "hashing/waiting", "Passwords that wait to be hashed"),
    _security("passwords_refused", COUNTER, "hashing/refused", "Passwords refused because too many waited"),
    _security("bans", COUNTER, "bans/total", "Bans for guessing"),
    _security("bans_current", GAUGE, "bans/current", "Bans for guessing in force", greatest),
    _security("bans_refused", COUNTER, "bans/refused", "CONNECTs of the banned"),
    _security("dismissed_sessions", COUNTER, "dismissed/sessions", "Sessions of users who are gone that ended"),
    _security("dismissed_wills", COUNTER, "dismissed/wills", "Wills of users who are gone that were not published"),
)
