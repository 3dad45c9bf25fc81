"""Settings: the models, where values come from, and what is said about wrong ones."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.configuration import NOT_SETTINGS, SettingsError, allowed, changed, load_settings, show
from broker.settings import (
    Address,
    Limits,
    Queue,
    Section,
    Settings,
    defaults,
    flatten,
    parse_listen,
    section_models,
)

CONFIG = Path(__file__).resolve().parent.parent / "config"


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
    return list(caught.value.problems)


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
        assert Settings().limits.max_packet_size == 1_048_576

    def test_sections_are_given_as_models_or_mappings(self) -> None:
        as_model = Settings(limits=Limits(max_packet_size=1000))
        as_mapping = Settings.model_validate({"limits": {"max_packet_size": 1000}})
        assert as_model == as_mapping
        assert as_model.limits.max_packet_size == 1000

    @pytest.mark.parametrize("name", sorted(defaults()))
    def test_nothing_can_be_changed_afterwards(self, name: str) -> None:
        section, _, key = name.rpartition(".")
        owner = getattr(Settings(), section) if section else Settings()
        with pytest.raises(ValidationError):
            setattr(owner, key, getattr(owner, key))

    @pytest.mark.parametrize("section", [None, *section_models()])
    def test_unknown_names_are_refused(self, section: str | None) -> None:
        with pytest.raises(ValidationError, match="extra_forbidden"):
            Settings.model_validate({section: {"nonsense": 1}} if section else {"nonsense": 1})

    @pytest.mark.parametrize("value", ["1000", 1000.0, True, None])
    def test_a_value_of_another_type_is_not_converted(self, value: Any) -> None:
        with pytest.raises(ValidationError):
            Settings.model_validate({"limits": {"max_packet_size": value}})

    def test_whole_seconds_are_seconds(self) -> None:
        assert Settings.model_validate({"queue": {"stall_timeout": 5}}).queue.stall_timeout == 5.0

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_time_is_a_finite_number(self, value: float) -> None:
        with pytest.raises(ValidationError):
            Queue(stall_timeout=value)

    def test_every_setting_tells_what_it_is(self) -> None:
        for model in section_models().values():
            for key, field in model.model_fields.items():
                assert field.description, f"{model.__name__}.{key}"

    def test_a_client_identifier_of_23_bytes_can_always_be_used(self) -> None:
        """A server has to accept identifiers of 1 to 23 bytes [MQTT-3.1.3-5], so no setting may forbid them."""
        for length in (1, 22):
            with pytest.raises(ValidationError):
                Limits(max_client_id_length=length)
        for length in (0, 23, 65_535):
            assert Limits(max_client_id_length=length).max_client_id_length == length


class TestListen:
    @pytest.mark.parametrize(
        ("url", "address"),
        [
            ("mqtt://127.0.0.1:1883", Address("127.0.0.1", 1883)),
            ("mqtt://localhost", Address("localhost", 1883)),
            ("mqtt://[::1]:2883", Address("::1", 2883)),
            ("mqtt://0.0.0.0:0", Address("0.0.0.0", 0)),
            ("mqtt://example.org:65535/", Address("example.org", 65_535)),
        ],
    )
    def test_understood(self, url: str, address: Address) -> None:
        assert parse_listen(url) == address
        assert parse_listen(address.url()) == address

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("127.0.0.1:1883", "form mqtt://HOST:PORT"),
            ("localhost", "form mqtt://HOST:PORT"),
            ("", "form mqtt://HOST:PORT"),
            ("http://localhost:1883", "form mqtt://HOST:PORT"),
            ("ws://localhost:8080", '"ws" is not supported by this version'),
            ("mqtts://localhost:8883", '"mqtts" is not supported by this version'),
            ("unix:///run/canopy.sock", '"unix" is not supported by this version'),
            ("mqtt://:1883", "0.0.0.0"),
            ("mqtt://localhost:99999", "out of range"),
            ("mqtt://localhost:port", "'port'"),
            ("mqtt://[::1:1883", "Invalid IPv6"),
            ("mqtt://me@localhost", "no user"),
            ("mqtt://localhost/path", "no user, path"),
            ("mqtt://localhost?a=b", "no user, path, query"),
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
        assert settings.addresses == (Address("127.0.0.1", 0), Address("127.0.0.1", 0))

    def test_a_port_cannot_be_had_twice(self) -> None:
        with pytest.raises(ValidationError, match="listed twice"):
            Settings(listen=["mqtt://localhost", "mqtt://localhost:1883"])

    def test_one_is_needed(self) -> None:
        with pytest.raises(ValidationError, match="at least one"):
            Settings(listen=[])


class TestOrder:
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

    @pytest.mark.parametrize("text", ["10_000", "10000", " 10000 ", "0x2710"])
    def test_numbers_are_written_as_in_toml(self, text: str) -> None:
        assert load(sets=(f"limits.max_packet_size={text}",)).limits.max_packet_size == 10_000
        assert load(environ={"CANOPY_LIMITS__MAX_PACKET_SIZE": text}).limits.max_packet_size == 10_000

    @pytest.mark.parametrize("text", ["debug", '"debug"', "'debug'"])
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
    def test_a_misspelt_name(self, toml: Path) -> None:
        toml.write_text("[limits]\nmax_packet_siz = 1000\n")
        assert problems(toml) == [
            f"{toml}: limits.max_packet_siz: no such setting; the nearest is limits.max_packet_size"
        ]

    def test_a_misspelt_section(self, toml: Path) -> None:
        toml.write_text("[limit]\nmax_packet_size = 1000\n")
        assert problems(toml) == [
            f"{toml}: limit.max_packet_size: no such setting; the nearest is limits.max_packet_size"
        ]

    def test_a_forgotten_section(self, toml: Path) -> None:
        toml.write_text("max_qos = 1\n")
        assert problems(toml) == [f"{toml}: max_qos: no such setting; the nearest is mqtt.max_qos"]

    def test_a_name_like_nothing_else(self) -> None:
        assert problems(sets=("zzz=1",)) == [
            "--set zzz=1: zzz: no such setting; config/default.toml lists them all",
        ]

    def test_a_misspelt_variable_is_answered_with_a_variable(self) -> None:
        (problem,) = problems(environ={"CANOPY_LIMITS__MAX_CONECTIONS": "5"})
        assert problem == (
            "environment variable CANOPY_LIMITS__MAX_CONECTIONS: limits.max_conections: no such setting; "
            "the nearest is CANOPY_LIMITS__MAX_CONNECTIONS"
        )

    @pytest.mark.parametrize(
        ("name", "text", "found", "expected"),
        [
            ("limits.max_packet_size", "1", "1", "an integer from 2 to 267386884"),
            ("limits.max_packet_size", "many", '"many"', "an integer from 2 to 267386884"),
            ("limits.max_packet_size", "1.5", "1.5", "an integer from 2 to 267386884"),
            ("limits.max_connections", "-1", "-1", "an integer from 0 to 2000000000"),
            ("limits.connect_timeout", "0", "0", "a number above 0 to 86400.0"),
            ("limits.max_client_id_length", "7", "7", "0, or an integer from 23 to 65535"),
            ("mqtt.max_qos", "3", "3", "0 or 1 or 2"),
            ("mqtt.retain_available", "1", "1", "true or false"),
            ("mqtt.retain_available", "yes", '"yes"', "true or false"),
            ("routing.trie", "fast", '"fast"', '"nodes" or "compact"'),
            ("session.max_expiry", "4294967296", "4294967296", "an integer from 0 to 4294967295"),
            ("listen", "7", "7", 'a list of URLs, like ["mqtt://127.0.0.1:1883"]'),
            ("listen", "[1]", "[1]", 'a list of URLs, like ["mqtt://127.0.0.1:1883"]'),
        ],
    )
    def test_a_bad_value(self, name: str, text: str, found: str, expected: str) -> None:
        assert problems(sets=(f"{name}={text}",)) == [
            f"--set {name}={text}: {name}: found {found}; allowed: {expected}"
        ]

    def test_every_setting_can_say_what_is_allowed(self) -> None:
        for name in defaults():
            assert len(allowed(name).split()) >= 3, name

    def test_all_faults_are_told_at_once(self, toml: Path) -> None:
        toml.write_text("[mqtt]\nmax_qos = 9\nnonsense = 1\n[queue]\nlive_bytes = 0\n")
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

    @pytest.mark.parametrize("text", ["no equals sign", "=1", ""])
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


class TestFiles:
    def test_broken_toml_names_the_line(self, toml: Path) -> None:
        toml.write_text("[limits]\nmax_packet_size = \n")
        (problem,) = problems(toml)
        assert problem.startswith(f"{toml}: not valid TOML: ")
        assert "line 2" in problem

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

    @pytest.mark.parametrize("path", sorted(CONFIG.glob("*.toml")), ids=lambda path: path.name)
    def test_the_files_we_ship_are_good(self, path: Path) -> None:
        settings = load(path)
        assert bool(changed(settings)) == (path.name != "default.toml")

    def test_default_toml_lists_every_setting_with_its_default_in_order(self) -> None:
        written: dict[str, Any] = {}
        for name, value in tomllib.loads((CONFIG / "default.toml").read_text(encoding="utf-8")).items():
            if isinstance(value, dict):
                written.update({f"{name}.{key}": item for key, item in value.items()})
            else:
                written[name] = tuple(value)
        assert list(written.items()) == list(defaults().items())
        # 10 and 10.0 are equal, and read differently by the person who copies the file.
        assert [type(value) for value in written.values()] == [type(value) for value in defaults().values()]

    def test_default_toml_explains_every_setting(self) -> None:
        lines = (CONFIG / "default.toml").read_text(encoding="utf-8").splitlines()
        for before, line in pairwise(lines):
            if "=" in line and not line.startswith("#"):
                assert before.startswith("# "), line

    def test_changed_tells_what_differs(self) -> None:
        assert changed(Settings()) == {}
        assert changed(Settings(limits=Limits(max_packet_size=9))) == {"limits.max_packet_size": (9, 1_048_576)}

    def test_flatten_has_every_field_once(self) -> None:
        fields = sum(len(model.model_fields) for model in section_models().values())
        plain = [name for name in Settings.model_fields if name not in section_models()]
        assert len(flatten(Settings())) == fields + len(plain)
        assert all(issubclass(model, Section) for model in section_models().values())
