"""What holds for every test.

Two switches of the environment make a run prove more than "nothing failed":

- `CANOPY_EXPECT=compiled` or `interpreted`: the run is refused when the `canopy_mqtt` that gets imported is the other
  kind, and, for `compiled`, when it comes from the source tree. Without it, whatever is imported is tested.
- `CANOPY_NO_SKIP=1`: a skipped test is a failed test. Continuous integration sets it, where every outside client is
  installed; elsewhere a skipped test names its reason.

A test with the marker `long` is not part of `make test`, and properties try fewer examples there
(`tests.support.runs`). What a run left out is its last line.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
import structlog
from blockbuster import BlockBuster
from xdist.scheduler import LoadScopeScheduling

from canopy_mqtt.buildinfo import COMPILED, build_info
from tests.support import forked, postgresql
from tests.support.runs import LONG, examples

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT: Final = ("long tests", "properties with part of their examples")
ONE_LEFT_OUT: Final = ("long test", "property with part of its examples")
LONG_OR_PROPERTY: Final = re.compile(r"mark\.long|hypothesis|\b(spark|either)\b")
"""Found in each file that has a long test or a property. Tests of the fixtures `spark` and `either` are long, too."""

# No deadline, and nothing is too slow: how long an example takes says more of the machine than of the broker.
# Continuous integration tries the same examples each time, so that a landing fails for what it changed; elsewhere each
# run looks for new ones.
hypothesis.settings.register_profile(
    "canopy", max_examples=examples(100), deadline=None, derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)  # fmt: skip
hypothesis.settings.load_profile("canopy")


class LeftOut:
    """What this run leaves out, counted where tests are collected: here, or by the processes that xdist starts."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(LEFT_OUT, 0)
        self.others = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Tests that `-m` or `-k` took out."""
        long = sum(item.get_closest_marker("long") is not None for item in items)
        self.counts[LEFT_OUT[0]] += long
        self.others += len(items) - long

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Which properties are not tried with all of their examples."""
        if not LONG:
            self.counts[LEFT_OUT[1]] += sum("hypothesis" in item.keywords for item in session.items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a process of xdist: tell the one that prints. Each process collects the same."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["canopy-left-out"] = (self.counts, self.others)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a process of xdist told at its end."""
        self.counts, self.others = getattr(node, "workeroutput", {}).get("canopy-left-out", (self.counts, self.others))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """The last line of the run."""
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        names = zip(LEFT_OUT, ONE_LEFT_OUT, strict=True)
        counts = [(self.counts[many], one if self.counts[many] == 1 else many) for many, one in names]
        parts = [f"{count:,} {name}" for count, name in counts if count]
        if terminal is None or hasattr(config, "workeroutput") or not (parts or self.others):
            return
        line = f"left out: {', '.join(parts)}: make test-long" if parts else ""
        others = f"deselected by -m or -k besides: {self.others:,}" if self.others else ""
        terminal.write_line("canopy: " + "; ".join(part for part in (line, others) if part))


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test another build than the one asked for, and tell the other process only what it shows."""
    config.pluginmanager.register(LeftOut(), "canopy-left-out")
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent = _without_what_is_not_shown(plugin.sendevent)
    expected = os.environ.get("CANOPY_EXPECT")
    if not expected:
        return
    found = build_info()
    if found.core != expected:
        raise pytest.UsageError(f"CANOPY_EXPECT={expected}, but {found.location} is {found.core}")
    if expected == COMPILED and found.location == ROOT / "broker/canopy_mqtt":
        raise pytest.UsageError(f"CANOPY_EXPECT={expected}, but `canopy_mqtt` was imported from the source tree")


def _without_what_is_not_shown(send: Callable[..., None]) -> Callable[..., None]:
    """Wrap what sends events from a process of xdist: six for each test took longer than most tests do.

    A test that passes needs one, and its setup and its teardown one each where they are among the slowest.
    """

    def send_event(name: str, **event: Any) -> None:
        if name in ("logstart", "logfinish"):
            return
        report = event["data"] if name == "testreport" else {}
        if report and report["when"] != "call" and report["outcome"] == "passed" and report["duration"] < 1:
            return
        send(name, **event)

    return send_event


def pytest_report_header(config: pytest.Config) -> str:
    """Say at the top which broker is under test."""
    del config
    found = build_info()
    return f"under test: {found} from {found.location}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that have no test for `make test-long`: to import all of them takes 17 s in each process."""
    if config.option.markexpr != "long or hypothesis" or not collection_path.name.startswith("test_"):
        return None
    if collection_path.suffix != ".py" or LONG_OR_PROPERTY.search(collection_path.read_text(encoding="utf-8")):
        return None
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end. A collection of garbage that looked at all of them took 0.3 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_of_each() -> Iterator[None]:
    """What tests of this process share, if it was begun, ends with them: a PostgreSQL, and what forks daemons."""
    frozen = gc.get_freeze_count()
    yield
    postgresql.close_shared()
    forked.close()
    assert gc.get_freeze_count() > frozen / 2, "a test called gc.unfreeze: each full collection after it took a second"


@pytest.fixture(autouse=True)
def _each_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a coroutine test whose broker blocks the event loop (a file, a sleep); no test sets up logs for the next.

    One fixture for both: another one takes 0.3 ms of each test.
    """
    watched = inspect.iscoroutinefunction(getattr(request.node, "function", None))
    if watched:
        _blocking_calls().activate()
    yield
    if watched:
        _blocking_calls().deactivate()
    # A broker speaks where somebody who captures logs has set up structlog.
    if structlog.is_configured():
        structlog.reset_defaults()


@functools.cache
def _blocking_calls() -> BlockBuster:
    """Find the calls that block, once: for each coroutine test this took longer than an empty test."""
    found = BlockBuster("canopy_mqtt", excluded_modules=["canopy_mqtt.testing"])
    # asyncpg looks for ~/.pgpass, and for certificates, whenever it connects.
    for function in found.functions.values():
        function.can_block_in("asyncpg/connect_utils.py", {"_parse_connect_dsn_and_args"})
    return found


# What tests share there is dear: a daemon, or the runs of a load generator, that a module's tests look at.
MODULES_TOGETHER: Final = (
    "tests/benchmarks/test_attack.py", "tests/docs/test_architecture.py", "tests/docs/test_site.py", "tests/loadtest/",
    "tests/pipeline/", "tests/project/test_clean_machine.py",
)  # fmt: skip


def _together(nodeid: str) -> str:
    """What is dealt to one process as a whole: what shares something dear, and otherwise each test."""
    file = nodeid.split("::", 1)[0]
    if LONG and nodeid.startswith("tests/pipeline/") and _uses_the_session(file):
        # Two processes that start Spark, once each.
        return "Spark: record and runtime" if nodeid.startswith("tests/pipeline/r") else "Spark: the others"
    if nodeid.startswith("tests/e2e/clients/"):
        return "tests/e2e/clients/"
    return file if nodeid.startswith(MODULES_TOGETHER) else nodeid


@functools.cache
def _uses_the_session(file: str) -> bool:
    """Whether tests of a file share the Spark session of tests/pipeline/conftest.py."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.search(r'\b(spark|either): SparkSession|getfixturevalue\("spark"\)', text) is not None


class _Dealing(LoadScopeScheduling):  # type: ignore[misc]
    """Deals tests to processes, what is most at once first, in time that does not grow with the tests that are over."""

    def _split_scope(self, nodeid: str) -> str:
        return _together(nodeid)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Collected(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        scope = _together(self.registered_collections[node][item_index])
        work = self.assigned_work[node]
        # All that a process was ever given would be counted for each test.
        if all(work[scope].values()):
            del work[scope]


class _Collected(list[str]):
    """The tests of a process, with their places."""

    def __init__(self, collection: Sequence[str]) -> None:
        super().__init__(collection)
        self._places = {nodeid: place for place, nodeid in enumerate(collection)}

    def index(self, nodeid: str, *_: Any) -> int:
        return self._places[nodeid]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How tests are dealt to processes, where there are several."""
    return _Dealing(config, log)


def no_skips() -> bool:
    return os.environ.get("CANOPY_NO_SKIP", "") not in ("", "0")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where none is allowed. An expected failure (xfail) stays one."""
    del item, call
    report = yield
    if no_skips() and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CANOPY_NO_SKIP is set: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips itself; and each process of xdist begins with other folders.

    A file whose assertions nobody has rewritten yet is then rewritten by one of them, and not by all at the same time.
    """
    report = yield
    if no_skips() and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, and CANOPY_NO_SKIP is set: {_reason(report.longrepr)}"
    if collector.path == ROOT / "tests" and (process := getattr(collector.config, "workerinput", None)):
        begin = len(report.result) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
        report.result[:] = report.result[begin:] + report.result[:begin]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All processes of xdist have the same order, wherever each of them began.

    A long run begins with the files whose tests may take longest (`timeout`), so that none is alone at its end.
    """
    seconds: dict[Path, float] = {}
    for item in items if LONG else ():
        marker = item.get_closest_marker("timeout")
        seconds[item.path] = max(seconds.get(item.path, 0.0), 0.0 if marker is None else marker.args[0])
    items.sort(key=lambda item: (-seconds.get(item.path, 0.0), item.nodeid.partition("::")[0]))


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) and len(longrepr) == 3 else str(longrepr)
