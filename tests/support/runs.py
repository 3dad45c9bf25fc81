"""How much of a test runs: `make test` takes part of the examples of a property, `make test-long` all of them.

`CANOPY_LONG=1` asks for all. A test that is too long for `make test` altogether bears the marker `long`. Tests that
kill a broker again and again try one seed and few kills, and all of them in `make crash` (`CANOPY_CRASH=1`).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any, Final

from _pytest.mark import ParameterSet

LONG: Final = os.environ.get("CANOPY_LONG", "") not in ("", "0")
CRASH: Final = os.environ.get("CANOPY_CRASH", "") not in ("", "0")
MEASURED: Final = "COVERAGE_PROCESS_START" in os.environ
"""True if this run measures the coverage: few examples run the same lines as many, and each costs three times as
much."""
SHARE: Final = 20 if MEASURED else 10
"""`make test` tries one in so many of the examples."""
FEWEST: Final = 5 if MEASURED else 15
"""Examples that a property is tried with at least; one that asks for fewer gets what it asks for."""


def examples(thorough: int) -> int:
    """How many examples of a property to try in this run; `thorough`: how many `make test-long` tries."""
    return thorough if LONG else min(thorough, max(FEWEST, thorough // SHARE))


def times(thorough: int, otherwise: int = 2) -> int:
    """Return how often a test kills what it tests: `thorough` times in `make crash`, and `otherwise` in other runs."""
    return thorough if CRASH else otherwise


def seeds(thorough: int) -> range:
    """Return the seeds of a test that kills what it tests: `thorough` of them in `make crash`, one in other runs."""
    return range(thorough if CRASH else 1)


Test = Callable[..., Any]
Names = Callable[[Any], object] | Iterable[object]


def for_each(names: str | tuple[str, ...], cases: Iterable[Any], *, ids: Names = ()) -> Callable[[Test], Test]:
    """Run a test for every case, as one test: of a test for each (`parametrize`) pytest alone takes 10 ms.

    The traceback of a failure names its case (by `ids` as of `parametrize`, if given). Fixtures are the same for all
    cases, but for pytest's own: each case has an empty `tmp_path`, what it patched is as before after it, and it sees
    no output or log of another one.
    """
    called = (names,) if isinstance(names, str) else names
    together = [_case(case, called, id_) for case, id_ in zip_longest(cases, () if callable(ids) else ids)]
    assert together, "a table without cases would test nothing"
    if callable(ids):
        together = [("-".join(str(ids(value)) for value in case.values()), case) for _, case in together]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in called]

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def every(*arguments: Any, **others: Any) -> None:
                for number, (name, case) in enumerate(together):
                    with _own(number, name, others) as own:
                        await test(*arguments, **own, **case)

        else:

            @functools.wraps(test)
            def every(*arguments: Any, **others: Any) -> None:
                for number, (name, case) in enumerate(together):
                    with _own(number, name, others) as own:
                        test(*arguments, **own, **case)

        every.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return every

    return decorate


def _case(case: Any, called: tuple[str, ...], id_: object) -> tuple[str, dict[str, Any]]:
    """Return the name of a case, which may be a `pytest.param`, and its arguments."""
    if isinstance(case, ParameterSet):
        assert not case.marks, "a case of for_each has no marks"
        return f"{case.id or id_}", dict(zip(called, case.values, strict=True))
    values = case if len(called) > 1 else (case,)
    return f"{called} = {case}" if id_ is None else str(id_), dict(zip(called, values, strict=True))


@contextmanager
def _own(number: int, name: str, fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fixtures of one case, and add its number and name to what it raises."""
    own = dict(fixtures)
    with ExitStack() as stack:
        if "tmp_path" in own:
            own["tmp_path"] /= str(number)
            own["tmp_path"].mkdir()
        if "monkeypatch" in own:
            own["monkeypatch"] = stack.enter_context(own["monkeypatch"].context())
        if "capsys" in own:
            own["capsys"].readouterr()
        if "caplog" in own:
            own["caplog"].clear()
        try:
            yield own
        except BaseException as error:
            error.add_note(f"case {number}: {name}")
            raise
