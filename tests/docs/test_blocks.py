"""Every block of code of the pages is run or checked: what a language's blocks have to be, and who runs them.

`test_examples.py` runs the `console` and `sh` blocks, but for those that `stages.py` lists with a reason. Blocks of a
language or a page that nobody knows fail here.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from canopy_load.scenario.library import ScenarioError, made
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.tables.mapping import load as load_mapping
from tests.docs.blocks import BLOCKS, PAGES, ROOT, Block, blocks, commands, inline, refused
from tests.support.runs import for_each

TARGETS: Final = {
    target
    for rule in re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in rule.split()
}

RUN_BY: Final = {
    "README": "tests/docs/test_blocks.py",
    "embedding": "tests/docs/test_embedding.py",
    "hooks": "tests/hooks/test_page.py",
    "pipeline": "tests/pipeline/test_first_query.py",
    "recorder": "tests/pipeline/record/test_snippets.py",
    "security-tokens": "tests/security/test_tokens_page.py",
    "tables": "tests/pipeline/tables/test_page.py",
    "testing": "tests/testing/test_page.py",
    "tutorial": "tests/docs/test_examples.py",
}
"""The test that runs the Python of a page."""

ONLY_PARSED: Final = {
    "pipeline-mqtt": "parts of programs for Spark; tests/pipeline/mqtt runs the source and the sink",
}
"""Pages whose Python cannot run as it stands, and why."""

OTHER_TOML: Final = {"benchmarks-pipeline": "scenarios", "load": "scenarios", "tables": "mappings"}
"""Pages whose TOML is no settings of a broker."""

COMMANDS_IN_TEXT: Final = re.compile(r"^\$? ?(canopy|make|mosquitto_\w+|docker|pip|python3?|sudo) [a-z-]", re.MULTILINE)


def of(*languages: str) -> Callable[[Any], Any]:
    """A parameter `block`: each block of these languages."""
    found = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=str)


def scenario(block: Block) -> None:
    """Raise ScenarioError unless it is a scenario, or a part of one that the page's whole one can have in its place."""
    whole = next(each for each in BLOCKS if each.page == block.page and each.text.startswith("name = "))
    made(str(block), {**tomllib.loads(whole.text), **tomllib.loads(block.text)})


def structure(block: Block) -> None:
    """nginx: each line opens, closes or ends a directive, and what is opened is closed."""
    depth = 0
    for line in (re.sub(r"#.*", "", each).strip() for each in block.text.splitlines()):
        assert not line or line[-1] in "{};", f"{block}: {line}"
        depth += line.count("{") - line.count("}")
        assert depth >= 0, str(block)
    assert depth == 0, str(block)


def haproxy(block: Block, folder: Path) -> None:
    """haproxy takes it."""
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    (folder / "haproxy.cfg").write_text(block.text)
    done = subprocess.run(["haproxy", "-c", "-q", "-f", folder / "haproxy.cfg"], capture_output=True, text=True)
    assert "[ALERT]" not in done.stderr, done.stderr


def javascript(block: Block, folder: Path) -> None:
    """node takes it."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    (folder / "block.mjs").write_text(block.text)
    subprocess.run(["node", "--check", folder / "block.mjs"], check=True)


PARSERS: Final[dict[str, Callable[[Block, Path], Any]]] = {
    "js": javascript,
    "haproxy": haproxy,
    "json": lambda block, _: json.loads(block.text),
    "nginx": lambda block, _: structure(block),
    "sql": lambda block, _: duckdb.extract_statements(block.text),
}
"""What the blocks of a language are parsed by, where nothing runs them."""


def test_every_block_has_a_language_that_is_checked() -> None:
    known = {"console", "sh", "python", "toml", "text", *PARSERS}
    assert [f"{block} {block.language}" for block in BLOCKS if block.language not in known] == []


def test_no_command_hides_in_a_block_of_text() -> None:
    assert [str(block) for block in BLOCKS if block.language == "text" and COMMANDS_IN_TEXT.search(block.text)] == []


@of(*PARSERS)
def test_a_block_can_be_parsed(block: Block, tmp_path: Path) -> None:
    PARSERS[block.language](block, tmp_path)


# ------------------------------------------------------------------------------------------------------------ commands


@of("sh")
def test_the_commands_are_those_of_the_programs(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for words in commands(block.text):
        match words:
            case ["canopy", *rest]:
                assert refused(rest) == "", words
            case ["make", target, *_]:
                assert target in TARGETS, words
            case [name, *rest] if name.endswith("python") and "-m" in rest:
                assert importlib.util.find_spec(rest[rest.index("-m") + 1]) is not None, words


@for_each("page", PAGES)
def test_commands_in_sentences_are_those_of_canopy(page: str) -> None:
    for code in inline(PAGES[page]):
        if re.match(r"canopy [a-z-]", code):
            # `pub|sub` are two commands.
            for chosen in (0, -1):
                words = [word if " " in word else word.split("|")[chosen] for word in shlex.split(code)[1:]]
                assert refused(words, whole=False) == "", code
        elif found := re.match(r"make ([a-z-]+)", code):
            assert found[1] in TARGETS, code


def test_what_canopy_would_refuse_is_found() -> None:
    assert refused(["serve", "--prot", "1883"]) == "No such option: --prot"
    assert "No such command 'explian'" in refused(["ctl", "explian", "a"])
    assert refused(["record", "cat"]) == "Missing parameter: directory"
    assert refused(["record", "cat"], whole=False) == ""
    assert "integer" in refused(["serve", "--port", "none"])
    assert refused(["ctl", "status", "more"]) == "too much: ['more']"
    assert list(commands("a=1 b 'c d' \\\n  >e | f # g\n(h; i)")) == [["b", "c d"], ["f"], ["h"], ["i"]]
    assert [block.language for block in blocks("p", "```sh\na\n```\n\n    b\n")] == ["sh", ""]


# -------------------------------------------------------------------------------------------------------------- Python


@of("python")
def test_somebody_runs_the_python_or_it_is_listed(block: Block) -> None:
    # As it stands there: no `await` outside of a function.
    compile(block.text, str(block), "exec")
    if block.page in ONLY_PARSED:
        return
    assert block.page in RUN_BY, f"{block}: run it in a test, or say in ONLY_PARSED why it cannot run"
    assert block.page in (ROOT / RUN_BY[block.page]).read_text(encoding="utf-8")


def test_the_program_of_the_first_page_prints_a_message() -> None:
    """As it stands there, in a process of its own; it goes on until Ctrl-C."""
    [block] = [each for each in BLOCKS if (each.page, each.language) == ("README", "python")]
    with subprocess.Popen(
        [sys.executable, "-P", "-u", "-c", block.text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "site/7/temperature b'21.5'\n"
        finally:
            program.kill()


# ---------------------------------------------------------------------------------------------------------------- TOML


@of("toml")
def test_toml_is_what_the_page_is_about(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "block.toml"
    file.write_text(block.text)
    match OTHER_TOML.get(block.page):
        case "scenarios":
            scenario(block)
        case "mappings":
            load_mapping(str(file))
        case _:
            load_settings(file, environ={})


def test_toml_that_is_wrong_is_found(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        test_toml_is_what_the_page_is_about(Block("rules", 1, "toml", "[mqtt]\nmax_qs = 1\n"), tmp_path)
    with pytest.raises(ScenarioError):
        test_toml_is_what_the_page_is_about(Block("load", 1, "toml", "[thresholds]\np98 = '< 1s'\n"), tmp_path)
    with pytest.raises(MisuseError):
        test_toml_is_what_the_page_is_about(Block("tables", 1, "toml", "[tables.a]\nfilter = 'a'\n"), tmp_path)
