"""The figures about the broker itself: event loop, process, store, recorder, links to other brokers, alarms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final

from canopy_mqtt.guards.hook_guards import HOOKS
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.figure import Figure, Kind, Topic, one
from canopy_mqtt.observe.figures.merging import Merge, Sample, Value, added, alike, by_worker, greatest, least
from canopy_mqtt.observe.figures.sources import Reading
from canopy_mqtt.version import __version__

COUNTER, GAUGE, TEXT = Kind.COUNTER, Kind.GAUGE, Kind.TEXT


def _seconds(value: Value) -> str:
    return f"{int(value)} seconds"


def _hooks(reading: Reading) -> Iterator[Sample]:
    for place, count in reading.server.faults.counts.items():
        if place in HOOKS:
            yield (place,), count


def _internal(reading: Reading) -> int:
    return sum(count for place, count in reading.server.faults.counts.items() if place not in HOOKS)


# -- the store ---------------------------------------------------------------------------------------------------------


def _commit_times(reading: Reading) -> Histogram | None:
    store = reading.sources.store
    return None if store is None else store.commit_times


def _slowest_commit(reading: Reading) -> Iterator[Sample]:
    times = _commit_times(reading)
    if times is not None:
        yield (), round(times.take_worst(), 6)


def _store_failing(reading: Reading) -> Iterator[Sample]:
    watch = reading.sources.store
    if watch is not None and reading.store:
        yield (), int(watch.failing)


def _store(name: str, kind: Kind, topic: str, text: str, unit: str = "") -> Figure:
    """Make a figure that a store reports; it has no samples if there is no store, or the store does not report it."""

    def samples(reading: Reading) -> list[Sample]:
        value = reading.store.get(topic)
        return [((), value)] if isinstance(value, (int, float, str)) else []

    return Figure(name, kind, text, samples, unit, topics=(Topic(f"store/{topic}"),))


STORE: Final = (
    Figure("store_failing", GAUGE, "1 while the store cannot be written, else 0", _store_failing, merge=greatest),
    Figure("store_commit", Kind.HISTOGRAM, "From a change to its commit", _commit_times, "seconds"),
    Figure(
        "store_slowest_commit",
        Kind.INTERVAL,
        "Seconds from a change to its commit, the maximum since the last interval",
        _slowest_commit,
        topics=(Topic("store/latency"),),
        merge=greatest,
    ),
    _store("store_state", TEXT, "state", "`written`, or why the store cannot be written"),
    _store("store_path", TEXT, "path", "The store's folder"),
    _store("store_failures", COUNTER, "failures", "How often writing began to fail"),
    _store("store_damaged", COUNTER, "damaged", "Damaged rows found, which are lost"),
    _store("store_groups", COUNTER, "groups", "Committed groups of changes"),
    _store("store_rows", COUNTER, "rows", "Rows written"),
    _store("store_file", GAUGE, "bytes", "Bytes on the disk", "bytes"),
    _store("store_paged_messages", GAUGE, "paged/messages", "Messages that wait on disk only"),
    _store("store_paged", GAUGE, "paged/bytes", "Bytes of the messages that wait on disk only", "bytes"),
    _store("store_waiting", GAUGE, "waiting", "Changes not committed yet"),
    _store("store_refused", COUNTER, "refused", "Changes that the database refused, and that were dropped"),
    _store("store_claimed", GAUGE, "claimed", "Sessions that nodes share, and that are connected here"),
    _store("store_away", GAUGE, "away", "Seconds since the database that nodes share has answered", "seconds"),
)

STORE_TOPICS: Final = frozenset(topic.path for figure in STORE for topic in figure.topics)


def _other_of_store(reading: Reading) -> Iterator[Sample]:
    for name, value in reading.store.items():
        if f"store/{name}" not in STORE_TOPICS and isinstance(value, (int, float, str)):
            yield (name,), value


# -- the recorder ------------------------------------------------------------------------------------------------------


def _recorder(
    name: str,
    kind: Kind,
    topic: str,
    text: str,
    read: Callable[[Reading], Value],
    unit: str = "",
    merge: Merge = added,
) -> Figure:
    def samples(reading: Reading) -> list[Sample]:
        return [] if reading.recorder is None else [((), read(reading))]

    return Figure(name, kind, text, samples, unit, topics=(Topic(f"recorder/{topic}"),) if topic else (), merge=merge)


def _recorder_state(reading: Reading) -> Value:
    assert reading.recorder is not None
    return reading.recorder.failure or "recording"


def _recorder_failing(reading: Reading) -> Value:
    assert reading.recorder is not None
    return int(bool(reading.recorder.failure))


def _recorder_queued(reading: Reading) -> Value:
    assert reading.recorder is not None
    return 0 if reading.recorder.tap is None else int(reading.recorder.tap.waiting)


def _of_recorder(name: str) -> Callable[[Reading], Value]:
    return lambda reading: int(getattr(reading.recorder, name))


RECORDER: Final = (
    _recorder(
        "recorder_failing",
        GAUGE,
        "",
        "1 if the recorder has stopped because of an error, else 0",
        _recorder_failing,
        merge=greatest,
    ),
    _recorder("recorder_state", TEXT, "state", "`recording`, or why not", _recorder_state),
    _recorder("recorder_segments", COUNTER, "segments", "Finished segments", _of_recorder("segments")),
    _recorder("recorder_events", COUNTER, "events", "Events in finished segments", _of_recorder("events")),
    _recorder("recorder_written", COUNTER, "bytes", "Bytes of finished segments", _of_recorder("bytes"), "bytes"),
    _recorder("recorder_queued", GAUGE, "queued", "Events that wait to be written", _recorder_queued),
    _recorder("recorder_lost", COUNTER, "lost", "Events that could not be recorded", _of_recorder("lost")),
)

# -- links to upstream brokers -----------------------------------------------------------------------------------------


def _up(reading: Reading) -> Iterator[Sample]:
    for name, link in reading.sources.upstreams.items():
        yield (name,), int(link.connected)


def _upstream(topic: str, kind: Kind, text: str) -> Figure:
    """Make a figure that each link reports."""

    def samples(reading: Reading) -> Iterator[Sample]:
        for name, figures in reading.upstream.items():
            value = figures[topic]
            yield (name,), value if isinstance(value, (int, float)) else str(value)

    name = topic.replace("/", "_").replace(" ", "_").replace("-", "_")
    topics = (Topic(f"upstream/{{name}}/{topic}"),)
    return Figure(f"upstream_{name}", kind, text, samples, labels=("name",), topics=topics)


UPSTREAM: Final = (
    Figure("upstream_up", GAUGE, "1 while the link to an upstream broker is up, else 0", _up, labels=("name",)),
    _upstream("state", TEXT, "What the link is doing"),
    _upstream("trouble", TEXT, "Why it is not up"),
    _upstream("version", TEXT, "The version of MQTT that it speaks"),
    _upstream("connects", COUNTER, "How often the link came up"),
    _upstream("filters/demanded", GAUGE, "Topic filters that are asked for here"),
    _upstream("filters/declared", GAUGE, "Topic filters that the link wants there"),
    _upstream("filters/held", GAUGE, "Topic filters that the upstream has granted"),
    _upstream("filters/refused", GAUGE, "Topic filters that the upstream has refused"),
    _upstream("filters/without room", GAUGE, "Topic filters that have no room in the budget"),
    _upstream("filters/outside", GAUGE, "Topic filters that are outside of the link's roots"),
    _upstream("messages/received", COUNTER, "Messages that came down"),
    _upstream("messages/unmatched", COUNTER, "Messages that came down for nobody"),
    _upstream("messages/over-forwarding", TEXT, "The share of messages that came down for nobody"),
    _upstream("messages/outside", COUNTER, "Messages that no filter of the link matches, and that were dropped"),
    _upstream("messages/copies", COUNTER, "Messages that came down more than once"),
    _upstream("messages/replayed", COUNTER, "Retained messages that came down again"),
    _upstream("messages/looped", COUNTER, "Messages that had been here before"),
    _upstream("messages/nameless", COUNTER, "Messages with topics that this broker cannot have"),
    _upstream("messages/sent", COUNTER, "Messages that went up"),
    _upstream("messages/rejected", COUNTER, "Messages that the upstream refused"),
    _upstream("messages/given up", COUNTER, "Messages that were given up"),
    _upstream("messages/doubtful", GAUGE, "Messages of which it is not known whether they arrived"),
    _upstream("messages/kept back", COUNTER, "Messages that did not go up, since they came from there"),
    _upstream("messages/queued", GAUGE, "Messages that wait to go up"),
    _upstream("messages/dropped", COUNTER, "Messages that were to go up and were dropped"),
)

# -- nodes of a cluster ------------------------------------------------------------------------------------------------


def _node(name: str, kind: Kind, field: str, text: str, unit: str = "", merge: Merge = added) -> Figure:
    """Make a figure about each other node of the cluster."""

    def samples(reading: Reading) -> Iterator[Sample]:
        links = reading.sources.links
        for node in () if links is None else links.other_nodes():
            yield (node.name,), int(getattr(node, field))

    topics = (Topic(f"cluster/{{node}}/{field.replace('_', ' ')}"),)
    return Figure(f"cluster_link_{name}", kind, text, samples, unit, ("node",), topics, merge=merge)


def _here(reading: Reading) -> Iterator[Sample]:
    if (node := reading.server.settings.cluster.node) and not reading.sources.worker:
        yield (node,), 1


CLUSTER: Final = (
    Figure("cluster_node", GAUGE, "1, with the name of the node whose own figures these are", _here, labels=("node",)),
    _node("up", GAUGE, "up", "1 while the link to another node is up, else 0", merge=least),
    _node("waiting", GAUGE, "waiting_bytes", "What waits here for another node", "bytes"),
    _node("dropped", COUNTER, "dropped", "Messages for another node that were dropped here"),
)

# -- HTTP --------------------------------------------------------------------------------------------------------------


def _http(name: str, kind: Kind, topic: str, text: str) -> Figure:
    def samples(reading: Reading) -> list[Sample]:
        return [((), reading.http[name])] if reading.http else []

    return Figure(f"http_{name}", kind, text, samples, topics=(Topic(f"http/{topic}"),))


HTTP: Final = (
    _http("connections", GAUGE, "connections", "Connections of [http] that are open"),
    _http("connections_refused", COUNTER, "connections/refused", "Those that found no place (http.max_connections)"),
    _http("connections_evicted", COUNTER, "connections/evicted", "Those that had no request under way, and made room"),
    _http("connections_cut", COUNTER, "connections/cut", "Those that were too slow (http.timeout)"),
    _http("event_streams", GAUGE, "event streams", "Open pages, at most an eighth of http.max_connections"),
    _http("event_streams_refused", COUNTER, "event streams/refused", "Those that found no place"),
)

# -- the process -------------------------------------------------------------------------------------------------------


def _process(name: str, kind: Kind, text: str, read: Callable[[Reading], Value], unit: str = "") -> Figure:
    """Make a figure of the process; 0 means that the system does not tell."""

    def samples(reading: Reading) -> list[Sample]:
        value = read(reading)
        return [((), value)] if value else []

    return Figure(f"process_{name}", kind, text, samples, unit, process=True, merge=by_worker)


PROCESS: Final = (
    _process("cpu", COUNTER, "Time on the processor", lambda reading: reading.process.cpu(), "seconds"),
    Figure(
        "process_resident_memory",
        GAUGE,
        "Resident memory of the process",
        one(lambda reading: reading.process.memory()[0]),
        "bytes",
        topics=(Topic("heap/current"),),
        process=True,
        merge=by_worker,
    ),
    Figure(
        "process_resident_memory_max",
        GAUGE,
        "Maximum resident memory of the process",
        one(lambda reading: reading.process.most_memory()),
        "bytes",
        topics=(Topic("heap/maximum"),),
        process=True,
        merge=by_worker,
    ),
    _process("virtual_memory", GAUGE, "Addresses", lambda reading: reading.process.memory()[1], "bytes"),
    _process("start_time", GAUGE, "When it began, since 1970", lambda reading: reading.process.started, "seconds"),
    _process("open_fds", GAUGE, "Open files and sockets", lambda reading: reading.process.files()),
    _process("max_fds", GAUGE, "Files and sockets that may be open", lambda reading: reading.process.most_files()),
)


# -- several workers (`canopy_mqtt.workers`) ---------------------------------------------------------------------------


def _of_supervisor(reading: Reading) -> Iterator[Sample]:
    """Yield nothing: it is the supervisor that knows."""
    del reading
    yield from ()


def _up_here(reading: Reading) -> Iterator[Sample]:
    if reading.sources.worker:
        yield (reading.sources.worker,), 1


WORKERS: Final = (
    Figure(
        "worker_up",
        GAUGE,
        "1 where a worker answers, else 0: then its part is missing in all other figures",
        _up_here,
        labels=("worker",),
        topics=(Topic("workers/{worker}/up"),),
    ),
    Figure(
        "worker_restarts",
        COUNTER,
        "How often a worker was started again",
        _of_supervisor,
        labels=("worker",),
        topics=(Topic("workers/{worker}/restarts"),),
    ),
    Figure(
        "worker_waiting",
        GAUGE,
        "Connections of clients that a worker has not taken yet",
        _of_supervisor,
        labels=("worker",),
        topics=(Topic("workers/{worker}/waiting"),),
    ),
)


def _alarms(reading: Reading) -> Iterator[Sample]:
    counts = reading.sources.alarms
    for kind, count in () if counts is None else counts().items():
        yield (kind,), count


def _build(reading: Reading) -> Iterator[Sample]:
    del reading
    yield (__version__, sys.version.split()[0]), 1


BROKER: Final = (
    Figure(
        "version",
        TEXT,
        "The broker and its version",
        one(lambda _: f"canopy {__version__}"),
        topics=(Topic("version"),),
        merge=alike,
    ),
    Figure(
        "uptime",
        GAUGE,
        "Time since the broker began to serve",
        one(lambda reading: reading.now - reading.sources.started),
        "seconds",
        topics=(Topic("uptime", _seconds),),
        merge=greatest,
    ),
    Figure("build_info", GAUGE, "1; the labels say what runs", _build, labels=("version", "python"), merge=alike),
    Figure(
        "python",
        TEXT,
        "The version of Python",
        one(lambda _: sys.version.split()[0]),
        topics=(Topic("process/python"),),
        merge=alike,
    ),
    Figure("alarms", GAUGE, "Alarms that are raised, by kind", _alarms, labels=("alarm",), merge=greatest),
    Figure(
        "event_loop_lag",
        Kind.HISTOGRAM,
        "Lag of the event loop, measured four times a second",
        lambda reading: reading.server.lag_monitor.lags,
        "seconds",
    ),
    Figure(
        "event_loop_worst_lag",
        Kind.INTERVAL,
        "Maximum lag of the event loop in seconds since the last interval",
        one(lambda reading: reading.server.lag_monitor.take_worst(reading.now)),
        topics=(Topic("load/lag", lambda value: f"{value:.3f}"),),
        merge=greatest,
    ),
    Figure(
        "hook_errors",
        COUNTER,
        "Exceptions of hooks and authenticators, by hook",
        _hooks,
        labels=("hook",),
        topics=(Topic("hooks/{hook}/errors"),),
    ),
    Figure(
        "slow_hook_calls",
        COUNTER,
        "Calls of hooks that delayed the event loop",
        one(lambda reading: reading.server.faults.slow_calls),
        topics=(Topic("hooks/slow calls"),),
    ),
    Figure(
        "internal_errors",
        COUNTER,
        "Caught errors of the broker itself; the log has them",
        one(_internal),
        topics=(Topic("errors/internal"),),
    ),
)

OTHER: Final = (
    Figure(
        "store_other",
        TEXT,
        "Other figures of an embedding program's store",
        _other_of_store,
        labels=("what",),
        topics=(Topic("store/{what}"),),
    ),
)
