"""Small faults put into the source one after the other, to see whether a test notices each.

    python -P -m tools.mutants pick --seed 31 --count 60 mutants.jsonl     # choose places, write one line for each
    python -P -m tools.mutants run mutants.jsonl results.jsonl             # which tests fail because of them?
    python -P -m tools.mutants run mutants.jsonl after.jsonl --before results.jsonl

A mutant changes one expression or statement of one function. `run` works in a copy of the tree and interprets it. A
mutant is `killed` by the first test that fails, `survived` when none does within `--seconds`, `gone` without its text.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# A mutant is named by file, function, old text and how often that text stands before it in the function, so that it is
# found again in a later tree. Its tests are chosen by where they stand and what they import, nearest first: those named
# like the module, those of its folder, those that import it, those of its room, and the room's end-to-end tests. With
# `--before`, the test that killed it there is tried first.

ROOT: Final = Path(__file__).resolve().parent.parent
ROOMS: Final = ("broker", "loadtest", "pipeline")
OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
UNSEEN: Final = ("TYPE_CHECKING", "log.", "logger.", "self._log.", "cast(")
PYTEST: Final = ("-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-m", "not long")
NO_TESTS: Final = 5  # pytest's exit code when it found none


def changes(node: ast.AST) -> str | None:
    """The text that `node` becomes, or None where this tool changes nothing."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            return ast.unparse(ast.Compare(node.left, [OPPOSITE[type(op)]()], node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return f"({ast.unparse(ast.BoolOp(other, node.values))})"
        case ast.Constant(value=bool() as value):
            return str(not value)
        case ast.Constant(value=int() as value):
            return str(value + 1)
        case ast.UnaryOp(op=ast.Not()):
            return f"({ast.unparse(node.operand)})"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute()]):
            return "pass"
    return None


def places(source: str) -> Iterator[dict[str, Any]]:
    """Each possible change in the functions of `source`, with the position of its text in bytes."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    data = source.encode()

    def inside(node: ast.AST, function: str, seen: dict[str, int]) -> Iterator[dict[str, Any]]:
        for part, field in ast.iter_fields(node):
            if part in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue
            for child in field if isinstance(field, list) else [field]:
                if not isinstance(child, ast.AST):
                    continue
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    yield from inside(child, f"{function}.{child.name}".lstrip("."), {})
                    continue
                new = changes(child) if function else None
                if new is not None:
                    start = lines[child.lineno - 1] + child.col_offset  # type: ignore[attr-defined]
                    end = lines[child.end_lineno - 1] + child.end_col_offset  # type: ignore[attr-defined]
                    old = data[start:end].decode()
                    seen[old] = seen.get(old, -1) + 1
                    # An object without its attributes says nothing of the tests.
                    made = isinstance(child, ast.Assign) and function.endswith("__init__")
                    if not made and not any(word in old for word in UNSEEN):
                        line: int = child.lineno  # type: ignore[attr-defined]
                        place = {"line": line, "function": function, "old": old, "nth": seen[old], "new": new}
                        yield {**place, "at": [start, end]}
                if not isinstance(child, ast.JoinedStr):
                    yield from inside(child, function, seen)

    yield from inside(ast.parse(source), "", {})


def pick(tree: Path, seed: int, count: int, leave_out: list[str]) -> list[dict[str, Any]]:
    """`count` places by chance, at most one in a function; the same for the same seed and source."""
    chosen: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []
    for path in sorted(path for room in ROOMS for path in (tree / room).rglob("*.py")):
        file = str(path.relative_to(tree))
        if not any(file.startswith(left) for left in leave_out):
            every += [{"file": file, **place} for place in places(path.read_text())]
    functions = set()
    for place in random.Random(seed).sample(every, len(every)):
        key = (place["file"], place["function"])
        if key not in functions and len(chosen) < count:
            functions.add(key)
            chosen.append({word: value for word, value in place.items() if word != "at"})
    return chosen


def name(mutant: dict[str, Any]) -> tuple[Any, ...]:
    """What a mutant is found by in every tree."""
    return tuple(mutant[part] for part in ("file", "function", "old", "nth"))


def apply(tree: Path, mutant: dict[str, Any]) -> bool:
    """Change the file in `tree`; False where the text of the mutant is no longer there."""
    path = tree / mutant["file"]
    if not path.exists():
        return False
    data = path.read_bytes()
    for place in places(data.decode()):
        if name({**place, "file": mutant["file"]}) == name(mutant):
            start, end = place["at"]
            path.write_bytes(data[:start] + mutant["new"].encode() + data[end:])
            return True
    return False


def chosen_tests(tree: Path, file: str) -> list[list[str]]:
    """The test files for a source file in groups, nearest first; no file twice."""
    parts = Path(file).with_suffix("").parts
    inner = parts[1:] if parts[0] == "broker" else parts
    room, stem = inner[0], inner[-1]
    every = sorted((tree / "tests").rglob("test_*.py"))
    text = {path: path.read_text() for path in every}
    module = ".".join(parts)
    named = (f"from {module} import", f"import {module}\n", f"from {'.'.join(parts[:-1])} import {stem}")
    folder = tree / "tests" / Path(*inner[:-1])
    beside = tree / "tests" / room
    above = tree / "tests" / "e2e" / ("conformance" if room == "core" else room)
    groups = [
        [path for path in every if path.is_relative_to(beside) and path.stem == f"test_{stem}"],
        [path for path in every if any(words in text[path] for words in named) and path.is_relative_to(beside)],
        [path for path in every if path.parent == folder],
        [path for path in every if any(words in text[path] for words in named)],
        [path for path in every if path.is_relative_to(beside)],
        [path for path in every if path.is_relative_to(above)],
    ]
    taken: set[Path] = set()
    found = []
    for group in groups:
        fresh = sorted((path for path in group if path not in taken), key=lambda path: len(text[path]))
        taken.update(fresh)
        found.append([str(path.relative_to(tree)) for path in fresh])
    return [group for group in found if group]


def tests(tree: Path, what: list[str], until: float) -> tuple[str | None, float]:
    """Run tests in `tree` until one fails, or none may begin any more: the test that failed, the processor time."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": ".", "PYTHONSAFEPATH": "1", "CANOPY_EXPECT": "interpreted", "CI": "true"}
    environment |= {"CANOPY_UNTIL": str(until), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *PYTEST, *what]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = now.ru_utime + now.ru_stime - began.ru_utime - began.ru_stime
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not failed and done.returncode not in (0, NO_TESTS):
        failed = [f"FAILED {what[0]} {(done.stdout + done.stderr)[-200:]}"]  # the tests did not even begin
    return (failed[0].split(maxsplit=1)[1] if failed else None), spent


def judge(tree: Path, mutant: dict[str, Any], seconds: float, before: str | None) -> dict[str, Any]:
    """Whether tests notice `mutant`, which is in `tree`; `before` is the test that noticed it in another tree."""
    until, spent, left = time.time() + seconds, 0.0, False
    groups = chosen_tests(tree, mutant["file"])
    if before is not None and (tree / before.split("::", maxsplit=1)[0]).exists():
        groups.insert(0, [before])
    for group in groups:
        left = time.time() > until
        if left:
            break
        killer, more = tests(tree, group, until)
        spent += more
        if killer is not None and not (group == [before] and "not found" in killer):
            return {**mutant, "result": "killed", "by": killer, "seconds": round(spent, 1)}
    return {**mutant, "result": "survived", "all": not left and time.time() < until, "seconds": round(spent, 1)}


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON objects; none where there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(tree: Path, mutants: Path, results: Path, before: Path | None, seconds: float) -> None:
    """Judge each mutant that `results` has no line for yet, in a copy of `tree`."""
    done = {name(line) for line in read(results)}
    killers = {name(line): line.get("by") for line in (read(before) if before else [])}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        leave_out = shutil.ignore_patterns(".git", ".venv", "build", "*.so", "__pycache__")
        shutil.copytree(tree, copy, symlinks=True, ignore=leave_out)
        for mutant in read(mutants):
            if name(mutant) in done:
                continue
            if apply(copy, mutant):
                result = judge(copy, mutant, seconds, killers.get(name(mutant)))
                shutil.copyfile(tree / mutant["file"], copy / mutant["file"])
            else:
                result = {**mutant, "result": "gone"}
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            told = (result["result"], mutant["file"], mutant["line"], mutant["old"][:60], "->", mutant["new"][:60])
            print(*told, result.get("by", ""), flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["pick", "run"])
    parser.add_argument("mutants", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--without", action="append", default=[], help="a folder or file to leave out")
    parser.add_argument("--before", type=Path, help="results in another tree")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for one mutant")
    given = parser.parse_args()
    if given.command == "pick":
        lines = pick(given.tree, given.seed, given.count, given.without)
        given.mutants.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif given.results is None:
        parser.error("where to write the results?")
    else:
        run(given.tree, given.mutants, given.results, given.before, given.seconds)


if __name__ == "__main__":
    main()
