"""Settings: the models, where values come from, and what is said about wrong ones."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_filter
from canopy_mqtt.core.queues.queue_terms import POLICIES
from canopy_mqtt.core_limits import limits
from canopy_mqtt.settings import (
    EFFECTS,
    MAX_PACKET,
    Certificate,
    Endpoint,
    Limits,
    Mqtt,
    Policy,
    Queue,
    QueueRuleSettings,
    Section,
    Session,
    Settings,
    Tls,
    defaults,
    flatten,
    parse_listen,
    section_models,
)
from canopy_mqtt.settings.descriptions import TABLES, allowed, show
from canopy_mqtt.settings.environment import NOT_SETTINGS
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import changed, ignored, load_settings, of_tables
from tests.support.problems import unplaced
from tests.support.runs import for_each

CONFIG = Path(__file__).resolve().parents[2] / "config"

SET = ", ".join(EFFECTS)
POLICY_WORDS = '"drop-newest" or "drop-oldest" or "disconnect" or "latest"'


def load(
    config: Path | None = None,
    sets: tuple[str, ...] = (),
    listen: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
) -> Settings:
    """`load_settings`, with nothing of the environment these tests run in."""
    return load_settings(config, sets, listen, environ or {})


def problems(
    config: Path | None = None,
    sets: tuple[str, ...] = (),
    listen: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(config, sets, listen, environ)
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return unplaced(caught.value.problems)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "canopy.toml"


class TestModels:
    def test_an_embedding_program_gets_defaults_whatever_the_environment_says(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        before = Settings()
        monkeypatch.setenv("CANOPY_LIMITS__MAX_PACKET_SIZE", "4096")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "canopy.toml").write_text("[limits]\nmax_packet_size = 4096\n")
        assert Settings() == before
        assert Settings().limits.max_packet_size == 8_388_608

    def test_sections_are_given_as_models_or_mappings(self) -> None:
        as_model = Settings(limits=Limits(max_packet_size=1000))
        as_mapping = Settings.model_validate({"limits": {"max_packet_size": 1000}})
        assert as_model == as_mapping
        assert as_model.limits.max_packet_size == 1000

    @for_each("name", sorted(defaults()))
    def test_nothing_can_be_changed_afterwards(self, name: str) -> None:
        section, _, key = name.rpartition(".")
        owner = getattr(Settings(), section) if section else Settings()
        with pytest.raises(ValidationError):
            setattr(owner, key, getattr(owner, key))

    @for_each("section", [None, *section_models()])
    def test_unknown_names_are_refused(self, section: str | None) -> None:
        with pytest.raises(ValidationError, match="extra_forbidden"):
            Settings.model_validate({section: {"nonsense": 1}} if section else {"nonsense": 1})

    @for_each("value", ["1000", 1000.0, True, None])
    def test_a_value_of_another_type_is_not_converted(self, value: Any) -> None:
        with pytest.raises(ValidationError):
            Settings.model_validate({"limits": {"max_packet_size": value}})

    def test_whole_seconds_are_seconds(self) -> None:
        assert Settings.model_validate({"queue": {"stall_timeout": 5}}).queue.stall_timeout == 5.0

    @for_each("value", [float("nan"), float("inf")])
    def test_a_time_is_a_finite_number(self, value: float) -> None:
        with pytest.raises(ValidationError):
            Queue(stall_timeout=value)

    def test_a_client_identifier_of_23_bytes_can_always_be_used(self) -> None:
        """A server has to accept identifiers of 1 to 23 bytes [MQTT-3.1.3-5], so no setting may forbid them."""
        for length in (1, 22):
            with pytest.raises(ValidationError):
                Limits(max_client_id_length=length)
        for length in (0, 23, 65_535):
            assert Limits(max_client_id_length=length).max_client_id_length == length


class TestListen:
    @for_each(
        ("url", "address"),
        [
            ("mqtt://localhost", Endpoint("mqtt", "localhost", 1883)),
            ("mqtt://example.org:65535/", Endpoint("mqtt", "example.org", 65_535)),
            ("ws://[::]:0/", Endpoint("ws", "::", 0)),
        ],
    )
    def test_understood(self, url: str, address: Endpoint) -> None:
        assert parse_listen(url) == address
        assert parse_listen(address.url()) == address

    @for_each(
        ("url", "why"),
        [
            ("127.0.0.1:1883", "form mqtt://HOST:PORT"),
            ("http://localhost:1883", "form mqtt://HOST:PORT"),
            ("wss://localhost:8443", '"wss" takes a [[listener]] table, for certificates'),
            ("mqtt+unix:///run/canopy.sock", '"mqtt+unix" takes a [[listener]] table'),
            ("mqtt://:1883", "0.0.0.0"),
            ("mqtt://localhost:99999", "out of range"),
            ("mqtt://me@localhost", "without user"),
            ("ws://localhost:8080/mqtt", "form mqtt://HOST:PORT"),
        ],
    )
    def test_refused(self, url: str, why: str) -> None:
        with pytest.raises(ValueError, match=re.escape(why)):
            parse_listen(url)
        (problem,) = problems(listen=(url,))
        assert problem.startswith(f'--listen: listen: found "{url}": ')

    def test_always_a_tuple(self) -> None:
        settings = Settings(listen=["mqtt://127.0.0.1:0", "mqtt://127.0.0.1:0"])
        assert settings.listen == ("mqtt://127.0.0.1:0", "mqtt://127.0.0.1:0")

    @for_each(
        ("one", "other", "overlap"),
        [
            ("127.0.0.1:1883", "0.0.0.0:1883", True),
            ("*:1883", "[::1]:1883", True),
            ("[::]:1883", "[::1]:1883", True),
            ("[::]:1883", "0.0.0.0:1883", False),
            ("[::]:1883", "127.0.0.1:1883", False),
            ("127.0.0.1:1883", "127.0.0.2:1883", False),
            ("127.0.0.1:0", "0.0.0.0:0", False),
        ],
    )
    def test_an_address_of_every_interface_has_the_port_of_each(self, one: str, other: str, overlap: bool) -> None:
        first, second = parse_listen(f"mqtt://{one}"), parse_listen(f"mqtt://{other}")
        assert (first.overlaps(second), second.overlaps(first)) == (overlap, overlap)

    def test_a_port_cannot_be_had_twice(self) -> None:
        with pytest.raises(SettingsError, match="listed, too"):
            Settings(listen=["mqtt://localhost", "mqtt://localhost:1883"])
        with pytest.raises(SettingsError, match="listed, too"):
            Settings(listen=["ws://localhost:1883", "mqtt://localhost"])

    def test_one_is_needed(self) -> None:
        with pytest.raises(SettingsError, match=r"^listen: found \[\]; allowed: at least one listener$"):
            Settings(listen=[])


class TestOrder:
    @for_each(
        ("name", "text"), [("listen", "mqtt://127.0.0.1:1, ws://127.0.0.1:2"), ("http.listen", "http://127.0.0.1:1")]
    )
    def test_addresses_take_no_quotes_outside_of_a_file(self, name: str, text: str) -> None:
        wanted = tuple(part.strip() for part in text.split(","))
        assert flatten(load(sets=(f"{name}={text}",)))[name] == wanted
        variable = "CANOPY_" + name.upper().replace(".", "__")
        assert flatten(load(environ={variable: text}))[name] == wanted

    def test_flags_beat_environment_beats_file_beats_defaults(self, toml: Path) -> None:
        toml.write_text("[mqtt]\nmax_qos = 0\nreceive_maximum = 1\nmax_inflight = 2\n")
        environ = {"CANOPY_MQTT__RECEIVE_MAXIMUM": "10", "CANOPY_MQTT__MAX_INFLIGHT": "20"}
        settings = load(toml, ("mqtt.max_inflight=200",), environ=environ)
        assert settings.mqtt.max_qos == 0
        assert settings.mqtt.receive_maximum == 10
        assert settings.mqtt.max_inflight == 200
        assert settings.mqtt.topic_alias_maximum == 64

    def test_listen_replaces_the_list(self, toml: Path) -> None:
        toml.write_text('listen = ["mqtt://10.0.0.1:1"]\n')
        assert load(toml).listen == ("mqtt://10.0.0.1:1",)
        environ = {"CANOPY_LISTEN": "mqtt://10.0.0.2:2, mqtt://10.0.0.2:3"}
        assert load(toml, environ=environ).listen == ("mqtt://10.0.0.2:2", "mqtt://10.0.0.2:3")
        assert load(toml, listen=("mqtt://10.0.0.3:3",), environ=environ).listen == ("mqtt://10.0.0.3:3",)

    def test_the_last_flag_wins(self) -> None:
        assert load(sets=("mqtt.max_qos=0", "mqtt.max_qos=1")).mqtt.max_qos == 1

    @for_each("text", ["10_000", "10000", " 10000 ", "0x2710"])
    def test_numbers_are_written_as_in_toml(self, text: str) -> None:
        assert load(sets=(f"limits.max_packet_size={text}",)).limits.max_packet_size == 10_000
        assert load(environ={"CANOPY_LIMITS__MAX_PACKET_SIZE": text}).limits.max_packet_size == 10_000

    @for_each("text", ["debug", '"debug"', "'debug'"])
    def test_text_needs_no_quotes(self, text: str) -> None:
        assert load(sets=(f"log.level={text}",)).log.level == "debug"

    def test_a_value_cannot_smuggle_in_another(self) -> None:
        (problem,) = problems(sets=("limits.max_connections=1\nvalue2 = 2",))
        assert "limits.max_connections: found" in problem

    def test_the_environment_is_read_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CANOPY_LIMITS__MAX_PACKET_SIZE", "4096")
        assert load_settings().limits.max_packet_size == 4096

    def test_variables_of_the_build_are_no_settings(self) -> None:
        assert load(environ=dict.fromkeys(NOT_SETTINGS, "1")) == Settings()

    @given(st.data())
    def test_every_setting_can_be_set_from_everywhere(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(defaults())))
        value = defaults()[name]
        text = ",".join(value) if name == "listen" else show(value)
        variable = "CANOPY_" + name.upper().replace(".", "__")
        assert load(sets=(f"{name}={text}",)) == Settings()
        assert load(environ={variable: text}) == Settings()


class TestMessages:
    @pytest.mark.parametrize(
        ("text", "name", "nearest"),
        [
            ("[limits]\nmax_packet_siz = 1000", "limits.max_packet_siz", "limits.max_packet_size"),
            ("[limit]\nmax_packet_size = 1000", "limit.max_packet_size", "limits.max_packet_size"),
            ("[limts]\nmax_connections = 5", "limts.max_connections", "limits.max_connections"),
            ("max_qos = 1", "max_qos", "mqtt.max_qos"),
        ],
    )
    def test_a_misspelt_name_or_section(self, toml: Path, text: str, name: str, nearest: str) -> None:
        """Also of a name that several sections have, and one without its section."""
        toml.write_text(f"{text}\n")
        assert problems(toml) == [f"{toml}: {name}: no such setting; the nearest is {nearest}"]

    def test_what_resembles_only_a_setting_of_another_section(self) -> None:
        """Also as a variable: it is no other program's."""
        lists = "no such setting; canopy check-config --defaults lists them all"
        assert problems(sets=("log.file=x",)) == [f"--set log.file=x: log.file: {lists}"]
        assert problems(environ={"CANOPY_LOG__FILE": "x"}) == [
            f"environment variable CANOPY_LOG__FILE: log.file: {lists}"
        ]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (
                'listen = ["http://0.0.0.0:8080"]',
                'http.listen[0]: found "http://0.0.0.0:8080"; allowed: a loopback address; for any other set http.pass',
            ),
            (
                'key = "k"\nlisten = ["https://127.0.0.1:8443"]',
                'http.certificate: found ""; allowed: a file, because http.listen has an https:// address',
            ),
        ],
    )
    def test_settings_of_a_section_that_do_not_agree(self, toml: Path, text: str, told: str) -> None:
        toml.write_text(f"[http]\n{text}\n")
        (problem,) = problems(toml)
        assert problem.startswith(f"{toml}: {told}")

    def test_a_name_like_nothing_else(self) -> None:
        assert problems(sets=("zzz=1",)) == [
            "--set zzz=1: zzz: no such setting; canopy check-config --defaults lists them all",
        ]

    @for_each("variable",
        [
            "CANOPY_SERVICE_HOST", "CANOPY_SERVICE_PORT", "CANOPY_SERVICE_PORT_MQTT", "CANOPY_PORT",
            "CANOPY_PORT_1883_TCP", "CANOPY_PORT_1883_TCP_PROTO", "CANOPY_PORT_1883_TCP_PORT",
            "CANOPY_PORT_1883_TCP_ADDR", "CANOPY_METRICS_SERVICE_HOST", "CANOPY_UPSTREAM_PORT",
            "CANOPY_LISTEN_SERVICE_PORT", "CANOPY_VERSION", "CANOPY_HOME", "CANOPY_LEVEL", "CANOPY_IMAGE__TAG",
        ],
    )  # fmt: skip
    def test_variables_of_others_are_left_alone(self, variable: str) -> None:
        """Kubernetes makes some of them beside a Service of the same name."""
        assert load(environ={variable: "tcp://10.0.0.1:1883"}) == Settings()

    @for_each(
        ("variable", "nearest"),
        [
            ("CANOPY_LIMITS_MAX_PACKET_SIZE", "CANOPY_LIMITS__MAX_PACKET_SIZE"),
            ("CANOPY_MAX_CONNECTIONS", "CANOPY_LIMITS__MAX_CONNECTIONS"),
            ("CANOPY_LISTENN", "CANOPY_LISTEN"),
            ("CANOPY_LIMIT__MAX_PACKET_SIZE", "CANOPY_LIMITS__MAX_PACKET_SIZE"),
            ("CANOPY_LOG__LEVELS", "CANOPY_LOG__LEVEL"),
        ],
    )
    def test_what_comes_near_a_setting_is_not(self, variable: str, nearest: str) -> None:
        """A misspelt limit must not be no limit."""
        (problem,) = problems(environ={variable: "1"})
        assert problem.endswith(f"no such setting; the nearest is {nearest}")

    def test_what_is_left_alone_can_be_asked_for(self) -> None:
        """By whoever checks: what is spelt like a setting. What Kubernetes makes is no news."""
        environ = {"CANOPY_IMAGE__TAG": "1", "CANOPY_PORT": "tcp://h:1", "CANOPY_LIMITS__MAX_CONNECTIONS": "1"}
        assert ignored(environ) == ["environment variable CANOPY_IMAGE__TAG: no such setting; it is ignored"]

    def test_a_misspelt_variable_is_answered_with_a_variable(self) -> None:
        (problem,) = problems(environ={"CANOPY_LIMITS__MAX_CONECTIONS": "5"})
        assert problem == (
            "environment variable CANOPY_LIMITS__MAX_CONECTIONS: limits.max_conections: no such setting; "
            "the nearest is CANOPY_LIMITS__MAX_CONNECTIONS"
        )

    @for_each(
        ("name", "text", "found", "expected"),
        [
            ("limits.max_packet_size", "1", "1", "0, or an integer from 2 to 267386884"),
            ("limits.max_packet_size", "many", '"many"', "0, or an integer from 2 to 267386884"),
            ("limits.max_connections", "-1", "-1", "an integer from 0 to 2000000000"),
            ("limits.max_connect_rate", "-0.5", "-0.5", "a number from 0 to 2000000000"),
            ("limits.max_publish_rate", "inf", "inf", "a number from 0 to 2000000000"),
            ("limits.max_publish_bytes", "0.5", "0.5", "an integer from 0 to 1099511627776"),
            ("limits.max_loop_lag", "nan", "nan", "a number from 0 to 86400.0"),
            ("limits.max_client_id_length", "7", "7", "0, or an integer from 23 to 65535"),
            ("mqtt.max_qos", "3", "3", "0 or 1 or 2"),
            ("mqtt.retain_available", "1", "1", "true or false"),
            ("mqtt.retain_available", "yes", '"yes"', "true or false"),
            ("routing.trie", "fast", '"fast"', '"nodes" or "compact" or "uncompacted"'),
            ("session.max_expiry", "4294967296", "4294967296", "an integer from 0 to 4294967295"),
            ("queue.policy", "newest", '"newest"', '"drop-newest" or "drop-oldest" or "disconnect" or "latest"'),
            ("queue.max_age", "-1", "-1", "a number from 0 to 86400.0"),
            ("queue.total_bytes", '"1 GB"', '"1 GB"', "an integer from 0 to 1099511627776"),
            ("queue.on_full", "drop", '"drop"', '"acknowledge" or "tell-publisher"'),
            (
                "queue.subscriber_policies",
                "latest",
                '"latest"',
                'a list of "drop-newest" or "drop-oldest" or "disconnect" or "latest"',
            ),
            ("queue.report_interval", "often", '"often"', "a number from 0 to 86400.0"),
            ("queue.write_batch_bytes", "0", "0", "an integer from 1 to 1099511627776"),
            (
                "queue.rules",
                "latest",
                '"latest"',
                '[[queue.rules]] tables, or a list of them, like [{client_id = "display-*", policy = "latest"}]',
            ),
            ("top.counters", "15", "15", "0, or an integer from 16 to 4096"),
            ("listen", "7", "7", 'a list of URLs, like ["mqtt://127.0.0.1:1883"]'),
            ("listen", "[1]", "[1]", 'a list of URLs, like ["mqtt://127.0.0.1:1883"]'),
        ],
    )
    def test_a_bad_value(self, name: str, text: str, found: str, expected: str) -> None:
        assert problems(sets=(f"{name}={text}",)) == [
            f"--set {name}={text}: {name}: found {found}; allowed: {expected}"
        ]

    def test_every_setting_can_say_what_is_allowed(self) -> None:
        models = {name: model.values() if isinstance(model, Mapping) else [model] for name, model in TABLES.items()}
        tables = [f"{name}[].{key}" for name, some in models.items() for each in some for key in each.model_fields]
        tls = [f"listener[].tls.{key}" for key in Tls.model_fields]
        more = [f"listener[].tls.more[].{key}" for key in Certificate.model_fields]
        for name in [*defaults(), *tables, *tls, *more]:
            assert len(allowed(name).split()) >= 2, name

    def test_all_faults_are_told_at_once(self, toml: Path) -> None:
        toml.write_text("[mqtt]\nmax_qos = 9\nnonsense = 1\n[queue]\nlive_bytes = -1\n")
        told = problems(toml, ("a.b=1", "no equals sign"), environ={"CANOPY_SYS__INTERVAL": "often"})
        assert len(told) == 6
        assert all("\n" not in line for line in told)

    def test_the_fault_is_told_of_the_source_that_wins(self, toml: Path) -> None:
        toml.write_text("[mqtt]\nmax_qos = 9\n")
        (problem,) = problems(toml, ("mqtt.max_qos=8",))
        assert problem.startswith("--set mqtt.max_qos=8: ")
        assert load(toml, ("mqtt.max_qos=1",)).mqtt.max_qos == 1

    def test_a_long_value_is_cut(self) -> None:
        (problem,) = problems(sets=(f"log.level={'x' * 10_000}",))
        assert len(problem.partition("found ")[2]) < 200

    @for_each("text", ["no equals sign", "=1", ""])
    def test_a_flag_that_sets_nothing(self, text: str) -> None:
        (problem,) = problems(sets=(text,))
        assert problem.startswith(f"--set {text}: allowed: name=value")

    @pytest.mark.parametrize("source", ["file", "flag"])
    def test_a_section_is_no_setting(self, toml: Path, source: str) -> None:
        toml.write_text("limits = 5\n")
        (problem,) = problems(toml) if source == "file" else problems(sets=("limits=5",))
        assert "limits: " in problem
        assert "section" in problem

    def test_a_table_where_a_value_belongs(self, toml: Path) -> None:
        toml.write_text("[mqtt.max_qos]\nlevel = 1\n")
        assert problems(toml) == [f"{toml}: mqtt.max_qos: found a table; allowed: 0 or 1 or 2"]

    def test_an_unknown_empty_section(self, toml: Path) -> None:
        toml.write_text("[limts]\n")
        (problem,) = problems(toml)
        assert problem.startswith(f"{toml}: limts: no such setting")


class TestQueueRules:
    """`[[queue.rules]]`: what a rule has to say, where it is found, and what is said about a wrong one."""

    @for_each(
        "rule",
        [
            {"client_id": "a*", "policy": "latest"},
            {"user": "kiosk*", "max_age": 5},
            {"client_id": "a*", "live_messages": 0, "live_bytes": 1, "session_messages": 2, "session_bytes": 0},
            {"topic_filter": "#", "depth": 0},
            {"client_id": "a", "user": "b", "topic_filter": "sensors/+/x", "policy": "disconnect", "max_age": 0.5},
        ],
    )
    def test_understood(self, rule: dict[str, Any]) -> None:
        made = Settings.model_validate({"queue": {"rules": [rule]}}).queue.rules
        assert made == (QueueRuleSettings(**rule),)
        assert made[0].model_dump(exclude_unset=True) == rule
        # What it does not name it leaves alone.
        assert made[0].model_dump(exclude_none=True) == rule

    @pytest.mark.parametrize(
        ("rule", "about", "found", "expected"),
        [
            ("{}", "", "{}", f"a rule with client_id, user or topic_filter and with something to set ({SET})"),
            ('{policy = "latest"}', "", '{policy = "latest"}', "a rule with client_id, user or topic_filter"),
            ('{user = "a"}', "", '{user = "a"}', f"a rule with something to set ({SET})"),
            ('"latest"', "", '"latest"', 'a table, like {client_id = "display-*", policy = "latest"}'),
            ('{user = "a", policy = "new"}', ".policy", '"new"', POLICY_WORDS),
            ('{user = "a", policy = {}}', ".policy", "a table", POLICY_WORDS),
            ('{user = "a", max_age = -1}', ".max_age", "-1", "a number from 0 to 86400.0"),
            ('{user = "a", live_bytes = 1.5}', ".live_bytes", "1.5", "an integer from 0 to 1099511627776"),
            ('{topic_filter = "t", depth = "9"}', ".depth", '"9"', "an integer from 0 to 2000000000"),
            ('{client_id = "", max_age = 1}', ".client_id", '""', 'a shell pattern, like "display-*"'),
            ("{user = 7, max_age = 1}", ".user", "7", 'a shell pattern, like "kiosk*"'),
            ("{topic_filter = 7, depth = 1}", ".topic_filter", "7", 'a topic filter, like "sensors/#"'),
            ('{topic_filter = "", depth = 1}', ".topic_filter", '""', "a topic filter of 1 to 65535 bytes"),
            (
                '{topic_filter = "a/#/b", depth = 1}',
                ".topic_filter",
                '"a/#/b"',
                "a topic filter in which # is only the last level",
            ),
            (
                '{topic_filter = "a+/b", depth = 1}',
                ".topic_filter",
                '"a+/b"',
                "a topic filter in which + has its level to itself",
            ),
            (
                r'{topic_filter = "a\u0000", depth = 1}',
                ".topic_filter",
                r'"a\u0000"',
                "a topic filter without U+0000",
            ),
            (
                '{topic_filter = "$share/g/t", depth = 1}',
                ".topic_filter",
                '"$share/g/t"',
                "a topic filter without $share/name/ before it; the rule holds for shared subscriptions too",
            ),
            ('{user = "a", depth = 5}', ".depth", "5", "only with topic_filter"),
            *(
                (
                    f'{{topic_filter = "t", {key} = 5}}',
                    f".{key}",
                    "5",
                    "only without topic_filter; depth bounds a subscription",
                )
                for key in ("live_messages", "live_bytes", "session_messages", "session_bytes")
            ),
        ],
    )
    def test_a_bad_rule(self, toml: Path, rule: str, about: str, found: str, expected: str) -> None:
        """The same, wherever it stands, with the place and the key."""
        good = '{user = "good", policy = "latest"}'
        text = f"[{good}, {rule}]"
        fault = f"queue.rules[1]{about}: found {found}; allowed: {expected}"
        toml.write_text(f"[queue]\nrules = {text}\n")
        assert problems(toml) == [f"{toml}: {fault}"]
        assert problems(environ={"CANOPY_QUEUE__RULES": text}) == [f"environment variable CANOPY_QUEUE__RULES: {fault}"]
        assert problems(sets=(f"queue.rules={text}",)) == [f"--set queue.rules={text}: {fault}"]
        with pytest.raises(ValidationError):
            Settings.model_validate({"queue": tomllib.loads(f"rules = {text}")})

    @for_each(
        ("key", "advice"),
        [
            ("polcy", "the nearest is policy"),
            ("clientid", "the nearest is client_id"),
            ("username", "the nearest is user"),
            ("zzz", f"known are client_id, user, topic_filter, {SET}"),
        ],
    )
    def test_a_misspelt_key(self, key: str, advice: str) -> None:
        text = f'[{{client_id = "a", policy = "latest", {key} = 1}}]'
        expected = f"environment variable CANOPY_QUEUE__RULES: queue.rules[0].{key}: no such setting; {advice}"
        assert problems(environ={"CANOPY_QUEUE__RULES": text}) == [expected]

    def test_a_hostile_key_stays_on_one_line(self) -> None:
        (problem,) = problems(sets=('queue.rules=[{user = "a", policy = "latest", "x\\ny" = {"p q" = 1}}]',))
        assert r"queue.rules[0].x\ny: no such setting" in problem

    def test_a_key_that_needs_quotes_is_shown_with_them(self) -> None:
        (problem,) = problems(sets=('queue.rules=[[{"p q" = 1, r-s = [true]}]]',))
        assert ': queue.rules[0]: found [{"p q" = 1, r-s = [true]}]; allowed: a table' in problem

    def test_a_long_rule_is_cut(self) -> None:
        (problem,) = problems(environ={"CANOPY_QUEUE__RULES": f'[{{client_id = "{"x" * 10_000}"}}]'})
        assert len(problem) < 400

    def test_the_last_source_wins_whole(self, toml: Path) -> None:
        """Lists are not joined: who writes rules writes all of them."""
        toml.write_text(
            '[[queue.rules]]\nclient_id = "file"\npolicy = "latest"\n[[queue.rules]]\nuser = "x"\ndepth = 1\n'
        )
        environ = {"CANOPY_QUEUE__RULES": '[{client_id="a*", policy="latest"}]'}
        assert load(toml, environ=environ).queue.rules == (QueueRuleSettings(client_id="a*", policy="latest"),)
        sets = ('queue.rules=[{user="u", max_age=1}]',)
        assert load(toml, sets, environ=environ).queue.rules == (QueueRuleSettings(user="u", max_age=1),)
        assert load(toml, ("queue.rules=[]",)).queue.rules == ()

    def test_tables_keep_their_order(self, toml: Path) -> None:
        toml.write_text(
            '[queue]\nmax_age = 9\n[[queue.rules]]\nclient_id = "b"\nmax_age = 1\n'
            '[[queue.rules]]\nclient_id = "a"\nmax_age = 2\n[sys]\ninterval = 1\n'
        )
        settings = load(toml)
        assert [rule.client_id for rule in settings.queue.rules] == ["b", "a"]
        assert (settings.queue.max_age, settings.sys.interval) == (9.0, 1.0)

    def test_changed_and_show_write_them_as_one_would(self) -> None:
        rules = (QueueRuleSettings(client_id="a*", policy="latest"), QueueRuleSettings(topic_filter="#", depth=0))
        value, default = changed(Settings(queue=Queue(rules=rules)))["queue.rules"]
        assert show(value) == '[{client_id = "a*", policy = "latest"}, {topic_filter = "#", depth = 0}]'
        assert show(default) == "[]"
        assert load(sets=(f"queue.rules={show(value)}",)).queue.rules == rules

    @for_each("text", ["#/#", "a/#/#", "##", "a#", "#a", "+a", "a+", "++", "+/+", "/", "//#", "$share", "a/+/#"])
    def test_filters_at_the_edge_of_the_grammar(self, text: str) -> None:
        _judge_as_the_core(text)

    @given(st.text("ab/+#$\0sharegé", max_size=12))
    def test_filters_are_judged_as_the_core_does(self, topic_filter: str) -> None:
        _judge_as_the_core(topic_filter)

    @for_each("length", [65_535, 65_536])
    def test_long_filters_too(self, length: int) -> None:
        _judge_as_the_core("x" * length)
        _judge_as_the_core("é" * (length // 2) + "x" * (length % 2))


def _judge_as_the_core(topic_filter: str) -> None:
    try:
        validate_filter(topic_filter)
        good = not topic_filter.startswith("$share/")
    except ProtocolError:
        good = False
    try:
        QueueRuleSettings(topic_filter=topic_filter, depth=1)
    except ValidationError:
        assert not good
    else:
        assert good


class TestSubscriberPolicies:
    @for_each("given", [[], ["latest"], ["latest", "latest"], ("disconnect", "drop-newest")])
    def test_any_of_them_in_any_order(self, given: Any) -> None:
        assert Queue(subscriber_policies=given).subscriber_policies == tuple(given)

    def test_a_wrong_one_is_named(self) -> None:
        (problem,) = problems(sets=('queue.subscriber_policies=["latest", "newest"]',))
        assert problem.endswith(f': queue.subscriber_policies[1]: found "newest"; allowed: {POLICY_WORDS}')

    def test_the_names_are_those_of_the_core(self) -> None:
        assert get_args(Policy) == POLICIES


class TestWhatTheCoreGets:
    """`limits()`: the settings as plain numbers."""

    def test_a_limit_of_0_is_unlimited(self) -> None:
        """What has a largest value in the protocol gets that; the rest is 0 in the core too."""
        made = limits(
            Settings(
                limits=Limits(max_packet_size=0, connect_timeout=0, max_topic_levels=0, max_client_id_length=0),
                mqtt=Mqtt(receive_maximum=0, max_inflight=0),
                session=Session(max_expiry=0),
                queue=Queue(
                    live_messages=0,
                    live_bytes=0,
                    session_messages=0,
                    session_bytes=0,
                    total_messages=0,
                    total_bytes=0,
                    stall_timeout=0,
                ),
            )
        )
        assert (made.max_packet_size, made.receive_maximum, made.max_inflight) == (MAX_PACKET, 65_535, 65_535)
        assert made.max_session_expiry == NEVER
        assert (made.live_messages, made.live_bytes, made.session_messages, made.session_bytes) == (0, 0, 0, 0)
        assert (made.total_messages, made.total_bytes) == (0, 0)

    def test_what_one_client_has_of_the_whole(self) -> None:
        made = limits(Settings())
        assert made.max_filter_bytes_per_client == made.max_retained_bytes_per_client == 33_554_432
        assert (made.max_alias_bytes_per_client, made.max_empty_sessions) == (262_144, 50_000)
        made = limits(
            Settings(limits=Limits(max_client_bytes=1_000, max_alias_bytes=70_000), session=Session(max_sessions=10))
        )
        assert made.max_filter_bytes_per_client == made.max_retained_bytes_per_client == 942
        # However low the bound of all is, a client may have an alias of the longest name.
        assert (made.max_alias_bytes_per_client, made.max_empty_sessions) == (66_000, 2)
        made = limits(Settings(limits=Limits(max_client_bytes=0, max_alias_bytes=0), session=Session(max_sessions=0)))
        assert made.max_filter_bytes_per_client == made.max_retained_bytes_per_client == 0
        assert (made.max_alias_bytes_per_client, made.max_empty_sessions) == (0, 0)


class TestFiles:
    def test_broken_toml_names_the_line(self, toml: Path) -> None:
        toml.write_text("[limits]\nmax_packet_size = \n")
        (problem,) = problems(toml)
        assert problem.startswith(f"{toml}: not valid TOML: ")
        assert "line 2" in problem

    def test_a_mosquitto_conf_gets_the_command_that_converts_it(self, tmp_path: Path) -> None:
        file = tmp_path / "mosquitto.conf"
        file.write_text("persistence true\n")
        (problem,) = problems(file)
        assert problem.endswith(f"; to convert a mosquitto.conf: canopy convert {file} > canopy.toml")

    def test_a_missing_file(self, toml: Path) -> None:
        assert problems(toml) == [f"{toml}: cannot be read: No such file or directory"]

    def test_a_directory(self, tmp_path: Path) -> None:
        assert problems(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]

    def test_no_text(self, toml: Path) -> None:
        toml.write_bytes(b"listen = '\xff'")
        assert problems(toml) == [f"{toml}: not UTF-8 text (byte 10)"]

    def test_an_empty_file_changes_nothing(self, toml: Path) -> None:
        toml.write_text("")
        assert load(toml) == Settings()

    @for_each("path", sorted(CONFIG.glob("*.toml")), ids=lambda path: path.name)
    def test_the_files_we_ship_are_good(self, path: Path) -> None:
        settings = load(path)
        assert bool(changed(settings)) == (path.name != "default.toml")

    def test_default_toml_lists_every_setting_with_its_default_in_order(self) -> None:
        written: dict[str, Any] = {}
        for name, value in tomllib.loads((CONFIG / "default.toml").read_text(encoding="utf-8")).items():
            if isinstance(value, dict):
                written.update({f"{name}.{key}": _as_kept(item) for key, item in value.items()})
            else:
                written[name] = _as_kept(value)
        known = {name: value for name, value in defaults().items() if name not in TABLES}
        assert list(written.items()) == list(known.items())
        # 10 and 10.0 are equal, and read differently by the person who copies the file.
        assert [type(value) for value in written.values()] == [type(value) for value in known.values()]

    def test_default_toml_explains_every_setting(self) -> None:
        lines = (CONFIG / "default.toml").read_text(encoding="utf-8").splitlines()
        for before, line in pairwise(lines):
            if "=" in line and not line.startswith("#"):
                assert before.startswith("# "), line

    def test_the_example_rules_of_default_toml_are_good(self, toml: Path) -> None:
        """As the file has them, in their place: nothing else has to be changed."""
        text = (CONFIG / "default.toml").read_text(encoding="utf-8")
        head, section, tail = text.partition("\n# What retained messages may take.")
        example = [line.removeprefix("#     ") for line in head.splitlines() if line.startswith("#     ")]
        rules = "\n".join(example[next(i for i, line in enumerate(example) if line == "[[queue.rules]]") :])
        toml.write_text(head + rules + "\n" + section + tail)
        assert section
        assert load(toml) == Settings(
            queue=Queue(
                rules=[
                    QueueRuleSettings(client_id="display-*", policy="latest"),
                    QueueRuleSettings(user="kiosk*", topic_filter="sensors/#", max_age=5.0, depth=100),
                ]
            )
        )

    @for_each("path", [p for p in CONFIG.glob("*.toml") if p.name != "default.toml"], ids=lambda p: p.name)
    def test_a_file_for_one_use_says_only_what_differs(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        # What is indented belongs to the list above it.
        written = [line for line in lines if "=" in line and not line.startswith(("#", " "))]
        settings = load(path)
        tables = [name for name in TABLES if name in Settings.model_fields]
        differing = len([name for name in changed(settings) if name not in tables])
        # A rule says in full what it allows.
        differing += sum(len(rule.model_fields_set) for rule in settings.rule)
        for name in set(tables) - {"rule"}:
            for value, _ in of_tables(name, getattr(settings, name)).values():
                differing += len(value.model_fields_set) if isinstance(value, Section) else 1
        assert differing == len(written)

    def test_overload_toml_sets_every_limit_that_is_open_by_default(self) -> None:
        """And tells of each why, unless it is the second half of a pair."""
        path = CONFIG / "overload.toml"
        settings = load(path)
        still_open = {name for name, value in flatten(settings).items() if type(value) is not bool and value == 0}
        assert still_open == {"mqtt.topic_alias_outbound", "mqtt.max_keep_alive", "presence.delay", "queue.max_delay"}
        for line in path.read_text(encoding="utf-8").splitlines():
            if "=" in line and not line.startswith("#") and not line.split()[0].endswith("_bytes"):
                assert "#" in line or line.startswith(("listen", "max_connections ")), line

    def test_changed_tells_what_differs(self) -> None:
        assert changed(Settings()) == {}
        assert changed(Settings(limits=Limits(max_packet_size=9))) == {"limits.max_packet_size": (9, 8_388_608)}

    def test_flatten_has_every_field_once(self) -> None:
        fields = sum(len(model.model_fields) for model in section_models().values())
        plain = [name for name in Settings.model_fields if name not in section_models()]
        assert len(flatten(Settings())) == fields + len(plain)
        assert all(issubclass(model, Section) for model in section_models().values())


def _as_kept(value: Any) -> Any:
    """A value of a file as settings keep it."""
    return tuple(value) if isinstance(value, list) else value


class TestLines:
    """Each message about a file names the line of what it is about, or of the table that lacks it."""

    LATEST = "{client_id = 'a', policy = 'latest'}"

    @pytest.mark.parametrize(
        ("text", "line", "about"),
        [
            ("\n[mqtt]\nmax_qos = 3\n", 3, "mqtt.max_qos"),
            ("mqtt.max_qos = 3\n", 1, "mqtt.max_qos"),
            ("mqtt = {max_keep_alive = 1, max_qos = 3}\n", 1, "mqtt.max_qos"),
            ("[limits]\n\nmax_packet_siz = 1\n", 3, "limits.max_packet_siz"),
            ("[log]\n[limts]\n", 2, "limts"),
            ("# x\nlog = 1\n", 2, "log"),
            ("\nlisten = ['mqtt://x:y']\n", 2, "listen"),
            (f"[queue]\nrules = [\n  {LATEST},\n  {{policy = 'no'}},\n]\n", 4, "queue.rules[1].policy"),
            (f"[queue]\nrules = [\n  {LATEST},\n  {{policy = 'latest'}},\n]\n", 4, "queue.rules[1]"),
            ("[[queue.rules]]\nuser = 'a'\n\n[[queue.rules]]\nuser = ''\n", 5, "queue.rules[1].user"),
            ("[[upstream]]\nname = 'a'\nurl = 'mqtt://a'\n[[upstream]]\nname = 'b'\n", 4, "upstream[1].url"),
            ("[[upstream]]\nname = 'a'\nurl = 'mqtt://a'\n" * 2, 5, "upstream[1].name"),
            ("[[listener]]\nurl = 'mqtts://a'\n[listener.tls]\ncertificate = 'c'\nkey = 1\n", 5, "listener[0].tls.key"),
            ("[[listener]]\nurl = 'mqtts://a'\n[listener.tls]\n", 3, "listener[0].tls.certificate"),
            ("[[authenticator]]\ntype = 'jwt'\n[[authenticator]]\ntype = 'jwd'", 4, "authenticator[1].type"),
            ("listen = ['mqtt://a:1']\n[[listener]]\nurl = 'mqtt://a:1'\n", 3, "listener[0].url"),
        ],
    )
    def test_of_a_file(self, toml: Path, text: str, line: int, about: str) -> None:
        toml.write_text(text)
        with pytest.raises(SettingsError) as caught:
            load(toml)
        told = [problem for problem in caught.value.problems if problem.startswith(f"{toml}: line {line}: {about}")]
        assert len(told) == 1, caught.value.problems

    def test_elsewhere_there_are_none(self, toml: Path) -> None:
        toml.write_text("[mqtt]\nmax_qos = 3\n")
        assert problems(toml, sets=("mqtt.max_qos=4",))[0].startswith("--set mqtt.max_qos=4: mqtt.max_qos: found 4")
