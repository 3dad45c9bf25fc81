"""Scenarios by name and by path, `--set` and `--scale`, and what is said about those that are wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from canopy_load.scenario import library
from canopy_load.scenario.library import ScenarioError, builtin, load
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import (
    Churn,
    Cycle,
    Group,
    Part,
    Payload,
    Properties,
    Publish,
    Reading,
    Reply,
    Scenario,
    Stage,
    Subscribe,
    Will,
)
from canopy_load.scenario.toml_text import dumps
from canopy_mqtt.core.queues.queue_terms import QUEUE_OPTION
from tests.support.runs import for_each

ROOT = Path(__file__).resolve().parents[3]
NAMES = [
    *("churn", "connect-storm", "fanin", "fanout", "idle-peers", "mixed-fleet"),
    *("omb-conn", "omb-fanin", "omb-fanout", "omb-p2p", "slow-readers", "unicast", "wildcards"),
]

PLAIN = """
name = "plain"

[[stages]]
name = "steady"
seconds = 1

[[groups]]
name = "subscribers"
clients = 2
subscribe = [{ filter = "a/#" }]

[[groups]]
name = "publishers"
clients = 2
publish = [{ topic = "a/%c", rate = 1 }]
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts a text into `my.toml` of the folder one stands in; its name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Path("my.toml").write_text(text, encoding="utf-8")
        return "my.toml"

    return write


def problems(name: str, *overrides: str, scale: float | None = None) -> list[str]:
    """What is said about a scenario that is none."""
    with pytest.raises(ScenarioError) as caught:
        load(name, overrides, scale)
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert not any("\n" in line for line in caught.value.problems)
    return list(caught.value.problems)


def problem(name: str, *overrides: str, scale: float | None = None) -> str:
    """The same, where one line is said."""
    (line,) = problems(name, *overrides, scale=scale)
    return line


# --- the built-in ones --------------------------------------------------------------------------------------------


def test_every_builtin_scenario_is_there_with_its_description() -> None:
    found = builtin()
    assert [name for name, _ in found] == NAMES
    assert all(20 < len(description) < 120 for _, description in found)


def test_what_is_found_is_the_copy_of_the_package_or_the_tree_and_both_are_the_same() -> None:
    installed = Path(library.__file__).resolve().parent / "scenarios"
    assert library.folder() == (installed if installed.is_dir() else ROOT / "config" / "load")
    for name in NAMES:
        assert load(name)[1] == (ROOT / "config" / "load" / f"{name}.toml").read_text(encoding="utf-8")
    assert len(list((ROOT / "config" / "load").iterdir())) == len(NAMES)


@for_each("name", NAMES)
def test_a_builtin_scenario_validates_expands_and_is_explained(name: str) -> None:
    scenario, text = load(name)
    assert scenario.name == name
    assert text.startswith("# ")
    assert "\n# To change: " in text
    measured = sum(stage.seconds for stage in scenario.stages if stage.measured)
    assert 10 <= measured <= 20
    plan = Plan(scenario, "12345678")
    for number in range(len(scenario.groups)):
        assert plan.client_id(number, 0)
    # A laptop bears it: so many open files on either side, and so many messages a second where the rate is given.
    assert plan.clients <= 6000
    for group, count in zip(plan.groups, plan.counts, strict=True):
        assert sum((each.rate or 0) * count + (each.total_rate or 0) for each in group.publish) <= 5000


@for_each("name", NAMES)
def test_what_a_builtin_scenario_says_to_change_can_be_changed(name: str) -> None:
    comment = load(name)[1].partition("\nname = ")[0].replace("\n# ", " ")
    for key in re.findall(r"(?:groups|stages)\.[\w.-]*\w", comment):
        assert load(name, [f"{key}=20"])[1] != load(name)[1]


@for_each("name", NAMES)
def test_a_builtin_scenario_is_played_small_by_scale(name: str) -> None:
    scenario, _ = load(name, scale=0.0001)
    assert Plan(scenario, "12345678").clients <= 150
    assert scenario.scale == 0.0001


def test_the_open_benchmark_has_its_published_figures_at_scale_1() -> None:
    plans = {name: Plan(load(name, scale=1)[0], "12345678") for name in NAMES if name.startswith("omb-")}
    assert {name: plan.counts for name, plan in plans.items()} == {
        "omb-conn": [1_000_000],
        "omb-fanin": [500, 50_000],
        "omb-fanout": [1000, 5],
        "omb-p2p": [50_000, 50_000],
    }
    assert plans["omb-conn"].groups[0].connect_rate == 5000
    for name, rate, version in (("omb-fanin", 1, "5.0"), ("omb-fanout", 50, "3.1.1"), ("omb-p2p", 1, "3.1.1")):
        subscribers, publishers = plans[name].groups
        (publish,) = publishers.publish
        (subscribe,) = subscribers.subscribe
        assert (publish.rate, publish.qos, publish.payload.size, publish.retain) == (rate, 1, 16, False)
        assert subscribe.qos == 1
        assert {group.version for group in plans[name].groups} == {version}
        assert {group.keep_alive for group in plans[name].groups} == {300}
    assert plans["omb-fanout"].groups[0].subscribe[0].filters == 5
    assert plans["omb-fanin"].groups[0].subscribe[0].filter.startswith("$share/benchmark/test/")


def test_pairs_are_paired_by_the_number_of_the_client() -> None:
    """Clients of one number are played by one process, which is where credits of a closed loop come back."""
    for name in ("unicast", "omb-p2p", "churn", "idle-peers", "connect-storm"):
        plan = Plan(load(name)[0], "12345678")
        numbers = {group.name: number for number, group in enumerate(plan.groups)}
        entry = plan.published[numbers["publishers"]][0]
        for client in (0, 1, 7):
            ((filter_, _, _),) = plan.topic_filters(numbers["subscribers"], client)
            assert plan.topic(entry.stream(client, 0)) == filter_


def test_an_install_without_scenarios_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INSTALLED", tmp_path)
    assert library.folder() == tmp_path
    with pytest.raises(ScenarioError, match="the built-in scenarios are missing; install Canopy again"):
        builtin()


# --- by name and by path ------------------------------------------------------------------------------------------


def test_a_file_is_what_has_a_slash_or_the_suffix(write: Write) -> None:
    scenario, text = load(write(PLAIN))
    assert scenario.name == "plain"
    assert text == PLAIN
    assert load("./my.toml")[0] == scenario
    Path("my").write_text(PLAIN)
    assert load("./my")[0] == scenario
    assert problem("my") == "my: no such built-in scenario; for the file of that name, write ./my"


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list() -> None:
    listed = ", ".join(NAMES)
    assert problem("fan-out") == (
        f"fan-out: no such scenario; did you mean fanout? There are {listed}; for a file, give its path"
    )
    assert problem("xyzzy") == f"xyzzy: no such scenario; there are {listed}; for a file, give its path"
    assert problem("").startswith("an empty name: no such scenario; there are ")


def test_a_file_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    assert problem("nothing.toml") == "nothing.toml: cannot be read: No such file or directory"
    assert problem("fanout.toml").endswith("No such file or directory; the built-in scenario is called fanout")
    assert problem(f"{tmp_path}/") == f"{tmp_path}: cannot be read: Is a directory"
    name = write(PLAIN)
    Path(name).write_bytes(b"name = '\xff'")
    assert problem(name) == "my.toml: not a file of UTF-8 text (byte 8)"
    assert problem("a\0b.toml") == "a\\x00b.toml: not a file of UTF-8 text"


def test_a_fault_of_syntax_has_line_and_column(write: Write) -> None:
    line = problem(write('name = "x"\nstages [1]\n'))
    assert line.startswith("my.toml: not valid TOML: ")
    assert "line 2, column 8" in line
    for text in ("[" * 5000, "9" * 5000):
        assert problem(write(f"a = {text}")).startswith("my.toml: not ")


# --- what is said about faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (", rate = 1", "", "groups.publishers.publish.0: needs one of rate, total_rate and in_flight, has none"),
        (", rate", ", ratte", "groups.publishers.publish.0.ratte: no such key; did you mean rate?"),
        (
            'name = "publishers"',
            'name = "publishers"\nrate = 5',
            f"groups.publishers.rate: no such key; known are {', '.join(Group.model_fields)}",
        ),
        (
            "seconds = 1",
            "seconds = 1\nxyzzy = 1",
            "stages.steady.xyzzy: no such key; known are name, seconds, load, to, measured",
        ),
        ("seconds = 1", "", "stages.steady.seconds: is missing"),
        ('name = "steady"', "", "stages.0.name: is missing"),
        ('name = "plain"', "", "name: is missing"),
        ("seconds = 1", "seconds = 0", "stages.steady.seconds: found 0; it should be greater than 0"),
        (
            "clients = 2\nsub",
            'clients = "2"\nsub',
            'groups.subscribers.clients: found "2"; it should be a valid integer',
        ),
        ("seconds = 1", "seconds = inf", "stages.steady.seconds: found inf; it should be a finite number"),
        (
            'name = "subscribers"',
            'name = "Subscribers"',
            'groups.Subscribers.name: found "Subscribers"; allowed: a-z, 0-9, _ and -, no sign first',
        ),
        (
            'name = "subscribers"',
            'name = "subscribers"\nversion = "4"',
            "groups.subscribers.version: found \"4\"; it should be '3.1.1' or '5.0'",
        ),
        ("[[stages]]", "[stages]", "stages: found a table; write [[stages]], since there may be several"),
        (
            "publish = [{ topic = 'a/%c', rate = 1 }]".replace("'", '"'),
            'publish = { topic = "a", rate = 1 }',
            "groups.publishers.publish: found a table; write [[groups.publish]], since there may be several",
        ),
        ("rate = 1", "rate = 1, payload = 64", "groups.publishers.publish.0.payload: found 64; it should be a table"),
        (
            "rate = 1",
            "rate = 1, payload = { between = [30, 20] }",
            "groups.publishers.publish.0.payload: between: the first size is above the second",
        ),
        ("rate = 1", 'rate = 1, stages = ["begin"]', "groups.publishers: there is no stage 'begin', only steady"),
        ('name = "subscribers"', 'name = "publishers"', "groups: 'publishers' stands there twice"),
        ('"plain"', "2024-01-01", "there is a date or a time, and no key takes one: write it in quotes"),
        ("a/%c", "a/%x", "groups.publishers.publish.0.topic: 'a/%x': unknown pattern at '%x'"),
        ('"steady"', '"a.b"\nto = -1', 'stages."a.b".to: found -1; it should be greater than or equal to 0'),
        ('"steady"', '"a\\nb"\nto = -1', 'stages."a\\nb".to: found -1; it should be greater than or equal to 0'),
    ],
)
def test_each_fault_has_its_place_and_its_remedy(old: str, new: str, line: str, write: Write) -> None:
    assert PLAIN.count(old) == 1
    assert problem(write(PLAIN.replace(old, new))) == f"my.toml: {line}"


def test_a_template_is_held_against_the_patterns(write: Write) -> None:
    text = PLAIN.replace("rate = 1", "rate = 1, payload = { template = '%m 40 % full' }")
    assert problem(write(text)) == (
        "my.toml: groups.publishers.publish.0.payload.template: '%m 40 % full': unknown pattern at '% full';"
        " a percent sign is written %%"
    )


def test_every_fault_is_told_at_once_and_long_values_are_cut(write: Write) -> None:
    text = PLAIN.replace("seconds = 1", "seconds = -1").replace("rate = 1", f'rate = "{"x" * 500}"')
    first, second = problems(write(text))
    assert "stages.steady.seconds" in first
    assert "groups.publishers.publish.0.rate" in second
    assert len(second) < 250


def test_a_scenario_that_validates_and_cannot_be_played(write: Write) -> None:
    text = PLAIN.replace('name = "publishers"', 'name = "publishers"\nclient_id = "x"')
    assert problem(write(text)).startswith("my.toml: groups.publishers.client_id: needs %c")


# --- changes ------------------------------------------------------------------------------------------------------


def test_overrides_change_what_they_name_and_later_ones_win(write: Write) -> None:
    scenario, text = load(
        write(PLAIN),
        [
            "groups.publishers.clients=10",
            "groups.publishers.publish.0.rate=5",
            "groups.1.publish.0.payload={size=100}",
            "stages.steady.seconds=3",
            "stages.steady.seconds = 2.5",
            "description=a plain one",
            'groups.subscribers.subscribe.0.user.canopy-queue = "latest"',
            "groups.subscribers.will={topic='gone/%c', qos=1}",
            "groups.publishers.publish.0.properties.text=true",
            "scale=0.5",
        ],
    )
    subscribers, publishers = scenario.groups
    assert publishers.clients == 10
    assert publishers.publish[0].rate == 5
    assert publishers.publish[0].payload == Payload(size=100)
    assert publishers.publish[0].properties.text
    assert scenario.stages[0].seconds == 2.5
    assert scenario.description == "a plain one"
    assert subscribers.subscribe[0].user == {"canopy-queue": "latest"}
    assert subscribers.will is not None
    assert subscribers.will.topic == "gone/%c"
    assert scenario.scale == 0.5
    # The text is what is played.
    assert Scenario.model_validate(tomllib.loads(text)) == scenario
    assert text.startswith("# my.toml with --set groups.publishers.clients=10 --set ")
    Path("again.toml").write_text(text)
    assert load("again.toml")[0] == scenario


def test_the_scale_on_its_own_wins_over_all(write: Write) -> None:
    scenario, text = load(write(PLAIN), ["scale=0.5"], 4)
    assert scenario.scale == 4
    assert tomllib.loads(text)["scale"] == 4
    assert problem("my.toml", scale=5000) == (
        "--scale 5000: scale: found 5000; it should be less than or equal to 1000"
    )
    assert problem("my.toml", scale=float("nan")).startswith("--scale nan: scale: found nan; it should be ")


def test_of_keys_that_exclude_each_other_the_one_set_stays(write: Write) -> None:
    scenario, _ = load("unicast", ["groups.publishers.publish.0.rate=5"])
    assert (scenario.groups[1].publish[0].rate, scenario.groups[1].publish[0].in_flight) == (5, None)
    scenario, _ = load("slow-readers", ["groups.publisher.publish.0.payload.between=[16, 32]"])
    assert scenario.groups[3].publish[0].payload.between == (16, 32)
    scenario, _ = load("slow-readers", [f"groups.publisher.publish.0.payload.sizes.{size}=1" for size in (16, 32)])
    assert scenario.groups[3].publish[0].payload.sizes == {"16": 1, "32": 1}
    scenario, _ = load("slow-readers", ["groups.slow.reading.freeze_after=0"])
    assert scenario.groups[1].reading is not None
    assert scenario.groups[1].reading.rate is None
    both = ["groups.publishers.publish.0.rate=5", "groups.publishers.publish.0.in_flight=5"]
    assert problem(write(PLAIN), *both) == (
        f"my.toml with --set {both[0]} --set {both[1]}: groups.publishers.publish.0: needs one of rate, total_rate and"
        " in_flight, has rate and in_flight"
    )


@pytest.mark.parametrize(
    ("override", "rest"),
    [
        ("scale", "allowed: KEY=VALUE, like --set stages.steady.seconds=30"),
        ("=1", "allowed: KEY=VALUE, like --set stages.steady.seconds=30"),
        ("a..b=1", "allowed: KEY=VALUE, like --set stages.steady.seconds=30"),
        ("stages.stead.seconds=1", "stages: there is no stead; did you mean steady? There are steady"),
        ("stages.9.seconds=1", "stages: there is no 9; there are steady"),
        (
            "groups.publishers.publish.1.rate=1",
            "groups.publishers.publish: there is no 1, it has 1 entry, counted from 0",
        ),
        ("name.first=1", 'name is "plain"; nothing stands in it'),
        ("name=\udcff", "not UTF-8 text"),
    ],
)
def test_an_override_that_names_nothing_says_what_there_is(override: str, rest: str, write: Write) -> None:
    shown = override.encode("ascii", "backslashreplace").decode()
    assert problem(write(PLAIN), override) == f"--set {shown}: {rest}"


@pytest.mark.parametrize(
    ("override", "rest"),
    [
        ("stage.steady.seconds=1", "stage: no such key; did you mean stages?"),
        (
            "groups.subscribers.publish.0.rate=1",
            "groups.subscribers.publish: found a table; write [[groups.publish]], since there may be several",
        ),
        ("groups.publishers.publish.0.rat=1", "groups.publishers.publish.0.rat: no such key; did you mean rate?"),
        ("seed.first=1", "seed: found a table; it should be a valid integer"),
    ],
)
def test_an_override_of_an_unknown_key_is_told_as_in_a_file(override: str, rest: str, write: Write) -> None:
    assert problem(write(PLAIN), override).endswith(f"--set {override}: {rest}")


def test_a_wrong_value_is_laid_to_the_flag_that_brought_it(write: Write) -> None:
    name = write(PLAIN)
    assert problem(name, "groups.publishers.clients=many") == (
        '--set groups.publishers.clients=many: groups.publishers.clients: found "many"; it should be a valid integer'
    )
    assert problem(name, "groups.publishers.will.qos=1") == (
        "my.toml with --set groups.publishers.will.qos=1: groups.publishers.will.topic: is missing"
    )
    assert problem(name, "groups.publishers.client_id=x").startswith(
        "my.toml with --set groups.publishers.client_id=x: groups.publishers.client_id: needs %c"
    )
    assert len(problems(name, "x=1", "y=2")) == 2


def test_a_name_with_a_dot_stands_in_quotes(write: Write) -> None:
    scenario, _ = load(write(PLAIN.replace('"steady"', '"a.b"')), ['stages."a.b".seconds=7'])
    assert scenario.stages[0].seconds == 7


# --- as text ------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read_back_the_same(data: dict[str, object]) -> None:
    assert tomllib.loads(dumps(data)) == data


# --- the guide ----------------------------------------------------------------------------------------------------

GUIDE = (ROOT / "docs" / "load.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "The scenario": Scenario,
    "`[[stages]]`": Stage,
    "`[[groups]]`": Group,
    "`[[groups.publish]]`": Publish,
    "`payload`": Payload,
    "`properties`": Properties,
    "`[[groups.subscribe]]`": Subscribe,
    "`reply`": Reply,
    "`will`": Will,
    "`churn`": Churn,
    "`cycle`": Cycle,
    "`reading`": Reading,
}


def _body(section: str) -> str:
    return GUIDE.partition(f"\n### {section}\n")[2].partition("\n#")[0]


def rows(section: str) -> dict[str, str]:
    """Key and default of each row of a section's table."""
    found = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", _body(section), re.MULTILINE)
    assert len(found) == len(dict(found)), section
    return dict(found)


def test_the_guide_knows_every_part_of_the_schema() -> None:
    assert set(SECTIONS.values()) == set(Part.__subclasses__())


@for_each("section", SECTIONS)
def test_the_guide_has_every_key_with_its_default(section: str) -> None:
    model = SECTIONS[section]
    found = rows(section)
    assert list(found) == list(model.model_fields)
    for key, field in model.model_fields.items():
        if field.is_required() or field.default is None:
            assert found[key] == "–", key
            continue
        default = field.default
        if isinstance(default, Part):
            default = default.model_dump(exclude_unset=True)
        assert tomllib.loads(f"value = {found[key].strip('`')}")["value"] == default, key


def test_the_guide_says_what_is_required() -> None:
    for section, model in SECTIONS.items():
        for key, field in model.model_fields.items():
            (line,) = re.findall(rf"^\| `{key}` \| .+$", _body(section), re.MULTILINE)
            assert ("Required" in line) == field.is_required(), (section, key)


def test_the_guide_names_every_builtin_scenario_and_its_example_is_one(tmp_path: Path) -> None:
    assert all(f"`{name}`" in GUIDE for name in NAMES)
    (example,) = [each for each in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL) if 'name = "doors"' in each]
    path = tmp_path / "doors.toml"
    path.write_text(example)
    assert load(str(path))[0].name == "doors"


def test_the_user_property_that_the_guide_names_is_the_brokers() -> None:
    assert f"`{QUEUE_OPTION}`" in GUIDE


def test_a_byte_order_mark_means_nothing(tmp_path: Path) -> None:
    """Editors of Windows write it in front of UTF-8."""
    file = tmp_path / "plain.toml"
    file.write_bytes(b"\xef\xbb\xbf" + PLAIN.encode())
    assert load(str(file))[0].name == "plain"
