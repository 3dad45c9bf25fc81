"""Hostile settings files: every setting with values of wrong types and beyond its bounds, alone and several at a time.

What must hold for every file: it is taken, or refused with one line for each problem, each of which names the file and
a setting, and none of which repeats a secret. Anything else that is raised is a finding.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.descriptions import TABLES, inner_model
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from tests.fuzz.finding import Finding

SECRET: Final = "hunter2-of-the-fuzzer"

VALUES: Final = (
    "true", "false", "0", "1", "-1", "7", "99999999999999999999", "1.5", "-0.0", "1e400", "inf", "nan", '""', '"yes"',
    '"any"', '"a/#"', '"#"', '"\\u0000"', '"\\u202e\\n"', '"mqtt://[::1"', '"mqtts://a:99999"', '"file:///etc/passwd"',
    '"0.0.0.0/33"', "[]", "[[]]", '[""]', "[1]", '["a", 1, true]', '["a", ["b"]]', "{}", "{ a = 1 }", "[{}]",
    '[{ a = 1 }, "b"]', '{ type = "jwt" }', '[{ type = [] }]', '{ url = 5, tls = "yes" }', "1979-05-27T07:32:00Z",
    "07:32:00", "0x7fffffffffffffff",
)  # fmt: skip


def names(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    """Each setting: its table, and its key there. Of a list of tables, those of one of them."""
    for key, field in model.model_fields.items():
        name = f"{above}.{key}" if above else key
        yield above, key
        tables = TABLES.get(name)
        inner: Sequence[type[BaseModel]] = ()
        if isinstance(tables, Mapping):
            inner = list(tables.values())
        elif tables is not None:
            inner = [tables]
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = [field.annotation]
        else:
            try:
                inner = [inner_model(model, key)]
            except (AssertionError, IndexError):
                continue
        for each in inner:
            yield from names(each, name)


SETTINGS: Final = sorted(set(names(Settings)))


def text(chance: random.Random) -> str:
    """One file."""
    tables: dict[str, dict[str, str]] = {}
    for table, key in chance.sample(SETTINGS, chance.choice((1, 1, 1, 2, 5))):
        tables.setdefault(table, {})[key] = chance.choice(VALUES)
    lines = [f"{key} = {value}" for key, value in tables.pop("", {}).items()]
    for table, keys in tables.items():
        root = table.partition(".tls")[0] if table.startswith("listener.") else table
        if root in TABLES:
            lines.append(f"[[{root}]]")
            if chance.random() < 0.5 and root == "authenticator":
                kinds = ("jwt", "http", "password-file", "anonymous", "trust", "reject", "scram")
                lines.append(f'type = "{chance.choice(kinds)}"')
            if chance.random() < 0.2:
                lines.append(f'password = "{SECRET}"')
        if root != table or root not in TABLES:
            lines.append(f"[{table}]")
        lines += [f"{key} = {value}" for key, value in keys.items()]
    return "\n".join(lines)


def check(file: Path, content: str) -> None:
    """Read one file. Raises Finding."""
    file.write_text(content, encoding="utf-8")
    try:
        load_settings(file, environ={})
    except SettingsError as error:
        for problem in error.problems:
            if "\n" in problem or not problem.isprintable() or SECRET in problem:
                raise Finding("a problem that is no clear line", problem=problem, file=content) from error
        if not error.problems:
            raise Finding("a refusal without a reason", file=content) from error
    except Exception as error:
        raise Finding("settings that the broker breaks at", error=repr(error), file=content) from error


def run(seed: int, over: Callable[[], bool]) -> int:
    """Try files until the time is over. How many they were; raises Finding."""
    chance = random.Random(seed)
    count = 0
    with tempfile.TemporaryDirectory(prefix="canopy-fuzz-") as folder:
        file = Path(folder, "canopy.toml")
        while not over():
            check(file, text(chance))
            count += 1
    return count


def each_alone(folder: Path, values: Sequence[str] = VALUES) -> int:
    """Every setting with every one of these values. How many files that were; raises Finding."""
    count = 0
    for table, key in SETTINGS:
        head = ""
        if table:
            root = table.partition(".tls")[0] if table.startswith("listener.") else table
            head = f"[[{root}]]\n" if root in TABLES else f"[{table}]\n"
            if root != table:
                head += f"[{table}]\n"
        for value in values:
            check(folder / "canopy.toml", f"{head}{key} = {value}")
            count += 1
    return count
