"""The figures about the broker itself: event loop, process, store, recorder, links to other brokers, alarms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from canopy_mqtt.guards.hook_guards import HOOKS
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.figure import Figure, Kind, Topic, each, one
from canopy_mqtt.observe.figures.merging import Merge, Sample, Value, added, alike, by_worker, greatest, least
from canopy_mqtt.observe.figures.process import Process
from canopy_mqtt.observe.figures.sources import Reading
from canopy_mqtt.version import __version__

if TYPE_CHECKING:
    from canopy_mqtt.record.recorder import Recorder

COUNTER, GAUGE, TEXT = Kind.COUNTER, Kind.GAUGE, Kind.TEXT


def _seconds(value: Value) -> str:
    return f"{int(value)} seconds"


def _errors(reading: Reading, of_hooks: bool) -> dict[str, int]:
    return {place: count for place, count in reading.server.faults.counts.items() if (place in HOOKS) is of_hooks}


# -- the store ---------------------------------------------------------------------------------------------------------


def _commit_times(reading: Reading) -> Histogram | None:
    store = reading.sources.store
    return None if store is None else store.commit_times


def _slowest_commit(reading: Reading) -> Value | None:
    times = _commit_times(reading)
    return None if times is None else round(times.take_worst(), 6)


def _store_failing(reading: Reading) -> Value | None:
    watch = reading.sources.store
    return None if watch is None or not reading.store else int(watch.failing)


def _of_store(reading: Reading) -> dict[str, Value]:
    return {name: value for name, value in reading.store.items() if isinstance(value, (int, float, str))}


def _store(name: str, kind: Kind, topic: str, text: str, unit: str = "") -> Figure:
    """Make a figure that a store reports; it has no samples if there is no store, or the store does not report it."""
    return Figure(
        name, kind, text, one(lambda reading: _of_store(reading).get(topic)), unit, topics=(Topic(f"store/{topic}"),)
    )


STORE: Final = (
    Figure("store_failing", GAUGE, "1 while the store cannot be written, else 0", one(_store_failing), merge=greatest),
    Figure("store_commit", Kind.HISTOGRAM, "From a change to its commit", _commit_times, "seconds"),
    Figure(
        "store_slowest_commit",
        Kind.INTERVAL,
        "Seconds from a change to its commit, the maximum since the last interval",
        one(_slowest_commit),
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


def _other_of_store(reading: Reading) -> dict[str, Value]:
    return {name: value for name, value in _of_store(reading).items() if f"store/{name}" not in STORE_TOPICS}


# -- the recorder ------------------------------------------------------------------------------------------------------


def _recorder(
    name: str,
    kind: Kind,
    topic: str,
    text: str,
    read: Callable[[Recorder], Value],
    unit: str = "",
    merge: Merge = added,
) -> Figure:
    samples = one(lambda reading: None if reading.recorder is None else read(reading.recorder))
    return Figure(name, kind, text, samples, unit, topics=(Topic(f"recorder/{topic}"),) if topic else (), merge=merge)


def _recorder_queued(recorder: Recorder) -> int:
    return 0 if recorder.tap is None else int(recorder.tap.waiting)


RECORDER: Final = (
    _recorder(
        "recorder_failing",
        GAUGE,
        "",
        "1 if the recorder has stopped because of an error, else 0",
        lambda found: int(bool(found.failure)),
        merge=greatest,
    ),
    _recorder(
        "recorder_state", TEXT, "state", "`recording`, or why not", lambda recorder: recorder.failure or "recording"
    ),
    _recorder("recorder_segments", COUNTER, "segments", "Finished segments", lambda found: found.segments),
    _recorder("recorder_events", COUNTER, "events", "Events in finished segments", lambda found: found.events),
    _recorder(
        "recorder_written", COUNTER, "bytes", "Bytes of finished segments", lambda recorder: recorder.bytes, "bytes"
    ),
    _recorder("recorder_queued", GAUGE, "queued", "Events that wait to be written", _recorder_queued),
    _recorder("recorder_lost", COUNTER, "lost", "Events that could not be recorded", lambda found: found.lost),
)

# -- links to upstream brokers -----------------------------------------------------------------------------------------


def _up(reading: Reading) -> dict[str, int]:
    return {name: int(link.connected) for name, link in reading.sources.upstreams.items()}


def _upstream(topic: str, kind: Kind, text: str) -> Figure:
    """Make a figure that each link reports."""

    def read(reading: Reading) -> dict[str, Value]:
        values = {name: figures[topic] for name, figures in reading.upstream.items()}
        return {name: value if isinstance(value, (int, float)) else str(value) for name, value in values.items()}

    name = topic.replace("/", "_").replace(" ", "_").replace("-", "_")
    topics = (Topic(f"upstream/{{name}}/{topic}"),)
    return Figure(f"upstream_{name}", kind, text, each(read), labels=("name",), topics=topics)


UPSTREAM: Final = (
    Figure("upstream_up", GAUGE, "1 while the link to an upstream broker is up, else 0", each(_up), labels=("name",)),
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

    def read(reading: Reading) -> dict[str, int]:
        links = reading.sources.links
        return {} if links is None else {node.name: int(getattr(node, field)) for node in links.other_nodes()}

    topics = (Topic(f"cluster/{{node}}/{field.replace('_', ' ')}"),)
    return Figure(f"cluster_link_{name}", kind, text, each(read), unit, ("node",), topics, merge=merge)


def _here(reading: Reading) -> dict[str, int]:
    node = reading.server.settings.cluster.node
    return {node: 1} if node and not reading.sources.worker else {}


CLUSTER: Final = (
    Figure(
        "cluster_node", GAUGE, "1, with the name of the node whose own figures these are", each(_here), labels=("node",)
    ),
    _node("up", GAUGE, "up", "1 while the link to another node is up, else 0", merge=least),
    _node("waiting", GAUGE, "waiting_bytes", "What waits here for another node", "bytes"),
    _node("dropped", COUNTER, "dropped", "Messages for another node that were dropped here"),
)

# -- HTTP --------------------------------------------------------------------------------------------------------------


def _http(name: str, kind: Kind, topic: str, text: str) -> Figure:
    return Figure(
        f"http_{name}", kind, text, one(lambda reading: reading.http.get(name)), topics=(Topic(f"http/{topic}"),)
    )


HTTP: Final = (
    _http("connections", GAUGE, "connections", "Connections of [http] that are open"),
    _http("connections_refused", COUNTER, "connections/refused", "Those that found no place (http.max_connections)"),
    _http("connections_evicted", COUNTER, "connections/evicted", "Those that had no request under way, and made room"),
    _http("connections_cut", COUNTER, "connections/cut", "Those that were too slow (http.timeout)"),
    _http("event_streams", GAUGE, "event streams", "Open pages, at most an eighth of http.max_connections"),
    _http("event_streams_refused", COUNTER, "event streams/refused", "Those that found no place"),
)

# -- the process -------------------------------------------------------------------------------------------------------


def _process(
    name: str, kind: Kind, text: str, read: Callable[[Process], Value], unit: str = "", topic: str = ""
) -> Figure:
    """Make a figure of the process; 0 means that the system does not tell."""
    topics = (Topic(topic),) if topic else ()
    # A topic has a value in any case.
    samples = one(lambda reading: read(reading.process) if topic else read(reading.process) or None)
    return Figure(f"process_{name}", kind, text, samples, unit, topics=topics, process=True, merge=by_worker)


PROCESS: Final = (
    _process("cpu", COUNTER, "Time on the processor", Process.cpu, "seconds"),
    _process(
        "resident_memory",
        GAUGE,
        "Resident memory of the process",
        lambda process: process.memory()[0],
        "bytes",
        "heap/current",
    ),
    _process(
        "resident_memory_max",
        GAUGE,
        "Maximum resident memory of the process",
        Process.most_memory,
        "bytes",
        "heap/maximum",
    ),
    _process("virtual_memory", GAUGE, "Addresses", lambda process: process.memory()[1], "bytes"),
    _process("start_time", GAUGE, "When it began, since 1970", lambda process: process.started, "seconds"),
    _process("open_fds", GAUGE, "Open files and sockets", Process.files),
    _process("max_fds", GAUGE, "Files and sockets that may be open", Process.most_files),
)


# -- several workers (`canopy_mqtt.workers`) ---------------------------------------------------------------------------


def _worker(name: str, kind: Kind, text: str, read: Callable[[Reading], dict[str, int]] = lambda _: {}) -> Figure:
    """Make a figure about each worker; without `read`, it is the supervisor that knows."""
    topics = (Topic(f"workers/{{worker}}/{name}"),)
    return Figure(f"worker_{name}", kind, text, each(read), labels=("worker",), topics=topics)


def _up_here(reading: Reading) -> dict[str, int]:
    return {reading.sources.worker: 1} if reading.sources.worker else {}


WORKERS: Final = (
    _worker("up", GAUGE, "1 where a worker answers, else 0: then its part is missing in all other figures", _up_here),
    _worker("restarts", COUNTER, "How often a worker was started again"),
    _worker("waiting", GAUGE, "Connections of clients that a worker has not taken yet"),
)


def _alarms(reading: Reading) -> dict[str, int]:
    counts = reading.sources.alarms
    return {} if counts is None else counts()


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
    Figure("alarms", GAUGE, "Alarms that are raised, by kind", each(_alarms), labels=("alarm",), merge=greatest),
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
        each(lambda reading: _errors(reading, of_hooks=True)),
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
        one(lambda reading: sum(_errors(reading, of_hooks=False).values())),
        topics=(Topic("errors/internal"),),
    ),
)

OTHER: Final = (
    Figure(
        "store_other",
        TEXT,
        "Other figures of an embedding program's store",
        each(_other_of_store),
        labels=("what",),
        topics=(Topic("store/{what}"),),
    ),
)
