"""`[[upstream]]`, `[federation]`, `[presence]`: what they hold, what goes together, and that passwords stay hidden."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from canopy_mqtt.settings import NEVER, Federation, Presence, Remote, Settings, Upstream, parse_upstream
from canopy_mqtt.settings.descriptions import allowed, show
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import changed, load_settings, of_tables
from tests.support.problems import problem_of, unplaced
from tests.support.runs import for_each

CONFIG = Path(__file__).resolve().parents[3] / "config"

NAMED = 'name = "a", url = "mqtt://h"'
SECRET = "hunter2"
URL = "mqtt://HOST[:PORT] or mqtts://HOST[:PORT]"
LIKE_URL = f'{URL}, like "mqtt://broker.example.org"'
FILTERS = 'a list of topic filters, like ["sensors/#"]'
A_FILTER = 'a topic filter, like "sensors/#"'
PREFIX = '"", or whole levels that end in "/", like "site/7/"'


def load(config: Path | None = None, sets: tuple[str, ...] = (), environ: dict[str, str] | None = None) -> Settings:
    return load_settings(config, sets, (), environ or {})


def problems(
    config: Path | None = None, sets: tuple[str, ...] = (), environ: dict[str, str] | None = None
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(config, sets, environ)
    return unplaced(caught.value.problems)


def link(**keys: Any) -> Upstream:
    return Upstream(**{"name": "a", "url": "mqtt://h", **keys})


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "canopy.toml"


class TestModel:
    def test_the_defaults(self) -> None:
        assert Settings().upstream == ()
        made = link()
        assert (made.subscribe, made.aggregate, made.publish) == ("demand", (), ())
        assert made.unfolded == ("canopy/presence/#",)
        assert (made.version, made.session_expiry, made.clean_start) == ("auto", 86_400, True)
        assert (Federation().broker_id, Federation().hop_limit, Presence().topic) == ("", 8, "")

    def test_lists_are_tuples_afterwards_and_links_can_be_hashed(self) -> None:
        made = link(subscribe=["a"], aggregate=["b/#"], roots=["b/#"], unfolded=[], publish=["c"])
        assert (made.subscribe, made.aggregate, made.roots, made.unfolded, made.publish) == (
            ("a",),
            ("b/#",),
            ("b/#",),
            (),
            ("c",),
        )
        assert hash(Settings(upstream=[made])) == hash(Settings(upstream=(made,)))
        assert isinstance(Settings(upstream=[made]).upstream, tuple)

    @for_each(
        ("url", "remote"),
        [
            ("mqtt://h", Remote("h", 1883, False)),
            ("mqtts://h", Remote("h", 8883, True)),
            ("mqtt://10.0.0.1:2883", Remote("10.0.0.1", 2883, False)),
            ("mqtts://[::1]:65535/", Remote("::1", 65_535, True)),
        ],
    )
    def test_where_it_listens(self, url: str, remote: Remote) -> None:
        assert link(url=url).remote == parse_upstream(url) == remote

    def test_the_widest_values_are_allowed(self) -> None:
        made = link(
            name="A_b-" + "9" * 60,
            session_expiry=NEVER,
            keep_alive=65_535,
            max_filters=1,
            hold=0,
            retry_min=60,
            retry_max=60,
            queue_messages=0,
            queue_bytes=0,
            aggregate="auto",
            roots=["#"],
            local_prefix="/",
            remote_prefix="$aws/things/",
        )
        assert (made.aggregate, made.retry_min, made.hold) == ("auto", 60.0, 0.0)
        assert Federation(broker_id="a" * 32, hop_limit=255).hop_limit == 255


class TestMistakes:
    @pytest.mark.parametrize(
        ("keys", "about", "found", "expected"),
        [
            ('name = "a b"', "name", '"a b"', '1 to 64 letters, digits, "_" and "-", like "cloud"'),
            (f'name = "{"a" * 65}"', "name", f'"{"a" * 65}"', '1 to 64 letters, digits, "_" and "-", like "cloud"'),
            ('url = "broker:1883"', "url", '"broker:1883"', URL),
            ('url = "ws://h"', "url", '"ws://h"', URL),
            ('url = "mqtt://[::1"', "url", '"mqtt://[::1"', URL),
            ("url = 5", "url", "5", LIKE_URL),
            ('url = "mqtt://h:0"', "url", '"mqtt://h:0"', f"{URL}, with a port from 1 to 65535"),
            ('url = "mqtt://h/x"', "url", '"mqtt://h/x"', f"{URL}, without path, query or fragment"),
            (
                'url = "mqtt://me@h"',
                "url",
                '"mqtt://***@h"',
                f"{URL}, without a user: username and password are settings of their own",
            ),
            ('cert_file = "c"', "cert_file", '"c"', "only with an mqtts:// url"),
            (
                'url = "mqtts://h", cert_file = "c"',
                "key_file",
                '""',
                "the file of the private key, with cert_file",
            ),
            ('url = "mqtts://h", key_file = "k"', "key_file", '"k"', "only with cert_file"),
            ('version = "3.1"', "version", '"3.1"', '"auto" or "5.0" or "3.1.1"'),
            ("keep_alive = 65536", "keep_alive", "65536", "an integer from 0 to 65535"),
            ("clean_start = 1", "clean_start", "1", "true or false"),
            ('subscribe = "all"', "subscribe", '"all"', f'"demand", or {FILTERS}'),
            ("subscribe = 5", "subscribe", "5", f'"demand", or {FILTERS}'),
            ('subscribe = ["a", "b#"]', "subscribe[1]", '"b#"', "a topic filter in which # is only the last level"),
            ("subscribe = [5]", "subscribe[0]", "5", A_FILTER),
            ('aggregate = "site/7/#"', "aggregate", '"site/7/#"', f'"auto", or {FILTERS}'),
            (
                'aggregate = ["$share/g/a"]',
                "aggregate[0]",
                '"$share/g/a"',
                "a topic filter without $share/name/ before it",
            ),
            ('roots = ["+a"]', "roots[0]", '"+a"', "a topic filter in which + has its level to itself"),
            ('roots = "a"', "roots", '"a"', FILTERS),
            ('unfolded = [""]', "unfolded[0]", '""', "a topic filter of 1 to 65535 bytes"),
            ('publish = "#"', "publish", '"#"', FILTERS),
            ("max_filters = 0", "max_filters", "0", "an integer from 1 to 65535"),
            ("hold = -1", "hold", "-1", "a number from 0 to 86400.0"),
            (
                'aggregate = "auto", max_filters = 1, roots = ["a", "b"]',
                "roots",
                '["a", "b"]',
                'at most max_filters, 1, topic filters with aggregate = "auto"',
            ),
            ('local_prefix = "site"', "local_prefix", '"site"', PREFIX),
            ('remote_prefix = "site/+/"', "remote_prefix", '"site/+/"', "levels without wildcards"),
            (
                'local_prefix = "$SYS/x/"',
                "local_prefix",
                '"$SYS/x/"',
                "levels that do not begin with $SYS/ or $share/",
            ),
            ("subscribe_qos = 3", "subscribe_qos", "3", "0 or 1 or 2"),
            ('policy = "disconnect"', "policy", '"disconnect"', '"drop-newest" or "drop-oldest" or "latest"'),
            ("queue_bytes = 0.5", "queue_bytes", "0.5", "an integer from 0 to 1099511627776"),
            ("retry_min = 0", "retry_min", "0", "a number above 0, to 86400.0"),
            ("retry_min = 61", "retry_max", "60.0", "a number from retry_min, 61.0, to 86400.0"),
            ('status_topic = "a/#"', "status_topic", '"a/#"', 'a topic name without wildcards, or "" for none'),
            ("status_topic = 5", "status_topic", "5", 'a topic name, like "sites/7/up", or "" for none'),
            (r'username = "a\u0000"', "username", r'"a\u0000"', "text of at most 65535 bytes without U+0000"),
            (
                'version = "3.1.1", password_file = "p"',
                "username",
                '""',
                "a user name: MQTT 3.1.1 has no password without one",
            ),
            ('username = "u", password = "p", password_file = "f"', "password_file", '"f"', "only without password"),
            ("password = 5", "password", "***", 'text, or "" for none'),
            (f'password = "{"p" * 65_536}"', "password", "***", "text of at most 65535 bytes"),
        ],
    )
    def test_one_line_with_the_key(self, toml: Path, keys: str, about: str, found: str, expected: str) -> None:
        """The same from a file and from the environment; a program that embeds the broker is refused too."""
        table = {"name": "a", "url": "mqtt://h", **tomllib.loads(f"x = {{{keys}}}")["x"]}
        lines = ['name = "a"'] if "name =" not in keys.replace("username", "") else []
        lines += ['url = "mqtt://h"'] if "url =" not in keys else []
        text = ", ".join([*lines, keys])
        fault = f"upstream[1].{about}: found {found}; allowed: {expected}"
        good = '{name = "good", url = "mqtt://h"}'
        toml.write_text(f"upstream = [{good}, {{{text}}}]\n")
        assert problems(toml) == [f"{toml}: {fault}"]
        assert problem_of("UPSTREAM", f"[{good}, {{{text}}}]") == fault
        with pytest.raises(ValidationError):
            Settings.model_validate({"upstream": [table]})

    @for_each(
        ("keys", "expected"),
        [
            ('name = "a"', f"upstream[0].url: missing; allowed: {LIKE_URL}"),
            (
                'url = "mqtt://h"',
                'upstream[0].name: missing; allowed: 1 to 64 letters, digits, "_" and "-", like "cloud"',
            ),
            (f"{NAMED}, agregate = []", "upstream[0].agregate: no such setting; the nearest is aggregate"),
            (f"{NAMED}, clientid = 1", "upstream[0].clientid: no such setting; the nearest is client_id"),
            (
                f"{NAMED}, zzz = 1",
                f"upstream[0].zzz: no such setting; known are {', '.join(Upstream.model_fields)}",
            ),
        ],
    )
    def test_keys_that_are_missing_or_unknown(self, keys: str, expected: str) -> None:
        assert problem_of("UPSTREAM", f"[{{{keys}}}]") == expected

    def test_two_links_of_one_name(self) -> None:
        two = f'[{{{NAMED}}}, {{name = "b", url = "mqtt://h"}}, {{{NAMED}}}]'
        assert problem_of("UPSTREAM", two) == 'upstream[2].name: found "a"; allowed: a name that no other upstream has'
        with pytest.raises(SettingsError, match=r"upstream\[1\].name: .* a name that no other upstream has"):
            Settings(upstream=[link(), link()])

    def test_every_fault_of_every_link_is_told(self) -> None:
        links = '[{name = "", url = "x", policy = "y"}, {}]'
        told = [line.split(": ")[1] for line in problems(environ={"CANOPY_UPSTREAM": links})]
        assert told == [
            "upstream[0].name",
            "upstream[0].url",
            "upstream[0].policy",
            "upstream[1].name",
            "upstream[1].url",
        ]

    @pytest.mark.parametrize("text", ['[upstream]\nname = "a"\n', "upstream = 5\n", "[upstream]\n"])
    def test_no_list(self, toml: Path, text: str) -> None:
        toml.write_text(text)
        (told,) = problems(toml)
        assert told.startswith(f"{toml}: upstream: found ")
        assert told.endswith(f"; allowed: {allowed('upstream')}")

    def test_an_item_that_is_no_table(self) -> None:
        assert problem_of("UPSTREAM", '["cloud"]') == f'upstream[0]: found "cloud"; allowed: {allowed("upstream[]")}'

    def test_tables_behind_an_empty_list_are_told_what_to_do(self, toml: Path) -> None:
        toml.write_text('upstream = []\n[[upstream]]\nname = "a"\nurl = "mqtt://h"\n')
        (told,) = problems(toml)
        assert told.endswith("; where [[upstream]] tables stand, the line upstream = [] has to go")

    @for_each(
        ("name", "text", "expected"),
        [
            (
                "federation.broker_id",
                "a b",
                '1 to 32 letters, digits, "_" and "-", like "site-7", or "" for a random one',
            ),
            ("federation.broker_id", "a" * 33, allowed("federation.broker_id")),
            ("federation.hop_limit", "256", "an integer from 0 to 255"),
            ("presence.topic", "a/+", 'a topic name without wildcards, or "" for none'),
            (
                "presence.topic",
                "a/",
                'a topic name that neither ends in "/" nor begins with $SYS or $share, or "" for none',
            ),
            (
                "presence.topic",
                "$SYS/x",
                'a topic name that neither ends in "/" nor begins with $SYS or $share, or "" for none',
            ),
        ],
    )
    def test_the_sections(self, name: str, text: str, expected: str) -> None:
        (told,) = problems(sets=(f"{name}={text}",))
        found = text if text.isdigit() else f'"{text}"'
        assert told == f"--set {name}={text}: {name}: found {found}; allowed: {expected}"


class TestSources:
    LINKS = '[{name = "cloud", url = "mqtt://h", aggregate = ["site/7/#"]}]'

    def test_the_same_from_everywhere(self, toml: Path) -> None:
        expected = (link(name="cloud", aggregate=["site/7/#"]),)
        toml.write_text('[[upstream]]\nname = "cloud"\nurl = "mqtt://h"\naggregate = ["site/7/#"]\n')
        assert load(toml).upstream == expected
        assert load(environ={"CANOPY_UPSTREAM": self.LINKS}).upstream == expected
        assert load(sets=(f"upstream={self.LINKS}",)).upstream == expected
        assert load(toml, ("upstream=[]",)).upstream == ()

    def test_what_is_shown_can_be_read_again(self) -> None:
        settings = load(environ={"CANOPY_UPSTREAM": self.LINKS})
        value, default = changed(settings)["upstream"]
        assert (show(value), show(default)) == (self.LINKS, "[]")

    def test_what_differs_in_links(self) -> None:
        links = (link(), link(name="b", password="p", subscribe=["x"]))
        assert of_tables("upstream", links) == {
            "upstream[0].name": ("a", None),
            "upstream[0].url": ("mqtt://h", None),
            "upstream[1].name": ("b", None),
            "upstream[1].url": ("mqtt://h", None),
            "upstream[1].password": ("***", ""),
            "upstream[1].subscribe": (("x",), "demand"),
        }

    def test_default_toml_explains_every_key_and_has_its_default(self, toml: Path) -> None:
        """As the file has it, in its place: nothing else has to be changed."""
        text = (CONFIG / "default.toml").read_text(encoding="utf-8")
        example = [line.removeprefix("#     ") for line in text.splitlines() if line.startswith("#     ")]
        table = example[example.index("[[upstream]]") :]
        table = table[: next((at for at, line in enumerate(table) if at and line.startswith("[[")), None)]
        for before, at in pairwise(table):
            assert at.startswith("# ") or before.startswith("# "), at
        raw = tomllib.loads("\n".join(table))["upstream"][0]
        assert list(raw) == list(Upstream.model_fields)
        made = Upstream(name="cloud", url="mqtt://broker.example.org")
        for key, value in raw.items():
            standard = getattr(made, key)
            assert type(value) is (list if isinstance(standard, tuple) else type(standard)), key
        toml.write_text(text + "\n".join(table) + "\n")
        assert load(toml) == Settings(upstream=[made])

    def test_edge_toml_folds_what_its_devices_ask_for(self) -> None:
        settings = load(CONFIG / "edge.toml")
        (cloud,) = settings.upstream
        assert cloud.remote.tls
        assert cloud.aggregate == ("site/7/#",)
        assert f"{settings.presence.topic}/#" in cloud.publish
        assert 0 < cloud.queue_messages < 100_000
        assert 0 < cloud.queue_bytes < 67_108_864


class TestPasswordsStayHidden:
    def test_in_every_repr(self) -> None:
        settings = Settings(upstream=[link(username="u", password=SECRET)])
        for text in (repr(settings), str(settings), repr(settings.upstream[0]), str(settings.upstream[0])):
            assert SECRET not in text
        assert show(settings.upstream) == '[{name = "a", url = "mqtt://h", username = "u", password = ***}]'

    @pytest.mark.parametrize(
        "links",
        [
            f'[{{name = "a", url = "mqtt://h", version = "3.1.1", password = "{SECRET}"}}]',
            f'[{{name = "a", password = "{SECRET}"}}]',
            f'[{{{NAMED}, password = ["{SECRET}"]}}]',
            f'[{{{NAMED}, password = "{SECRET}", password_file = "f"}}]',
            f'[{{{NAMED}, password = "{SECRET}"}}, {{{NAMED}, password = "{SECRET}"}}]',
            f'[{{{NAMED}, pasword = "{SECRET}"}}]',
            f'[{{{NAMED}, password = "{SECRET}", policy = "x"}}]',
            f'[{{{NAMED}, password = "{SECRET}"',
            f'[{{name = "a", url = "mqtt://me:{SECRET}@h"}}]',
            f'["mqtt://me:{SECRET}@h"]',
            f'{{{NAMED}, password = "{SECRET}"}}',
            f'[[{{{NAMED}, password = "{SECRET}"}}]]',
        ],
    )
    def test_in_what_is_said_about_wrong_links(self, toml: Path, links: str) -> None:
        toml.write_text(f"upstream = {links}\n")
        told = [
            *problems(toml),
            *problems(environ={"CANOPY_UPSTREAM": links}),
            *problems(sets=(f"upstream={links}",)),
        ]
        assert len(told) >= 3
        assert SECRET not in "".join(told)

    @for_each("text", [f"upstream[0].password={SECRET}", f"upstream.password={SECRET}", f"password={SECRET}"])
    def test_in_what_is_said_about_a_flag_that_does_not_exist(self, text: str) -> None:
        (told,) = problems(sets=(text,))
        assert SECRET not in told

    @for_each(
        "keys", [{"version": "3.1.1"}, {"password_file": "f"}, {"policy": "x"}, {"password": [SECRET]}, {"zzz": 1}]
    )
    def test_in_the_error_that_a_program_gets(self, keys: dict[str, Any]) -> None:
        table = {"name": "a", "url": "mqtt://h", "password": SECRET, **keys}
        for make in (lambda: Upstream(**table), lambda: Settings.model_validate({"upstream": [table]})):
            with pytest.raises(ValidationError) as caught:
                make()
            assert SECRET not in str(caught.value)
            assert SECRET not in repr(caught.value)
